package gpuplugin

import (
	"fmt"
	"testing"

	"nvdra/nvml"
)

func manyGPUs(n int) []nvml.GPU {
	var all []nvml.GPU
	for i := range n {
		all = append(all, nvml.GPU{UUID: nvml.UUID(fmt.Sprintf("GPU-%d", i)), Minor: i, PCI: fmt.Sprintf("0000:%02x:00.0", i)})
	}
	return all
}

// Slices keep to what the API server takes, whatever the number of devices,
// and their order is that of the inventory.
func TestSlicesAreChunked(t *testing.T) {
	for devices, slices := range map[int]int{0: 1, 1: 1, 128: 1, 129: 2, 255: 2, 256: 2} {
		inv := newInventory(nvml.Scan{GPUs: manyGPUs(devices)}, nil, nil)
		pool := resources("n1", inv.devices).Pools["n1"]
		if len(pool.Slices) != slices {
			t.Errorf("%d devices: %d slices, want %d", devices, len(pool.Slices), slices)
		}
		i := 0
		for _, s := range pool.Slices {
			if len(s.Devices) > maxDevices {
				t.Errorf("%d devices in one slice", len(s.Devices))
			}
			for _, d := range s.Devices {
				if d.Name != inv.devices[i].Name() {
					t.Fatalf("device %d is %s, want %s", i, d.Name, inv.devices[i].Name())
				}
				i++
			}
		}
		if i != devices {
			t.Errorf("%d devices published, want %d", i, devices)
		}
	}
}

// One GPU that answers badly is left out and reported; the others stay.
func TestBadGPUIsLeftOut(t *testing.T) {
	gpus := manyGPUs(3)
	gpus[1].MIG = nvml.MIGMode{Capable: true, Enabled: true}
	gpus[2].BrokenMIG = []error{fmt.Errorf("GPU instance 3 has no compute instance")}
	scan := nvml.Scan{GPUs: gpus, Broken: []nvml.Broken{{Index: 3, UUID: "GPU-bad", PCI: "0000:03:00.0", Err: nvml.ErrLost}, {Index: 4, Err: nvml.ErrLost}}}
	inv := newInventory(scan, nil, nil)
	if len(inv.devices) != 2 {
		t.Errorf("%d devices, want 2", len(inv.devices))
	}
	if len(inv.problems) != 4 {
		t.Errorf("problems: %q, want 4", inv.problems)
	}
	// A name that two GPUs claim goes to one of them, and the other is reported.
	twins := manyGPUs(2)
	twins[1].Minor = 0
	if inv := newInventory(nvml.Scan{GPUs: twins}, nil, nil); len(inv.devices) != 1 || len(inv.problems) != 1 {
		t.Errorf("%d devices, problems %q", len(inv.devices), inv.problems)
	}
}
