package e2e

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"rsc.io/script"
)

// eventsVerb shows what people are told.
func eventsVerb(w *world) script.Cmd {
	const example = `It prints type, reason and note, sorted.
	eventually 5s events node =~ NoGPUsFound
	events job`
	return verb("node|CLAIM", "show the Events about the node or a claim", example, func(s *script.State, args []string) (string, error) {
		if len(args) != 1 {
			return "", usage("events takes the word node or a claim")
		}
		kind, name, namespace := "ResourceClaim", args[0], w.node.Name
		if name == "node" {
			kind, name, namespace = "Node", w.node.Name, corev1.NamespaceDefault
		}
		list, err := w.api.kube.EventsV1().Events(namespace).List(s.Context(), metav1.ListOptions{})
		if err != nil {
			return "", fmt.Errorf("list events: %w", err)
		}
		var all []string
		for _, e := range list.Items {
			if e.Regarding.Kind == kind && e.Regarding.Name == name {
				all = append(all, fmt.Sprintf("%s %s %s", e.Type, e.Reason, w.anonymous(e.Note)))
			}
		}
		slices.Sort(all)
		return lines(all), nil
	})
}
