package cdi

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// facts is as much of NVML as nvcdi asks for: the version of the driver and
// one GPU, from values we have already. No library is loaded.
//
// nvcdi takes nothing but a go-nvml library, and a real one has no place in a
// plugin's process: what the process has once called stays bound to the
// library of that moment, so a replaced driver would never be noticed, and a
// hanging one would take the plugin with it. (Package nvml/driver therefore
// loads it in a child process.)
//
// The embedded interface is nil. Any other method panics, which Driver.ask
// turns into an error; the tests go through all that nvcdi does here.
type facts struct {
	nvml.Interface
	version string
	gpu     gpuFacts
}

// Init begins a session, which is nothing here.
func (facts) Init() nvml.Return { return nvml.SUCCESS }

// Shutdown ends a session.
func (facts) Shutdown() nvml.Return { return nvml.SUCCESS }

// SystemGetDriverVersion returns the version; if it is not known, nvcdi takes
// it from the names of the libraries.
func (f facts) SystemGetDriverVersion() (string, nvml.Return) {
	if f.version == "" {
		return "", nvml.ERROR_NOT_SUPPORTED
	}
	return f.version, nvml.SUCCESS
}

// DeviceGetHandleByUUID knows the one GPU.
func (f facts) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	if uuid != f.gpu.uuid {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return f.gpu, nvml.SUCCESS
}

// gpuFacts is as much of a GPU as nvcdi asks for.
type gpuFacts struct {
	nvml.Device
	uuid  string
	minor int
	pci   string
}

// IsMigDeviceHandle says that it is a whole GPU.
func (gpuFacts) IsMigDeviceHandle() (bool, nvml.Return) { return false, nvml.SUCCESS }

// GetIndex becomes a device name that nobody uses.
func (g gpuFacts) GetIndex() (int, nvml.Return) { return g.minor, nvml.SUCCESS }

// GetUUID returns the UUID.
func (g gpuFacts) GetUUID() (string, nvml.Return) { return g.uuid, nvml.SUCCESS }

// GetMinorNumber returns the N of /dev/nvidiaN.
func (g gpuFacts) GetMinorNumber() (int, nvml.Return) { return g.minor, nvml.SUCCESS }

// GetPciInfo returns the address, by which nvcdi finds the GPU's display
// nodes. No node has an empty address, so there are none if it is unknown.
func (g gpuFacts) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	var info nvml.PciInfo
	for i := 0; i < len(g.pci) && i < len(info.BusId)-1; i++ {
		info.BusId[i] = int8(g.pci[i])
	}
	return info, nvml.SUCCESS
}
