package nvmltest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"nvdra/nvml"
)

func testUnknownUUIDs(t *testing.T, open Open) {
	node := open(t, "dgx-a100").Node
	checkUnknown(t, node)
	// A MIG device is no GPU, and a GPU no MIG device.
	for _, g := range healthy(t, node) {
		if _, err := node.GPU(call(t), g.UUID); err != nil {
			t.Error(err)
		}
		wantError(t, "DestroyMIG of a GPU", node.DestroyMIG(call(t), g.UUID), nvml.ErrNotFound, string(g.UUID))
		for _, d := range g.MIGDevices {
			_, err := node.GPU(call(t), d.UUID)
			wantError(t, "GPU of a MIG device", err, nvml.ErrNotFound, string(d.UUID))
		}
	}
}

// checkUnknown asks for what no machine has.
func checkUnknown(t *testing.T, node nvml.Node) {
	t.Helper()
	for _, uuid := range []nvml.UUID{
		"",
		"0",
		"GPU-",
		"GPU-ffffffff-ffff-ffff-ffff-ffffffffffff",
		"MIG-ffffffff-ffff-ffff-ffff-ffffffffffff",
	} {
		_, err := node.GPU(call(t), uuid)
		wantError(t, "GPU", err, nvml.ErrNotFound, string(uuid))
		_, err = node.MIGProfiles(call(t), uuid)
		wantError(t, "MIGProfiles", err, nvml.ErrNotFound, string(uuid))
		_, err = node.SetMIGMode(call(t), uuid, true)
		wantError(t, "SetMIGMode", err, nvml.ErrNotFound, string(uuid))
		_, err = node.CreateMIG(call(t), nvml.Placement{GPU: uuid, ProfileID: 19})
		wantError(t, "CreateMIG", err, nvml.ErrNotFound, string(uuid))
		wantError(t, "DestroyMIG", node.DestroyMIG(call(t), uuid), nvml.ErrNotFound, string(uuid))
	}
}

func testCloseAndUseAgain(t *testing.T, open Open) { checkReuse(t, open(t, "h100x8").Node) }

func checkReuse(t *testing.T, node nvml.Node) {
	t.Helper()
	before := scan(t, node)
	for range 2 {
		for range 2 {
			if err := node.Close(); err != nil {
				t.Error(err)
			}
		}
		same(t, "scan after Close", scan(t, node), before)
	}
}

func testConcurrency(t *testing.T, open Open) {
	node := open(t, "h100x8").Node
	checkConcurrency(t, node)
	// Readers do not disturb writers, and writers on different GPUs not each other.
	gpus := healthy(t, node)
	var wg sync.WaitGroup
	for _, g := range gpus {
		wg.Go(func() {
			if _, err := node.SetMIGMode(call(t), g.UUID, true); err != nil {
				t.Error(err)
				return
			}
			for range 3 {
				d, err := node.CreateMIG(call(t), nvml.Placement{GPU: g.UUID, ProfileID: 9, Start: 4})
				if err != nil {
					t.Error(err)
					return
				}
				if err := node.DestroyMIG(call(t), d.UUID); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 3 {
				if s, err := node.Scan(call(t)); err != nil || len(s.GPUs) != len(gpus) {
					t.Errorf("scan among writers: %d GPUs, broken %v, %v", len(s.GPUs), s.Broken, err)
				}
			}
		})
	}
	wg.Wait()
	for _, g := range healthy(t, node) {
		if len(g.MIGDevices) > 0 {
			t.Errorf("%s: left %+v", g.UUID, g.MIGDevices)
		}
	}
}

// checkConcurrency reads from many goroutines, with Close in between.
func checkConcurrency(t *testing.T, node nvml.Node) {
	t.Helper()
	want := scan(t, node)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 3 {
				s, err := node.Scan(call(t))
				if err != nil {
					t.Error(err)
					return
				}
				same(t, "scan among others", s, want)
				for _, g := range want.GPUs {
					got, err := node.GPU(call(t), g.UUID)
					if err != nil {
						t.Error(err)
						return
					}
					same(t, "GPU among others", got, g)
				}
				if i == 0 {
					if err := node.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// testCanceled makes every call with a context that has ended: it must say
// so, and do nothing.
func testCanceled(t *testing.T, open Open) {
	node := open(t, "h100x8").Node
	before := healthy(t, node)
	gpu := before[0].UUID
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, scanErr := node.Scan(ctx)
	_, gpuErr := node.GPU(ctx, gpu)
	_, profilesErr := node.MIGProfiles(ctx, gpu)
	_, modeErr := node.SetMIGMode(ctx, gpu, true)
	_, createErr := node.CreateMIG(ctx, nvml.Placement{GPU: gpu, ProfileID: 19})
	for what, err := range map[string]error{"Scan": scanErr, "GPU": gpuErr, "MIGProfiles": profilesErr, "SetMIGMode": modeErr, "CreateMIG": createErr} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want that the context was canceled", what, err)
		}
	}
	same(t, "machine", healthy(t, node), before)
}
