// Package device says what the GPU plugin offers: GPUs and MIG devices, their
// names, their attributes and what they physically occupy. Everything here is
// computed from values; nothing reads the machine.
//
// There is one file per kind of device. To add one, copy gpu.go, implement
// [Device], and have the plugin's inventory produce it.
package device

import (
	resourceapi "k8s.io/api/resource/v1"

	"nvdra/nvml"
)

// DriverName is the DRA driver under which the devices are published.
const DriverName = "gpu.nvidia.com"

// A Kind is the value of the attribute "type", by which the DeviceClasses
// gpu.nvidia.com, mig.nvidia.com and vfio.gpu.nvidia.com select.
type Kind string

// The kinds of device.
const (
	KindGPU Kind = "gpu"
	KindMIG Kind = "mig"
)

// A Device is something a claim can be given: [GPU] or [MIG].
type Device interface {
	// Name is the device's name in the ResourceSlice.
	Name() string
	// Kind is the value of the attribute "type".
	Kind() Kind
	// UUID is the device's own NVML UUID.
	UUID() nvml.UUID
	// Parent is the physical GPU: the device itself for a GPU.
	Parent() nvml.GPU
	// Slice is how the device is advertised.
	Slice() resourceapi.Device
	// Occupies names the physical things that nobody else may have while this
	// device is in use. Names are paths: whoever holds "0000:65:00.0" holds
	// "0000:65:00.0/slice-3" too.
	Occupies() []string
}

// A Place is where a GPU sits in the machine, as the kernel tells it.
type Place struct {
	PCIeRoot string // "pci0000:64"; "" when unknown
	NUMANode *int   // nil when unknown
}

// A Context is what the attributes of every device of a node have in common.
type Context struct {
	Driver nvml.Driver
	// Numbers says which number each PCI address has in device names; see
	// package names. A GPU missing here is named by its minor number.
	Numbers map[string]int
	// Places says where each PCI address is.
	Places map[string]Place
}

// number is N of "gpu-N".
func (c Context) number(pci string, minor int) int {
	if n, ok := c.Numbers[pci]; ok {
		return n
	}
	return minor
}

// All lists the devices that the GPU offers. A GPU in MIG mode offers its MIG
// devices and never itself, since both would be the same silicon.
func All(c Context, gpu nvml.GPU) []Device {
	if !gpu.MIG.Enabled {
		return []Device{newGPU(c, gpu)}
	}
	var all []Device
	for _, m := range gpu.MIGDevices {
		all = append(all, newMIG(c, gpu, m))
	}
	return all
}
