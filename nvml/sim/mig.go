package sim

import (
	"crypto/rand"
	"fmt"
	"slices"

	"nvdra/nvml"
)

// A GPUInstance is a part of a GPU: some of its memory slices and engines.
type GPUInstance struct {
	ID      int               `json:"id"` // unique on the GPU; follows from the placement
	Profile int               `json:"profile"`
	Start   int               `json:"start"`
	Size    int               `json:"size"`
	Serial  int               `json:"serial"` // tells this instance from an earlier one with the same ID
	Compute []ComputeInstance `json:"compute,omitempty"`
}

// A ComputeInstance is a part of a GPU instance that programs can use. It is
// what NVML calls a MIG device.
type ComputeInstance struct {
	ID        int       `json:"id"` // unique in the GPU instance
	Profile   int       `json:"profile"`
	Start     int       `json:"start"`
	Size      int       `json:"size"` // compute slices
	Serial    int       `json:"serial"`
	UUID      nvml.UUID `json:"uuid"`
	Processes []Process `json:"processes,omitempty"`
}

// A Process is a program that uses a GPU or a MIG device.
type Process struct {
	PID    int    `json:"pid"`
	Memory uint64 `json:"memory"` // bytes
}

// ciIndex is the number NVML gives the compute instance profile with so many
// slices; it is the profile's id, too.
var ciIndex = map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}

// ciSlices turns ciIndex around; 0 for a profile this simulator has not.
func ciSlices(index int) int {
	for slices, i := range ciIndex {
		if i == index {
			return slices
		}
	}
	return 0
}

// ciStarts lists where a compute instance of c slices can begin in a GPU
// instance of g; nil when it does not fit one at all. The sizes 3 and 4 both
// begin at multiples of 4.
func ciStarts(g, c int) []int {
	if c == g {
		return []int{0}
	}
	if c < 1 || c > g || 2*c > g+1 {
		return nil
	}
	step := map[int]int{1: 1, 2: 2, 3: 4, 4: 4}[c]
	if step == 0 {
		return nil
	}
	var starts []int
	for s := 0; s+c <= g; s += step {
		starts = append(starts, s)
	}
	return starts
}

// overlap says that two ranges share a slice.
func overlap(startA, sizeA, startB, sizeB int) bool {
	return startA < startB+sizeB && startB < startA+sizeA
}

