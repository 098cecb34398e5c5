package device

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"nvdra/nvml"
)

// A MIG is a MIG device that exists.
type MIG struct {
	mig    nvml.MIGDevice
	parent nvml.GPU
	name   string
	c      Context
}

func newMIG(c Context, parent nvml.GPU, m nvml.MIGDevice) MIG {
	return MIG{mig: m, parent: parent, name: MIGName(c.number(parent.PCI, parent.Minor), m.Profile, m.ProfileID, m.Start), c: c}
}

// MIGName is "gpu-<gpu>-mig-<profile>-<profile id>-<first slice>", the name of
// the MIG device of that profile at that place, whether it exists or not.
func MIGName(gpu int, profile string, profileID, start int) string {
	return fmt.Sprintf("gpu-%d-mig-%s-%d-%d", gpu, dnsLabel(profile), profileID, start)
}

// dnsLabel makes a profile name fit for a device name: "1g.10gb+me" becomes
// "1g10gb-me".
func dnsLabel(profile string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(profile) {
		switch {
		case r == '.':
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-")
}

// Name is as [MIGName] says.
func (m MIG) Name() string { return m.name }

// Kind is [KindMIG].
func (m MIG) Kind() Kind { return KindMIG }

// UUID is the MIG device's.
func (m MIG) UUID() nvml.UUID { return m.mig.UUID }

// Parent is the GPU it is part of.
func (m MIG) Parent() nvml.GPU { return m.parent }

// Device is what NVML says of it.
func (m MIG) Device() nvml.MIGDevice { return m.mig }

// Occupies is its memory slices of the parent.
func (m MIG) Occupies() []string { return MIGOccupies(m.parent.PCI, m.mig.Start, m.mig.Size) }

// MIGOccupies names the memory slices that a MIG device of that size at that
// place has of the GPU at that PCI address.
func MIGOccupies(pci string, start, size int) []string {
	var all []string
	for i := start; i < start+size; i++ {
		all = append(all, fmt.Sprintf("%s/slice-%d", pci, i))
	}
	return all
}

// Slice is how the MIG device is advertised.
func (m MIG) Slice() resourceapi.Device {
	a := attributes{}
	a.text("type", string(KindMIG))
	a.text("uuid", string(m.mig.UUID))
	a.text("parentUUID", string(m.parent.UUID))
	a.text("profile", m.mig.Profile)
	a.inherited(m.c, m.parent)
	r := m.mig.Resources
	capacity := capacities{}
	capacity.bytes("memory", r.MemoryMiB<<20)
	capacity.count("multiprocessors", r.Multiprocessors)
	capacity.count("copyEngines", r.CopyEngines)
	capacity.count("decoders", r.Decoders)
	capacity.count("encoders", r.Encoders)
	capacity.count("jpegEngines", r.JPEGEngines)
	capacity.count("ofaEngines", r.OFAEngines)
	for i := m.mig.Start; i < m.mig.Start+m.mig.Size; i++ {
		capacity.count(fmt.Sprintf("memorySlice%d", i), 1)
	}
	return resourceapi.Device{Name: m.name, Attributes: a, Capacity: capacity}
}
