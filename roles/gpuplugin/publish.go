package gpuplugin

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"nvdra/roles/gpuplugin/device"
)

// maxDevices is how many devices fit in one slice without taints or counters
// (ResourceSliceMaxDevices in resource.k8s.io/v1).
const maxDevices = resourceapi.ResourceSliceMaxDevices

// resources is what the node publishes: one pool named after the node, with
// the devices in the order of the inventory, in as few slices as the API
// server accepts. A node with nothing to offer publishes one empty slice, so
// that "none" can be told from "not reported yet".
func resources(nodeName string, devices []device.Device) resourceslice.DriverResources {
	var all []resourceslice.Slice
	for len(devices) > maxDevices {
		all = append(all, slice(devices[:maxDevices]))
		devices = devices[maxDevices:]
	}
	all = append(all, slice(devices))
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{nodeName: {Slices: all}}}
}

func slice(devices []device.Device) resourceslice.Slice {
	var s resourceslice.Slice
	for _, d := range devices {
		s.Devices = append(s.Devices, d.Slice())
	}
	return s
}
