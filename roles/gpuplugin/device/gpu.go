package device

import (
	"strconv"

	resourceapi "k8s.io/api/resource/v1"

	"nvdra/nvml"
)

// A GPU is a whole physical GPU.
type GPU struct {
	gpu  nvml.GPU
	name string
	c    Context
}

func newGPU(c Context, gpu nvml.GPU) GPU {
	return GPU{gpu: gpu, name: "gpu-" + strconv.Itoa(c.number(gpu.PCI, gpu.Minor)), c: c}
}

// Name is "gpu-" and the GPU's number on this node.
func (g GPU) Name() string { return g.name }

// Kind is [KindGPU].
func (g GPU) Kind() Kind { return KindGPU }

// UUID is the GPU's.
func (g GPU) UUID() nvml.UUID { return g.gpu.UUID }

// Parent is the GPU itself.
func (g GPU) Parent() nvml.GPU { return g.gpu }

// Occupies is the PCI function, and with it everything on the GPU.
func (g GPU) Occupies() []string { return []string{g.gpu.PCI} }

// Slice is how the GPU is advertised.
func (g GPU) Slice() resourceapi.Device {
	a := attributes{}
	a.text("type", string(KindGPU))
	a.text("uuid", string(g.gpu.UUID))
	a.inherited(g.c, g.gpu)
	capacity := capacities{}
	capacity.bytes("memory", g.gpu.MemoryBytes)
	return resourceapi.Device{Name: g.name, Attributes: a, Capacity: capacity}
}
