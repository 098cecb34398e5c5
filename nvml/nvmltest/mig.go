package nvmltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"nvdra/nvml"
)

// divided opens a machine and puts its first GPU into MIG mode.
func divided(t *testing.T, open Open) (Subject, nvml.UUID) {
	t.Helper()
	s := open(t, "h100x8")
	gpu := healthy(t, s.Node)[0].UUID
	mode, err := s.Node.SetMIGMode(call(t), gpu, true)
	if err != nil || !mode.Enabled {
		t.Fatalf("switch MIG mode on: %+v, %v", mode, err)
	}
	return s, gpu
}

// create makes a MIG device that must be possible.
func create(t *testing.T, n nvml.Node, gpu nvml.UUID, profile, start int) nvml.MIGDevice {
	t.Helper()
	d, err := n.CreateMIG(call(t), nvml.Placement{GPU: gpu, ProfileID: profile, Start: start})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func destroy(t *testing.T, n nvml.Node, mig nvml.UUID) {
	t.Helper()
	if err := n.DestroyMIG(call(t), mig); err != nil {
		t.Fatal(err)
	}
}

// Hopper and later switch at once.
func testMIGMode(t *testing.T, open Open) {
	node := open(t, "h100x8").Node
	gpu := healthy(t, node)[0].UUID
	on := nvml.MIGMode{Capable: true, Enabled: true, Pending: true}
	off := nvml.MIGMode{Capable: true}
	switchTo := func(want nvml.MIGMode) {
		t.Helper()
		mode, err := node.SetMIGMode(call(t), gpu, want.Enabled)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "mode returned", mode, want)
		same(t, "mode read", read(t, node, gpu).MIG, want)
	}
	switchTo(off)
	switchTo(on)
	switchTo(on)
	d := create(t, node, gpu, 19, 0)
	switchTo(on)
	_, err := node.SetMIGMode(call(t), gpu, false)
	wantError(t, "switch off with a MIG device", err, nvml.ErrInUse, string(gpu))
	same(t, "MIG devices", read(t, node, gpu).MIGDevices, []nvml.MIGDevice{d})
	destroy(t, node, d.UUID)
	switchTo(off)
	for _, g := range healthy(t, node) {
		same(t, "mode of "+string(g.UUID), g.MIG, off)
	}
}

// Ampere needs a reset.
func testMIGModePending(t *testing.T, open Open) {
	s := open(t, "dgx-a100")
	gpus := healthy(t, s.Node)
	i := slices.IndexFunc(gpus, func(g nvml.GPU) bool { return !g.MIG.Enabled })
	if i < 0 {
		t.Fatal("dgx-a100 has no GPU with MIG mode off")
	}
	gpu := gpus[i].UUID
	pending := nvml.MIGMode{Capable: true, Pending: true}
	mode, err := s.Node.SetMIGMode(call(t), gpu, true)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "mode returned", mode, pending)
	same(t, "mode read", read(t, s.Node, gpu).MIG, pending)
	_, err = s.Node.CreateMIG(call(t), nvml.Placement{GPU: gpu, ProfileID: 19})
	wantError(t, "create before the reset", err, nvml.ErrUnsupported, string(gpu))
	s.do(t, "reset", string(gpu))
	same(t, "mode after the reset", read(t, s.Node, gpu).MIG, nvml.MIGMode{Capable: true, Enabled: true, Pending: true})
	create(t, s.Node, gpu, 19, 0)
}

func testNoMIG(t *testing.T, open Open) {
	node := open(t, "t4x1").Node
	g := healthy(t, node)[0]
	same(t, "mode", g.MIG, nvml.MIGMode{})
	profiles, err := node.MIGProfiles(call(t), g.UUID)
	if err != nil || len(profiles) > 0 {
		t.Errorf("profiles %v, %v", profiles, err)
	}
	_, err = node.SetMIGMode(call(t), g.UUID, true)
	wantError(t, "SetMIGMode", err, nvml.ErrUnsupported, string(g.UUID))
	_, err = node.CreateMIG(call(t), nvml.Placement{GPU: g.UUID, ProfileID: 19})
	wantError(t, "CreateMIG", err, nvml.ErrUnsupported, string(g.UUID))
}

