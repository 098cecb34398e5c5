package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"rsc.io/script"
)

// slicesVerb shows what the scheduler sees of the node.
func slicesVerb(w *world) script.Cmd {
	const example = `Attributes are named without their domain gpu.nvidia.com; a capacity is named like an attribute. An attribute a device
	lacks is left out. The word all shows all, and uids shows the UIDs of the slices instead of devices.
	slices type uuid memory
	slices all
	slices uids`
	return verb("[ATTRIBUTE…|all|uids]", "show the devices the node has published, by name", example, func(s *script.State, args []string) (string, error) {
		published, err := w.slices(s.Context())
		if err != nil {
			return "", err
		}
		var all []string
		for _, p := range published {
			if len(args) == 1 && args[0] == "uids" {
				all = append(all, string(p.UID))
				continue
			}
			for _, d := range p.Spec.Devices {
				all = append(all, strings.Join(append([]string{d.Name}, shown(d, args)...), " "))
			}
		}
		slices.Sort(all)
		return lines(all), nil
	})
}

// shown are the attributes and capacities of a device that were asked for, as name=value.
func shown(d resourceapi.Device, names []string) []string {
	values := map[string]string{}
	for name, a := range d.Attributes {
		short := strings.TrimPrefix(string(name), gpuDriver+"/")
		switch {
		case a.StringValue != nil:
			values[short] = *a.StringValue
		case a.VersionValue != nil:
			values[short] = *a.VersionValue
		case a.IntValue != nil:
			values[short] = fmt.Sprint(*a.IntValue)
		case a.BoolValue != nil:
			values[short] = fmt.Sprint(*a.BoolValue)
		}
	}
	for name, c := range d.Capacity {
		values[strings.TrimPrefix(string(name), gpuDriver+"/")] = c.Value.String()
	}
	if len(names) == 1 && names[0] == "all" {
		names = slices.Sorted(maps.Keys(values))
	}
	var all []string
	for _, name := range names {
		if v, ok := values[name]; ok {
			all = append(all, name+"="+v)
		}
	}
	return all
}

// devicesVerb shows the names only.
func devicesVerb(w *world) script.Cmd {
	const example = `A node that has published an empty slice has an empty line; one that has published nothing is an error.
	eventually 20s devices =~ '^gpu-0 gpu-1$'`
	return verb("", "show the names of the devices the node has published, on one line", example, func(s *script.State, args []string) (string, error) {
		if len(args) > 0 {
			return "", noMore(nil, args)
		}
		published, err := w.slices(s.Context())
		if err != nil {
			return "", err
		}
		if len(published) == 0 {
			return "", errors.New("the node has no slices")
		}
		var names []string
		for _, p := range published {
			for _, d := range p.Spec.Devices {
				names = append(names, d.Name)
			}
		}
		slices.Sort(names)
		return strings.Join(names, " ") + "\n", nil
	})
}
