package cdi

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"
)

// The kind of the specs that the GPU plugin writes for claims. Runtimes,
// policies and people know it by this name.
const (
	ClaimVendor = "k8s.gpu.nvidia.com"
	ClaimClass  = "claim"
)

// DeviceName returns the name of a claim's device in the claim's spec. The
// claim's UID is part of it because a name must be unique on the whole machine.
func DeviceName(claimUID, device string) string {
	return claimUID + "-" + device
}

// IsEmpty reports whether the edits change nothing in a container. The CDI
// specification forbids a device with empty edits.
func IsEmpty(e specs.ContainerEdits) bool {
	return len(e.Env) == 0 && len(e.DeviceNodes) == 0 && len(e.NetDevices) == 0 && len(e.Hooks) == 0 &&
		len(e.Mounts) == 0 && e.IntelRdt == nil && len(e.AdditionalGIDs) == 0
}

// Clone returns edits that share nothing with e, so that either may be changed.
func Clone(e specs.ContainerEdits) specs.ContainerEdits {
	c := specs.ContainerEdits{
		Env:            slices.Clone(e.Env),
		DeviceNodes:    cloneEach(e.DeviceNodes),
		NetDevices:     cloneEach(e.NetDevices),
		Hooks:          cloneEach(e.Hooks),
		Mounts:         cloneEach(e.Mounts),
		IntelRdt:       clonePointer(e.IntelRdt),
		AdditionalGIDs: slices.Clone(e.AdditionalGIDs),
	}
	for _, n := range c.DeviceNodes {
		n.FileMode, n.UID, n.GID = clonePointer(n.FileMode), clonePointer(n.UID), clonePointer(n.GID)
	}
	for _, h := range c.Hooks {
		h.Args, h.Env, h.Timeout = slices.Clone(h.Args), slices.Clone(h.Env), clonePointer(h.Timeout)
	}
	for _, m := range c.Mounts {
		m.Options = slices.Clone(m.Options)
	}
	if c.IntelRdt != nil {
		c.IntelRdt.Schemata = slices.Clone(c.IntelRdt.Schemata)
	}
	return c
}

// cloneEach copies the values a list points to. Entries that point to nothing
// are dropped: they mean nothing and would make later readers stumble.
func cloneEach[T any](list []*T) []*T {
	var clones []*T
	for _, p := range list {
		if p != nil {
			clones = append(clones, clonePointer(p))
		}
	}
	return clones
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// Merge puts edits together into new ones that share nothing with them. What
// is there twice is kept once; where two disagree about the same variable,
// device node or mount point, the later one wins. Device nodes, mounts and
// groups come out sorted, variables and hooks in the order they came in,
// because the order of hooks matters.
func Merge(all ...specs.ContainerEdits) specs.ContainerEdits {
	var merged specs.ContainerEdits
	for _, e := range all {
		e = Clone(e)
		for _, v := range e.Env {
			merged.Env = put(merged.Env, v, variable)
		}
		for _, n := range e.DeviceNodes {
			merged.DeviceNodes = put(merged.DeviceNodes, n, func(n *specs.DeviceNode) string { return n.Path })
		}
		for _, n := range e.NetDevices {
			merged.NetDevices = put(merged.NetDevices, n, func(n *specs.LinuxNetDevice) string { return n.HostInterfaceName })
		}
		for _, m := range e.Mounts {
			merged.Mounts = put(merged.Mounts, m, func(m *specs.Mount) string { return m.ContainerPath })
		}
		for _, h := range e.Hooks {
			same := func(other *specs.Hook) bool { return reflect.DeepEqual(h, other) }
			if !slices.ContainsFunc(merged.Hooks, same) {
				merged.Hooks = append(merged.Hooks, h)
			}
		}
		if e.IntelRdt != nil {
			merged.IntelRdt = e.IntelRdt
		}
		merged.AdditionalGIDs = append(merged.AdditionalGIDs, e.AdditionalGIDs...)
	}
	slices.SortFunc(merged.DeviceNodes, func(a, b *specs.DeviceNode) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortFunc(merged.Mounts, func(a, b *specs.Mount) int { return cmp.Compare(a.ContainerPath, b.ContainerPath) })
	slices.Sort(merged.AdditionalGIDs)
	merged.AdditionalGIDs = slices.Compact(merged.AdditionalGIDs)
	return merged
}

// put appends v, or replaces the element that has the same key.
func put[T any](list []T, v T, key func(T) string) []T {
	same := func(other T) bool { return key(other) == key(v) }
	if i := slices.IndexFunc(list, same); i >= 0 {
		list[i] = v
		return list
	}
	return append(list, v)
}

// variable returns the name in NAME=value.
func variable(assignment string) string {
	name, _, _ := strings.Cut(assignment, "=")
	return name
}

// A CapNode is one of the driver's capability devices,
// /dev/nvidia-caps/nvidia-cap<Minor>: whoever can open it may use what it
// stands for, a GPU instance or a compute instance. Major is the number
// /proc/devices gives for nvidia-caps; Minor and Mode are what the "access"
// file of the instance says under /proc/driver/nvidia/capabilities.
type CapNode struct {
	Major int64
	Minor int64
	Mode  os.FileMode
}

// MIGNodes returns the edits that let a container use one compute instance of
// one GPU instance, to be merged with the edits of the parent GPU. The runtime
// makes the nodes from the numbers given here, so they need not exist on the
// host: the driver makes them there only when somebody asks for them.
func MIGNodes(gpuInstance, computeInstance CapNode) (*specs.ContainerEdits, error) {
	edits := &specs.ContainerEdits{}
	for _, c := range []CapNode{gpuInstance, computeInstance} {
		if c.Major <= 0 || c.Minor < 0 {
			return nil, fmt.Errorf("describe capability device: %w: its number is %d:%d", ErrInvalid, c.Major, c.Minor)
		}
		mode := c.Mode.Perm()
		edits.DeviceNodes = append(edits.DeviceNodes, &specs.DeviceNode{
			Path:     fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", c.Minor),
			Type:     "c",
			Major:    c.Major,
			Minor:    c.Minor,
			FileMode: &mode,
		})
	}
	if gpuInstance.Minor == computeInstance.Minor {
		return nil, fmt.Errorf("describe capability devices: %w: GPU instance and compute instance have the same minor number %d", ErrInvalid, gpuInstance.Minor)
	}
	return edits, nil
}
