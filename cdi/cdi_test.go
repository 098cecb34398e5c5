package cdi

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

func fullEdits() specs.ContainerEdits {
	mode, group, seconds := modeOf(0o444), uint32(44), 5
	return specs.ContainerEdits{
		Env:            []string{"A=1"},
		DeviceNodes:    []*specs.DeviceNode{{Path: "/dev/nvidia0", FileMode: mode, UID: &group, GID: &group}},
		NetDevices:     []*specs.LinuxNetDevice{{HostInterfaceName: "eth0", Name: "net0"}},
		Hooks:          []*specs.Hook{{HookName: "createContainer", Path: "/hook", Args: []string{"hook"}, Env: []string{"B=1"}, Timeout: &seconds}},
		Mounts:         []*specs.Mount{{HostPath: "/a", ContainerPath: "/a", Options: []string{"ro"}}},
		IntelRdt:       &specs.IntelRdt{ClosID: "x", Schemata: []string{"L3"}},
		AdditionalGIDs: []uint32{44},
	}
}

func TestCloneSharesNothing(t *testing.T) {
	original, untouched := fullEdits(), fullEdits()
	c := Clone(original)
	if diff := cmp.Diff(original, c); diff != "" {
		t.Fatalf("Clone differs:\n%s", diff)
	}
	c.Env[0] = "A=2"
	*c.DeviceNodes[0].FileMode, *c.DeviceNodes[0].UID, *c.DeviceNodes[0].GID = 0, 0, 0
	c.DeviceNodes[0].HostPath = "/x"
	c.NetDevices[0].Name = "x"
	c.Hooks[0].Args[0], c.Hooks[0].Env[0], *c.Hooks[0].Timeout = "x", "x", 0
	c.Mounts[0].Options[0], c.Mounts[0].HostPath = "rw", "/x"
	c.IntelRdt.ClosID, c.IntelRdt.Schemata[0] = "y", "y"
	c.AdditionalGIDs[0] = 0
	if diff := cmp.Diff(untouched, original); diff != "" {
		t.Errorf("changing the clone changed the original:\n%s", diff)
	}
}

func TestMerge(t *testing.T) {
	one := specs.ContainerEdits{
		Env:            []string{"A=1", "B=1"},
		DeviceNodes:    []*specs.DeviceNode{{Path: "/dev/nvidiactl"}, {Path: "/dev/nvidia1"}},
		Mounts:         []*specs.Mount{{HostPath: "/host/z", ContainerPath: "/z"}, {HostPath: "/host/a", ContainerPath: "/a"}},
		Hooks:          []*specs.Hook{{HookName: "createContainer", Path: "/h", Args: []string{"second"}}},
		AdditionalGIDs: []uint32{44, 7},
	}
	two := specs.ContainerEdits{
		Env:            []string{"A=2", "C=1"},
		DeviceNodes:    []*specs.DeviceNode{{Path: "/dev/nvidia0"}, {Path: "/dev/nvidiactl"}, nil},
		Mounts:         []*specs.Mount{{HostPath: "/other/a", ContainerPath: "/a"}},
		Hooks:          []*specs.Hook{{HookName: "createContainer", Path: "/h", Args: []string{"second"}}, {HookName: "createContainer", Path: "/h", Args: []string{"first"}}},
		AdditionalGIDs: []uint32{44},
	}
	want := specs.ContainerEdits{
		Env:            []string{"A=2", "B=1", "C=1"},
		DeviceNodes:    []*specs.DeviceNode{{Path: "/dev/nvidia0"}, {Path: "/dev/nvidia1"}, {Path: "/dev/nvidiactl"}},
		Mounts:         []*specs.Mount{{HostPath: "/other/a", ContainerPath: "/a"}, {HostPath: "/host/z", ContainerPath: "/z"}},
		Hooks:          []*specs.Hook{{HookName: "createContainer", Path: "/h", Args: []string{"second"}}, {HookName: "createContainer", Path: "/h", Args: []string{"first"}}},
		AdditionalGIDs: []uint32{7, 44},
	}
	got := Merge(one, two)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Merge:\n%s", diff)
	}
	if diff := cmp.Diff(want, Merge(got, got)); diff != "" {
		t.Errorf("Merge with itself changed it:\n%s", diff)
	}
	if full := fullEdits(); !cmp.Equal(full, Merge(full)) {
		t.Errorf("Merge loses something:\n%s", cmp.Diff(full, Merge(full)))
	}
	if !IsEmpty(Merge()) || IsEmpty(got) {
		t.Error("IsEmpty is wrong")
	}
}

// Two MIG devices of one GPU in one claim: appending to what is shared would
// let the second overwrite the nodes of the first.
func TestMIGNodes(t *testing.T) {
	parent := specs.ContainerEdits{DeviceNodes: make([]*specs.DeviceNode, 0, 8)}
	parent.DeviceNodes = append(parent.DeviceNodes, &specs.DeviceNode{Path: "/dev/nvidia0"})
	var got []specs.ContainerEdits
	for _, minor := range []int64{30, 39} {
		nodes, err := MIGNodes(CapNode{Major: 236, Minor: minor, Mode: 0o444}, CapNode{Major: 236, Minor: minor + 1, Mode: 0o444})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, Merge(parent, *nodes))
	}
	for i, minor := range []int64{30, 39} {
		want := specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{
			{Path: "/dev/nvidia-caps/nvidia-cap" + str(minor), Type: "c", Major: 236, Minor: minor, FileMode: modeOf(0o444)},
			{Path: "/dev/nvidia-caps/nvidia-cap" + str(minor+1), Type: "c", Major: 236, Minor: minor + 1, FileMode: modeOf(0o444)},
			{Path: "/dev/nvidia0"},
		}}
		if diff := cmp.Diff(want, got[i]); diff != "" {
			t.Errorf("MIG device %d:\n%s", i, diff)
		}
	}

	good := CapNode{Major: 236, Minor: 1}
	for _, bad := range [][2]CapNode{{{}, good}, {good, {Major: 236, Minor: -1}}, {good, good}} {
		if _, err := MIGNodes(bad[0], bad[1]); !errors.Is(err, ErrInvalid) {
			t.Errorf("MIGNodes(%v): got %v, want ErrInvalid", bad, err)
		}
	}
}
