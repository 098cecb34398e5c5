package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rsc.io/script"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// cdiVerb shows what container runtimes see.
func cdiVerb(w *world) script.Cmd {
	const example = `Without arguments it lists the CDI directory, a spec by the name of its claim. Every spec that is shown has to pass
	the CDI library.
	cdi
	cdi print job     # the file, with UID, HOOK and NODE for what differs from run to run
	cdi nodes job     # the device nodes a container gets
	cdi mounts job
	cdi env job
	cdi path job      # the file's name`
	return verb("[print|nodes|mounts|env|path CLAIM]", "show CDI specs", example, func(_ *script.State, args []string) (string, error) {
		if len(args) == 0 {
			return w.listSpecs()
		}
		if len(args) != 2 {
			return "", usage("cdi takes a word and a claim")
		}
		uid, err := w.uidOf(args[1])
		if err != nil {
			return "", err
		}
		path := w.specPath(string(uid))
		if args[0] == "path" {
			return path + "\n", nil
		}
		spec, err := cdi.ReadSpec(path, 0)
		if err != nil {
			return "", fmt.Errorf("read CDI spec: %w", err)
		}
		edits := spec.ContainerEdits
		for _, d := range spec.Devices {
			edits.DeviceNodes = append(edits.DeviceNodes, d.ContainerEdits.DeviceNodes...)
			edits.Mounts = append(edits.Mounts, d.ContainerEdits.Mounts...)
			edits.Env = append(edits.Env, d.ContainerEdits.Env...)
		}
		switch args[0] {
		case "print":
			data, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			return w.withoutMajors(w.anonymous(string(data)))
		case "nodes":
			return w.withoutMajors(describeAll(edits.DeviceNodes, describeNode))
		case "mounts":
			return w.anonymous(describeAll(edits.Mounts, func(m *specs.Mount) string { return m.HostPath + " " + m.ContainerPath })), nil
		case "env":
			return describeAll(edits.Env, func(e string) string { return e }), nil
		}
		return "", usage("cdi does not know the word %q", args[0])
	})
}

// specPath is where the CDI spec of a claim has to be: others look for it there.
func (w *world) specPath(uid string) string {
	return filepath.Join(w.cdiRoot(), "k8s."+gpuDriver+"-claim_"+uid+".yaml")
}

// listSpecs lists everything in the CDI directory.
func (w *world) listSpecs() (string, error) {
	entries, err := os.ReadDir(w.cdiRoot())
	if err != nil {
		return "", fmt.Errorf("list CDI specs: %w", err)
	}
	var all []string
	for _, e := range entries {
		name := e.Name()
		if uid, ok := strings.CutPrefix(name, "k8s."+gpuDriver+"-claim_"); ok {
			if uid, ok := strings.CutSuffix(uid, ".yaml"); ok {
				name = w.nameOf(uid)
			}
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return lines(all), nil
}

// describeAll describes things one a line, sorted, each once.
func describeAll[T any](things []T, describe func(T) string) string {
	var all []string
	for _, t := range things {
		all = append(all, describe(t))
	}
	slices.Sort(all)
	return lines(slices.Compact(all))
}

func describeNode(n *specs.DeviceNode) string {
	line := n.Path
	if n.HostPath != "" {
		line += " from " + n.HostPath
	}
	if n.Major != 0 {
		line += fmt.Sprintf(" %d:%d", n.Major, n.Minor)
	}
	return line
}
