package gpuplugin

import (
	"fmt"
	"slices"

	"nvdra/nvml"
	"nvdra/roles/gpuplugin/device"
)

// An inventory is what the node can offer at one moment. It is a value: a new
// reading of the machine makes a new inventory.
type inventory struct {
	devices  []device.Device // in the order they are published
	byName   map[string]device.Device
	byUUID   map[nvml.UUID]device.Device
	gpus     map[nvml.UUID]nvml.GPU
	driver   nvml.Driver
	problems []string // what is left out and why, one sentence each, in stable order
}

// newInventory turns a reading of the machine into devices. It leaves out
// what cannot be offered and says so in problems; it never fails as a whole.
func newInventory(scan nvml.Scan, numbers map[string]int, places map[string]device.Place) *inventory {
	inv := &inventory{
		byName: map[string]device.Device{},
		byUUID: map[nvml.UUID]device.Device{},
		gpus:   map[nvml.UUID]nvml.GPU{},
		driver: scan.Driver,
	}
	c := device.Context{Driver: scan.Driver, Numbers: numbers, Places: places}
	for _, gpu := range scan.GPUs {
		inv.gpus[gpu.UUID] = gpu
		for _, err := range gpu.BrokenMIG {
			inv.problems = append(inv.problems, fmt.Sprintf("leave out a MIG device of %s: %v", gpu.UUID, err))
		}
		all := device.All(c, gpu)
		if gpu.MIG.Enabled && len(all) == 0 {
			inv.problems = append(inv.problems, fmt.Sprintf("leave out GPU %s: it is in MIG mode and has no MIG devices; create some or switch MIG mode off", gpu.UUID))
		}
		for _, d := range all {
			if other, taken := inv.byName[d.Name()]; taken {
				inv.problems = append(inv.problems, fmt.Sprintf("leave out %s: its name %s is taken by %s", d.UUID(), d.Name(), other.UUID()))
				continue
			}
			inv.devices = append(inv.devices, d)
			inv.byName[d.Name()] = d
			inv.byUUID[d.UUID()] = d
		}
	}
	for _, b := range scan.Broken {
		inv.problems = append(inv.problems, fmt.Sprintf("leave out GPU %s: %v", brokenName(b), b.Err))
	}
	slices.Sort(inv.problems)
	return inv
}

// brokenName is the best name there is for a GPU that could not be read.
func brokenName(b nvml.Broken) string {
	switch {
	case b.UUID != "" && b.PCI != "":
		return fmt.Sprintf("%s at %s", b.UUID, b.PCI)
	case b.UUID != "":
		return string(b.UUID)
	case b.PCI != "":
		return "at " + b.PCI
	}
	return fmt.Sprintf("with index %d", b.Index)
}
