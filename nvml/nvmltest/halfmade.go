package nvmltest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"nvdra/nvml"
)

// RunHalfMade is what the Node of a driver adds to the contract: what other
// processes, or this one killed in the middle, leave on a GPU. The simulator's
// own Node does each call as a whole, so this is for Nodes that talk NVML.
// raw makes an NVML call on the same machine, see the table in package sim.
func RunHalfMade(t *testing.T, open func(t *testing.T, machine string) (s Subject, raw func(name string, args ...string) ([]string, error))) {
	t.Run("GPUInstanceAlone", func(t *testing.T) {
		s, raw := open(t, "h100x8")
		gpu := divide(t, s.Node)
		if _, err := raw("DeviceCreateGpuInstance", string(gpu), "9", "4", "4"); err != nil {
			t.Fatal(err)
		}
		wantBroken(t, s.Node, gpu, "GPU instance", "3g.40gb at slice 4", "no compute instance")
		// It blocks its place for others …
		_, err := s.Node.CreateMIG(call(t), nvml.Placement{GPU: gpu, ProfileID: 19, Start: 5})
		wantError(t, "create over it", err, nvml.ErrInUse, "3g.40gb at slice 4")
		// … and MIG mode cannot be switched off …
		_, err = s.Node.SetMIGMode(call(t), gpu, false)
		wantError(t, "switch off with a GPU instance", err, nvml.ErrInUse, string(gpu))
		// … until whoever wants this very device has it finished.
		d := create(t, s.Node, gpu, 9, 4)
		same(t, "MIG devices", read(t, s.Node, gpu).MIGDevices, []nvml.MIGDevice{d})
		healthy(t, s.Node)
		destroy(t, s.Node, d.UUID)
	})
	t.Run("ComputeInstanceSmaller", func(t *testing.T) {
		s, raw := open(t, "h100x8")
		gpu := divide(t, s.Node)
		gi, err := raw("DeviceCreateGpuInstance", string(gpu), "9", "0", "4")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := raw("GpuInstanceCreateComputeInstance", gi[0], "0"); err != nil {
				t.Fatal(err)
			}
		}
		wantBroken(t, s.Node, gpu, "compute instance 0", "1 of the 3 compute slices", "compute instance 1")
		whole := create(t, s.Node, gpu, 9, 4)
		same(t, "MIG devices", read(t, s.Node, gpu).MIGDevices, []nvml.MIGDevice{whole})
	})
	t.Run("KilledBetweenTheHalves", func(t *testing.T) {
		for _, held := range [][]string{{"CreateGpuInstance", "after"}, {"CreateComputeInstance"}, {"CreateComputeInstance", "after"}} {
			s, _ := open(t, "h100x8")
			gpu := divide(t, s.Node)
			s.do(t, append([]string{"hold"}, held...)...)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			p := nvml.Placement{GPU: gpu, ProfileID: 9, Start: 4}
			_, err := s.Node.CreateMIG(ctx, p)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, nvml.ErrDriver) {
				t.Errorf("hold %v: %v, want that the driver does not answer in time", held, err)
			}
			s.do(t, "release")
			eventually(t, strings.Join(held, " ")+": make it whole", func() error {
				g := read(t, s.Node, gpu)
				if len(g.MIGDevices) == 1 && g.MIGDevices[0].Start == p.Start {
					return nil
				}
				_, err := s.Node.CreateMIG(call(t), p)
				return err
			})
			healthy(t, s.Node)
		}
	})
	t.Run("TakingBackFails", func(t *testing.T) {
		s, _ := open(t, "h100x8")
		gpu := divide(t, s.Node)
		s.do(t, "fail", "GpuInstanceCreateComputeInstance", "UNKNOWN")
		s.do(t, "fail", "GpuInstanceDestroy", "UNKNOWN")
		_, err := s.Node.CreateMIG(call(t), nvml.Placement{GPU: gpu, ProfileID: 9, Start: 4})
		if err == nil || !strings.Contains(err.Error(), "could not be taken back") {
			t.Errorf("got %v, want that the GPU instance could not be taken back", err)
		}
		s.do(t, "clear")
		wantBroken(t, s.Node, gpu, "no compute instance")
		create(t, s.Node, gpu, 9, 4)
	})
	t.Run("DestroySlowly", func(t *testing.T) {
		s, _ := open(t, "h100x8")
		gpu := divide(t, s.Node)
		d := create(t, s.Node, gpu, 9, 4)
		// The driver cleans up behind the compute instance for a while.
		s.do(t, "fail", "GpuInstanceDestroy", "IN_USE", "times=3")
		destroy(t, s.Node, d.UUID)
		if g := read(t, s.Node, gpu); len(g.MIGDevices) > 0 || len(g.BrokenMIG) > 0 {
			t.Errorf("left %+v, broken %v", g.MIGDevices, g.BrokenMIG)
		}
	})
	t.Run("ModeNotTaken", func(t *testing.T) {
		s, _ := open(t, "h100x8")
		gpu := healthy(t, s.Node)[0].UUID
		s.do(t, "busy", string(gpu), "4711")
		mode, err := s.Node.SetMIGMode(call(t), gpu, true)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "mode", mode, nvml.MIGMode{Capable: true, Pending: true})
	})
}

// divide puts the first GPU into MIG mode.
func divide(t *testing.T, n nvml.Node) nvml.UUID {
	t.Helper()
	gpu := healthy(t, n)[0].UUID
	if _, err := n.SetMIGMode(call(t), gpu, true); err != nil {
		t.Fatal(err)
	}
	return gpu
}

// wantBroken checks that a GPU has no MIG device to offer, and that it says
// why not.
func wantBroken(t *testing.T, n nvml.Node, gpu nvml.UUID, parts ...string) {
	t.Helper()
	g := read(t, n, gpu)
	text := ""
	for _, err := range g.BrokenMIG {
		text += err.Error() + "\n"
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("broken MIG devices %q lack %q", text, part)
		}
	}
	if len(g.MIGDevices) > 0 {
		t.Errorf("offers %+v", g.MIGDevices)
	}
}