func testCreateAndDestroy(t *testing.T, open Open) {
	s, gpu := divided(t, open)
	late := create(t, s.Node, gpu, 9, 4)
	early := create(t, s.Node, gpu, 14, 0)
	// What was created is what is read, in order of placement.
	same(t, "MIG devices", read(t, s.Node, gpu).MIGDevices, []nvml.MIGDevice{early, late})
	checkAnywhere(t, s.Node)
	destroy(t, s.Node, late.UUID)
	same(t, "MIG devices", read(t, s.Node, gpu).MIGDevices, []nvml.MIGDevice{early})
	wantError(t, "destroy twice", s.Node.DestroyMIG(call(t), late.UUID), nvml.ErrNotFound, string(late.UUID))
	// The same place again is another device.
	again := create(t, s.Node, gpu, 9, 4)
	if again.UUID == late.UUID {
		t.Errorf("two devices have UUID %s", again.UUID)
	}
	// What is left after a Close is what was there before.
	if err := s.Node.Close(); err != nil {
		t.Error(err)
	}
	same(t, "MIG devices after Close", read(t, s.Node, gpu).MIGDevices, []nvml.MIGDevice{early, again})
	destroy(t, s.Node, again.UUID)
	destroy(t, s.Node, early.UUID)
	if left := read(t, s.Node, gpu).MIGDevices; len(left) > 0 {
		t.Errorf("left %+v", left)
	}
}

func testCreateRefusals(t *testing.T, open Open) {
	s, gpu := divided(t, open)
	there := create(t, s.Node, gpu, 9, 4)
	other := healthy(t, s.Node)[1].UUID
	for _, c := range []struct {
		what string
		p    nvml.Placement
		kind error // nil: any
	}{
		{"the same place", nvml.Placement{GPU: gpu, ProfileID: 9, Start: 4}, nvml.ErrInUse},
		{"the end of the place", nvml.Placement{GPU: gpu, ProfileID: 19, Start: 6}, nvml.ErrInUse},
		{"the whole GPU", nvml.Placement{GPU: gpu, ProfileID: 0, Start: 0}, nvml.ErrInUse},
		{"MIG mode is off", nvml.Placement{GPU: other, ProfileID: 19, Start: 0}, nvml.ErrUnsupported},
		{"a place the profile cannot have", nvml.Placement{GPU: gpu, ProfileID: 14, Start: 1}, nil},
		{"a place before the GPU", nvml.Placement{GPU: gpu, ProfileID: 19, Start: -1}, nil},
		{"a place behind the GPU", nvml.Placement{GPU: gpu, ProfileID: 19, Start: 8}, nil},
		{"an unknown profile", nvml.Placement{GPU: gpu, ProfileID: 4711, Start: 0}, nil},
		{"a negative profile", nvml.Placement{GPU: gpu, ProfileID: -1, Start: 0}, nil},
	} {
		_, err := s.Node.CreateMIG(call(t), c.p)
		if c.kind != nil {
			wantError(t, c.what, err, c.kind, string(c.p.GPU))
		} else if err == nil {
			t.Errorf("%s: no error", c.what)
		}
	}
	same(t, "MIG devices", read(t, s.Node, gpu).MIGDevices, []nvml.MIGDevice{there})
}