// newUUID is a random UUID after the prefix "MIG-" or "".
func newUUID(prefix string) nvml.UUID {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return nvml.UUID(fmt.Sprintf("%s%x-%x-%x-%x-%x", prefix, b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// mayCreate says whether a GPU instance of the profile can be made at start:
// the placement is one of the profile's, overlaps nothing, there are not as
// many of this profile as there can be, and the engines suffice.
func (g *gpuState) mayCreate(t *MIGTable, p *MIGProfile, start int) Return {
	if !slices.Contains(p.Starts, start) {
		return InvalidArgument
	}
	used, same := engines{}, 0
	for _, gi := range g.Instances {
		if overlap(gi.Start, gi.Size, start, p.Size) {
			return InsufficientResources
		}
		if gi.Profile == p.ID {
			same++
		}
		used = used.plus(t.byID(gi.Profile).engines())
	}
	if same >= p.Instances || !t.whole().engines().covers(used.plus(p.engines())) {
		return InsufficientResources
	}
	return Success
}

// remaining is how many more GPU instances of the profile could be made.
func (g *gpuState) remaining(t *MIGTable, p *MIGProfile) int {
	trial := gpuState{Instances: slices.Clone(g.Instances)}
	n := 0
	for _, start := range p.Starts {
		if trial.mayCreate(t, p, start) == Success {
			trial.Instances = append(trial.Instances, GPUInstance{Profile: p.ID, Start: start, Size: p.Size})
			n++
		}
	}
	return n
}

// create makes a GPU instance at start, or at the first free placement when
// start is negative.
func (g *gpuState) create(t *MIGTable, p *MIGProfile, start, serial int) (*GPUInstance, Return) {
	if start < 0 {
		i := slices.IndexFunc(p.Starts, func(s int) bool { return g.mayCreate(t, p, s) == Success })
		if i < 0 {
			return nil, InsufficientResources
		}
		start = p.Starts[i]
	}
	if r := g.mayCreate(t, p, start); r != Success {
		return nil, r
	}
	gi := GPUInstance{ID: t.instanceID(start, p.Size), Profile: p.ID, Start: start, Size: p.Size, Serial: serial}
	at, _ := slices.BinarySearchFunc(g.Instances, gi.ID, func(a GPUInstance, id int) int { return a.ID - id })
	g.Instances = slices.Insert(g.Instances, at, gi)
	return &g.Instances[at], Success
}

// instance finds a GPU instance by id.
func (g *gpuState) instance(id int) *GPUInstance {
	i := slices.IndexFunc(g.Instances, func(gi GPUInstance) bool { return gi.ID == id })
	if i < 0 {
		return nil
	}
	return &g.Instances[i]
}

// destroy removes a GPU instance that has no compute instance.
func (g *gpuState) destroy(id int) Return {
	gi := g.instance(id)
	if gi == nil {
		return NotFound
	}
	if len(gi.Compute) > 0 {
		return InUse
	}
	g.Instances = slices.DeleteFunc(g.Instances, func(gi GPUInstance) bool { return gi.ID == id })
	return Success
}

// mayCreate says whether a compute instance of c slices can begin at start.
func (gi *GPUInstance) mayCreate(giSlices, c, start int) Return {
	if !slices.Contains(ciStarts(giSlices, c), start) {
		return InvalidArgument
	}
	for _, ci := range gi.Compute {
		if overlap(ci.Start, ci.Size, start, c) {
			return InsufficientResources
		}
	}
	return Success
}

// remaining is how many more compute instances of c slices could be made.
func (gi *GPUInstance) remaining(giSlices, c int) int {
	n := 0
	for _, start := range ciStarts(giSlices, c) {
		if gi.mayCreate(giSlices, c, start) == Success {
			n++
		}
	}
	return n
}

// create makes a compute instance of c slices at start, or at the first free
// place when start is negative.
func (gi *GPUInstance) create(giSlices, c, start, serial int, uuid nvml.UUID) (*ComputeInstance, Return) {
	if start < 0 {
		starts := ciStarts(giSlices, c)
		i := slices.IndexFunc(starts, func(s int) bool { return gi.mayCreate(giSlices, c, s) == Success })
		if i < 0 {
			return nil, InsufficientResources
		}
		start = starts[i]
	}
	if r := gi.mayCreate(giSlices, c, start); r != Success {
		return nil, r
	}
	id := 0
	for gi.compute(id) != nil {
		id++
	}
	ci := ComputeInstance{ID: id, Profile: ciIndex[c], Start: start, Size: c, Serial: serial, UUID: uuid}
	at, _ := slices.BinarySearchFunc(gi.Compute, id, func(a ComputeInstance, id int) int { return a.ID - id })
	gi.Compute = slices.Insert(gi.Compute, at, ci)
	return &gi.Compute[at], Success
}

// compute finds a compute instance by id.
func (gi *GPUInstance) compute(id int) *ComputeInstance {
	i := slices.IndexFunc(gi.Compute, func(ci ComputeInstance) bool { return ci.ID == id })
	if i < 0 {
		return nil
	}
	return &gi.Compute[i]
}

// destroyCompute removes a compute instance nothing uses.
func (gi *GPUInstance) destroyCompute(id int) Return {
	ci := gi.compute(id)
	if ci == nil {
		return NotFound
	}
	if len(ci.Processes) > 0 {
		return InUse
	}
	gi.Compute = slices.DeleteFunc(gi.Compute, func(ci ComputeInstance) bool { return ci.ID == id })
	return Success
}

// addDevice makes the MIG device a profile asks for at start-up. Its serial
// numbers are filled in by the machine.
func addDevice(g *gpuState, t *MIGTable, d BoardMIG) (*GPUInstance, error) {
	i := slices.IndexFunc(t.Profiles, func(p MIGProfile) bool { return p.Name == d.Profile })
	if i < 0 {
		return nil, fmt.Errorf("the product has no such MIG profile")
	}
	p := &t.Profiles[i]
	gi, r := g.create(t, p, d.Start, 0)
	if r != Success {
		return nil, r
	}
	if _, r := gi.create(p.Slices, p.Slices, 0, 0, d.UUID); r != Success {
		return nil, r
	}
	return gi, nil
}
