package device

import (
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nvdra/nvml"
)

// The standard attribute names of k8s.io/dynamic-resource-allocation/deviceattribute.
const (
	attrPCIBusID = "resource.kubernetes.io/pciBusID"
	attrPCIeRoot = "resource.kubernetes.io/pcieRoot"
	attrNUMANode = "resource.kubernetes.io/numaNode"
)

// maxString is the longest string and version value the API server accepts
// (DeviceAttributeMaxValueLength in resource.k8s.io/v1).
const maxString = resourceapi.DeviceAttributeMaxValueLength

// attributes collects attributes and leaves out what is missing: the API
// server refuses empty or overlong values, and would refuse the whole slice
// with them.
type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

func (a attributes) text(name, value string) {
	if value == "" || len(value) > maxString {
		return
	}
	a[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{StringValue: &value}
}

func (a attributes) version(name, value string) {
	v, ok := semver(value)
	if !ok || len(v) > maxString {
		return
	}
	a[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{VersionValue: &v}
}

func (a attributes) number(name string, value *int) {
	if value == nil {
		return
	}
	v := int64(*value)
	a[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{IntValue: &v}
}

// inherited sets what a MIG device has in common with its GPU.
func (a attributes) inherited(c Context, gpu nvml.GPU) {
	place := c.Places[gpu.PCI]
	a.text("productName", gpu.Product)
	a.text("brand", gpu.Brand)
	a.text("architecture", gpu.Architecture)
	if gpu.ComputeMajor > 0 {
		a.version("cudaComputeCapability", strconv.Itoa(gpu.ComputeMajor)+"."+strconv.Itoa(gpu.ComputeMinor))
	}
	a.version("driverVersion", c.Driver.Version)
	if v := c.Driver.CUDAVersion; v > 0 {
		// nvmlSystemGetCudaDriverVersion_v2: 1000*major + 10*minor.
		a.version("cudaDriverVersion", strconv.Itoa(v/1000)+"."+strconv.Itoa(v%1000/10))
	}
	a.text("addressingMode", gpu.AddressingMode)
	a.text(attrPCIBusID, gpu.PCI)
	a.text(attrPCIeRoot, place.PCIeRoot)
	a.number(attrNUMANode, place.NUMANode)
}

// semver turns a dotted version of one to three numbers into the three-part
// form without leading zeros that the API server demands: "580.95.05" becomes
// "580.95.5". Anything else is not a version.
func semver(s string) (string, bool) {
	parts := strings.Split(s, ".")
	if len(parts) > 3 {
		return "", false
	}
	for len(parts) < 3 {
		parts = append(parts, "0")
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 32)
		if err != nil {
			return "", false
		}
		parts[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(parts, "."), true
}

// capacities collects capacities.
type capacities map[resourceapi.QualifiedName]resourceapi.DeviceCapacity

func (c capacities) bytes(name string, n uint64) {
	if n == 0 || n > 1<<62 {
		return // not reported, or nonsense: a claim that asks for it does not match
	}
	c[resourceapi.QualifiedName(name)] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.BinarySI)}
}

func (c capacities) count(name string, n int) {
	c[resourceapi.QualifiedName(name)] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}
