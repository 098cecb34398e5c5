package sim

import (
	"fmt"
	"strconv"
	"strings"

	"nvdra/nvml"
)

// An instanceHandle names a GPU instance, or a compute instance in it, on the
// wire. Serial tells it from an earlier instance in the same place, so that a
// client with an old handle is not served the new one.
type instanceHandle struct {
	gpu    nvml.UUID
	gi     int
	ci     int // -1 for the GPU instance itself
	serial int
}

// String is "gi:<gpu>:<gi>:<serial>" or "ci:<gpu>:<gi>:<ci>:<serial>".
func (h instanceHandle) String() string {
	if h.ci < 0 {
		return fmt.Sprintf("gi:%s:%d:%d", h.gpu, h.gi, h.serial)
	}
	return fmt.Sprintf("ci:%s:%d:%d:%d", h.gpu, h.gi, h.ci, h.serial)
}

// parseHandle reads what String wrote.
func parseHandle(s string) (instanceHandle, bool) {
	f := strings.Split(s, ":")
	h := instanceHandle{ci: -1}
	var numbers []*int
	switch {
	case f[0] == "gi" && len(f) == 4:
		numbers = []*int{&h.gi, &h.serial}
	case f[0] == "ci" && len(f) == 5:
		numbers = []*int{&h.gi, &h.ci, &h.serial}
	default:
		return h, false
	}
	h.gpu = nvml.UUID(f[1])
	for i, n := range numbers {
		v, err := strconv.ParseUint(f[2+i], 10, 31)
		if err != nil {
			return h, false
		}
		*n = int(v)
	}
	return h, true
}

// instance finds the GPU instance of the handle; it is gone when another has
// taken its place.
func (g gpu) instance(h instanceHandle) *GPUInstance {
	gi := g.state.instance(h.gi)
	if gi == nil || h.ci < 0 && gi.Serial != h.serial {
		return nil
	}
	return gi
}

// computeInstance finds the compute instance of the handle.
func (g gpu) computeInstance(h instanceHandle) (*GPUInstance, *ComputeInstance) {
	gi := g.instance(h)
	if gi == nil {
		return nil, nil
	}
	ci := gi.compute(h.ci)
	if ci == nil || ci.Serial != h.serial {
		return nil, nil
	}
	return gi, ci
}

// nextSerial numbers a new instance.
func (m *Machine) nextSerial() int {
	m.state.Serial++
	return m.state.Serial
}
