package gpuplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"nvdra/nvml"
	"nvdra/nvml/host"
	"nvdra/nvml/sim"
	"nvdra/roles/internal/claims"
)

// simulated is a machine from testdata/machines and a directory that stands for
// its kernel's files.
func simulated(t *testing.T, name string) (*machine, *sim.Machine, string) {
	t.Helper()
	profile, err := sim.LoadProfile(name, "../../testdata/machines")
	if err != nil {
		t.Fatal(err)
	}
	node, err := sim.New(profile)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "proc/driver/nvidia/gpus"), 0o755); err != nil {
		t.Fatal(err)
	}
	n, err := loadNames(filepath.Join(t.TempDir(), "names.json"))
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(node, host.At(root), n), node, root
}

// kernelShows makes the kernel's files differ from before.
func kernelShows(t *testing.T, root, what string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "proc/driver/nvidia/gpus", what), 0o755); err != nil {
		t.Fatal(err)
	}
}

func namesOf(inv *inventory) string { return strings.Join(deviceNames(inv), " ") }

// Claims cost no driver call while the kernel shows no change, and see every
// change that it shows.
func TestLookAsksTheDriverOnlyAfterAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, node, root := simulated(t, "h100x8")
		if err := m.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := namesOf(m.Inventory()); got != "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6 gpu-7" {
			t.Fatalf("devices %s", got)
		}
		before, err := node.Count("Init")
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			time.Sleep(fresh)
			if err := m.Look(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if after, _ := node.Count("Init"); after != before {
			t.Errorf("%d readings without a change", after-before)
		}
		gone := m.Inventory().devices[2].UUID()
		if err := node.Remove(gone); err != nil {
			t.Fatal(err)
		}
		kernelShows(t, root, "changed")
		time.Sleep(fresh)
		if _, err := m.Device(t.Context(), gone); !errors.Is(err, claims.ErrPermanent) {
			t.Errorf("find a GPU that was removed: %v", err)
		}
		if got := namesOf(m.Inventory()); strings.Contains(got, "gpu-2") || !strings.Contains(got, "gpu-3") {
			t.Errorf("devices %s, want all but gpu-2", got)
		}
	})
}

// A driver that arrives late, goes and comes back, and a GPU that is lost: the
// slices follow without a restart, and a short absence of the driver withdraws
// nothing (reports R031, R103).
func TestSlicesFollowTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, node, root := simulated(t, "t4x1")
		if err := node.Unload(); err != nil {
			t.Fatal(err)
		}
		var published []int // devices, each time something was published
		var warned []string
		p := &publisher{
			log: zap.NewNop(), nodeName: "n1", machine: m,
			publish: func(_ context.Context, r resourceslice.DriverResources) error {
				n := 0
				for _, s := range r.Pools["n1"].Slices {
					n += len(s.Devices)
				}
				published = append(published, n)
				return nil
			},
			warn: func(reason, _ string) { warned = append(warned, reason) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() {
			over <- m.Watch(ctx, func(inv *inventory, err error) { p.Changed(ctx, inv, err) })
		}()
		expect := func(when string, after time.Duration, want ...int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if !slices.Equal(published, want) {
				t.Fatalf("%s: published %v, want %v", when, published, want)
			}
		}
		expect("driver just missing", time.Second)
		expect("driver missing for long", time.Minute, 0)
		if err := node.Load(""); err != nil {
			t.Fatal(err)
		}
		expect("driver there", time.Minute, 0, 1)
		if err := node.Unload(); err != nil {
			t.Fatal(err)
		}
		kernelShows(t, root, "a")
		expect("driver replaced", lookEvery+time.Second, 0, 1)
		if err := node.Load(""); err != nil {
			t.Fatal(err)
		}
		expect("driver replaced at once", time.Minute, 0, 1)
		uuid := m.Inventory().devices[0].UUID()
		if err := node.Lose(uuid); err != nil {
			t.Fatal(err)
		}
		m.Nudge() // what a claim that met the lost GPU does
		expect("GPU lost", time.Second, 0, 1, 0)
		if err := node.Reset(uuid); err != nil {
			t.Fatal(err)
		}
		expect("GPU reset", time.Minute, 0, 1, 0, 1)
		if !slices.Contains(warned, reasonDriverMissing) || !slices.Contains(warned, reasonLeftOut) {
			t.Errorf("Events %q, want one about the driver and one about the GPU", warned)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// While the driver is away nothing is said to be gone for good.
func TestDriverAwayIsNoReasonToGiveUp(t *testing.T) {
	m, node, _ := simulated(t, "t4x1")
	if err := m.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	uuid := m.Inventory().devices[0].UUID()
	if err := node.Unload(); err != nil {
		t.Fatal(err)
	}
	if err := m.Scan(t.Context()); !errors.Is(err, nvml.ErrDriver) {
		t.Fatalf("scan: %v", err)
	}
	if _, err := m.Device(t.Context(), uuid); !errors.Is(err, claims.ErrRetry) || errors.Is(err, claims.ErrPermanent) {
		t.Errorf("find a GPU while the driver is away: %v", err)
	}
}

// A GPU that was put into MIG mode cannot be given as a whole any more.
func TestGPUInMIGMode(t *testing.T) {
	m, node, _ := simulated(t, "h100x8")
	if err := m.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	uuid := m.Inventory().devices[0].UUID()
	if _, err := node.SetMIGMode(t.Context(), uuid, true); err != nil {
		t.Fatal(err)
	}
	if err := m.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Device(t.Context(), uuid); !errors.Is(err, claims.ErrPermanent) || !strings.Contains(err.Error(), "MIG mode") {
		t.Errorf("find: %v", err)
	}
	if p := m.Inventory().problems; len(p) != 1 || !strings.Contains(p[0], "no MIG devices") {
		t.Errorf("problems %q (report R040)", p)
	}
}