// testEveryPlacement makes every MIG device that an empty GPU of every model
// can have, and takes it away again.
func testEveryPlacement(t *testing.T, open Open) {
	for _, machine := range []string{"h100x8", "h200x8", "b200x8"} {
		node := open(t, machine).Node
		g := healthy(t, node)[0]
		if _, err := node.SetMIGMode(call(t), g.UUID, true); err != nil {
			t.Fatal(err)
		}
		profiles, err := node.MIGProfiles(call(t), g.UUID)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range profiles {
			for _, start := range p.Placements {
				d := create(t, node, g.UUID, p.ProfileID, start)
				want := nvml.MIGDevice{
					UUID: d.UUID, Parent: g.UUID, GPUInst: d.GPUInst, CompInst: d.CompInst,
					Profile: p.Name, ProfileID: p.ProfileID, Start: start, Size: p.Size, Resources: p.Resources,
					ParentMin: g.Minor, ParentPCI: g.PCI,
				}
				same(t, machine, d, want)
				destroy(t, node, d.UUID)
			}
		}
	}
}

// Profile ids belong to one GPU: the smallest profile of an A30 has another id
// than that of an A100.
func testSameNameOnTwoModels(t *testing.T, open Open) {
	node := open(t, "a30a100").Node
	ids := map[int]bool{}
	for _, product := range []string{"A30", "A100"} {
		g := first(t, node, product)
		profiles, err := node.MIGProfiles(call(t), g.UUID)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(profiles, func(p nvml.MIGProfile) bool { return p.Slices == 1 && p.Size == 1 })
		if i < 0 {
			t.Fatalf("%s has no profile of one slice: %+v", product, profiles)
		}
		ids[profiles[i].ProfileID] = true
	}
	if len(ids) != 2 {
		t.Errorf("ids %v, want two", ids)
	}
}

func testDestroyBusy(t *testing.T, open Open) {
	s, gpu := divided(t, open)
	d := create(t, s.Node, gpu, 19, 0)
	s.do(t, "busy", string(d.UUID), strconv.Itoa(4711))
	wantError(t, "destroy", s.Node.DestroyMIG(call(t), d.UUID), nvml.ErrInUse, string(d.UUID))
	same(t, "MIG devices", read(t, s.Node, gpu).MIGDevices, []nvml.MIGDevice{d})
	s.do(t, "idle", string(d.UUID))
	destroy(t, s.Node, d.UUID)
}

// The compute instance fails: nothing may be left, and the place is free.
func testCreateTakenBack(t *testing.T, open Open) {
	s, gpu := divided(t, open)
	s.do(t, "fail", "GpuInstanceCreateComputeInstance", "UNKNOWN", "times=1")
	_, err := s.Node.CreateMIG(call(t), nvml.Placement{GPU: gpu, ProfileID: 9, Start: 0})
	if err == nil {
		t.Fatal("no error though the compute instance failed")
	}
	if g := read(t, s.Node, gpu); len(g.MIGDevices) > 0 || len(g.BrokenMIG) > 0 {
		t.Errorf("left %+v, broken %v", g.MIGDevices, g.BrokenMIG)
	}
	create(t, s.Node, gpu, 9, 0)
	create(t, s.Node, gpu, 9, 4)
}

// A creation that hangs in the driver is given up when its context ends, and
// can be made again when the driver works again, whatever became of it.
func testCreateGivenUp(t *testing.T, open Open) {
	for _, held := range [][]string{
		{"CreateGpuInstance"},
		{"CreateComputeInstance"},
	} {
		s, gpu := divided(t, open)
		s.do(t, append([]string{"hold"}, held...)...)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		p := nvml.Placement{GPU: gpu, ProfileID: 14, Start: 2}
		_, err := s.Node.CreateMIG(ctx, p)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("hold %v: %v, want that time ran out", held, err)
		}
		s.do(t, "release")
		eventually(t, fmt.Sprintf("hold %v: create again", held), func() error {
			d, err := s.Node.CreateMIG(call(t), p)
			if err != nil {
				// It may have come into being after all.
				for _, d := range read(t, s.Node, gpu).MIGDevices {
					if d.Start == p.Start && d.ProfileID == p.ProfileID {
						return nil
					}
				}
				return err
			}
			same(t, "MIG devices", read(t, s.Node, gpu).MIGDevices, []nvml.MIGDevice{d})
			return nil
		})
	}
}
