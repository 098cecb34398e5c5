package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// podLimit is how long one pod may take to run, or to go.
const podLimit = time.Minute

// pods measures how long a pod takes from its creation until it runs: one without
// a claim, one with a claim of the floor's, one with a claim of ours, in turns.
func (b *bench) pods(ctx context.Context) error {
	kinds := []string{"", floorDriver, ourDriver}
	times := map[string]*sample{}
	for _, kind := range kinds {
		times[kind] = &sample{}
	}
	for n := range b.size.pods + 1 {
		for i := range kinds {
			kind := kinds[(i+n)%len(kinds)]
			took, err := b.onePod(ctx, fmt.Sprintf("pod-%d-%d", n, i), kind)
			if err != nil {
				return err
			}
			if n > 0 { // the first of each kind is to warm up
				*times[kind] = append(*times[kind], took)
			}
		}
	}
	without := times[""].median()
	with := row{what: "pod with a claim by a pod without", aim: "1.12"}
	if without > 0 {
		with.ours = value{float64(times[ourDriver].median()) / float64(without), "×"}
		with.floor = value{float64(times[floorDriver].median()) / float64(without), "×"}
	}
	b.table.add(fmt.Sprintf("pod, from its creation until it runs, median of %d", b.size.pods),
		row{what: "with a claim", ours: seconds(times[ourDriver].median()), floor: seconds(times[floorDriver].median())},
		row{what: "without a claim", ours: seconds(without)},
		with,
	)
	return nil
}

// onePod runs a pod, removes it again, and says how long it took to run.
func (b *bench) onePod(ctx context.Context, name, driver string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*podLimit, fmt.Errorf("pod %s did not run and go in %v", name, 2*podLimit))
	defer cancel()
	pods := b.kube.CoreV1().Pods(namespace)
	events, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return 0, fmt.Errorf("watch pod %s: %w", name, err)
	}
	defer events.Stop()
	began := time.Now()
	if _, err := pods.Create(ctx, pod(name, driver), metav1.CreateOptions{}); err != nil {
		return 0, fmt.Errorf("create pod %s: %w", name, err)
	}
	if err := awaitPod(ctx, events, running); err != nil {
		return 0, fmt.Errorf("run pod %s: %w", name, err)
	}
	took := time.Since(began)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, fmt.Errorf("delete pod %s: %w", name, err)
	}
	if err := awaitPod(ctx, events, gone); err != nil {
		return 0, fmt.Errorf("delete pod %s: %w", name, err)
	}
	return took, nil
}

func running(e watch.Event, p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }

func gone(e watch.Event, _ *corev1.Pod) bool { return e.Type == watch.Deleted }

// awaitPod waits until the pod is as it should be.
func awaitPod(ctx context.Context, events watch.Interface, well func(watch.Event, *corev1.Pod) bool) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, open := <-events.ResultChan():
			p, ok := e.Object.(*corev1.Pod)
			switch {
			case !open:
				return errors.New("the API server ended the watch")
			case !ok:
				return fmt.Errorf("the watch reports %s: %v", e.Type, e.Object)
			case p.Status.Phase == corev1.PodFailed:
				return fmt.Errorf("it failed: %s", p.Status.Message)
			case well(e, p):
				return nil
			}
		}
	}
}

// pod is a pod that sleeps, with a claim of a driver if one is given.
func pod(name, driver string) *corev1.Pod {
	grace := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "work", Image: "localhost/workload:dev", ImagePullPolicy: corev1.PullNever,
				Command: []string{"sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"},
			}},
		},
	}
	if driver != "" {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &driver}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	return p
}
