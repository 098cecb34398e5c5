package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"nvdra/nvml"
)

// A State is everything about a machine that can change. It is kept on file by
// gpusim, so that what happened outlives it.
type State struct {
	Version int    `json:"version"` // 1
	Machine string `json:"machine"` // name of the profile it belongs to
	Driver  string `json:"driver"`
	CUDA    int    `json:"cuda"`
	// Gone means that the driver is not loaded.
	Gone bool `json:"gone,omitempty"`
	// Generation counts how often the driver has been loaded. A client of an
	// earlier generation has lost its session.
	Generation int     `json:"generation"`
	BootID     string  `json:"bootID"`
	Serial     int     `json:"serial"`    // last serial number given to an instance
	LastEvent  int     `json:"lastEvent"` // sequence number of the newest event
	Events     []Event `json:"events,omitempty"`
	Faults     []Fault `json:"faults,omitempty"`
	// GPUs are in the order of the profile, hot-removed ones included.
	GPUs []gpuState `json:"gpus"`
}

// stateVersion is the only format of State there has been.
const stateVersion = 1

// A gpuState is what can change about one GPU.
type gpuState struct {
	UUID        nvml.UUID     `json:"uuid"`
	Minor       int           `json:"minor"`
	Lost        bool          `json:"lost,omitempty"`
	Removed     bool          `json:"removed,omitempty"`
	MIG         bool          `json:"mig,omitempty"`
	PendingMIG  bool          `json:"pendingMIG,omitempty"`
	Persistence bool          `json:"persistence,omitempty"`
	ComputeMode int           `json:"computeMode,omitempty"`
	Processes   []Process     `json:"processes,omitempty"`
	Instances   []GPUInstance `json:"instances,omitempty"`
}

// newGPUState is the GPU as the profile describes it, without its MIG devices.
func newGPUState(b *Board) gpuState {
	return gpuState{UUID: b.UUID, Minor: b.Minor, MIG: b.MIG, PendingMIG: b.MIG}
}

// newState is the state a machine starts with.
func newState(p *Profile) (State, error) {
	s := State{
		Version: stateVersion, Machine: p.Name, Driver: p.Driver, CUDA: p.cudaNumber(),
		Generation: 1, BootID: string(newUUID("")),
	}
	for i := range p.GPUs {
		b := &p.GPUs[i]
		g := newGPUState(b)
		for _, d := range b.Devices {
			product := p.Products[b.Product]
			gi, err := addDevice(&g, product.MIG, d)
			if err != nil {
				return State{}, fmt.Errorf("gpu %d: MIG device %s: %w", i, d.Profile, err)
			}
			s.Serial += 2
			gi.Serial, gi.Compute[0].Serial = s.Serial-1, s.Serial
		}
		s.GPUs = append(s.GPUs, g)
	}
	return s, nil
}

// ParseState reads a state written by an earlier run, for the same profile.
func ParseState(p *Profile, data []byte) (State, error) {
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, fmt.Errorf("parse simulator state: %w", err)
	}
	if s.Version != stateVersion {
		return State{}, fmt.Errorf("parse simulator state: version is %d, this program writes %d; remove the file to start afresh", s.Version, stateVersion)
	}
	if err := s.fits(p); err != nil {
		return State{}, fmt.Errorf("parse simulator state: %w; remove the file to start afresh", err)
	}
	return s, nil
}

// fits checks that the state can be that of the profile, so that the rules can
// rely on it.
func (s *State) fits(p *Profile) error {
	if s.Machine != p.Name {
		return fmt.Errorf("it is of machine %q, not %q", s.Machine, p.Name)
	}
	if len(s.GPUs) != len(p.GPUs) {
		return fmt.Errorf("it has %d GPUs, the machine has %d", len(s.GPUs), len(p.GPUs))
	}
	minors := map[int]bool{}
	for i := range s.GPUs {
		g, b := &s.GPUs[i], &p.GPUs[i]
		if g.UUID != b.UUID {
			return fmt.Errorf("gpu %d is %s, not %s", i, g.UUID, b.UUID)
		}
		if g.Minor < 0 || g.Minor >= GPUsWithMinors || minors[g.Minor] {
			return fmt.Errorf("gpu %d has minor %d, which is taken or out of range", i, g.Minor)
		}
		minors[g.Minor] = true
		if err := g.fits(p.Products[b.Product].MIG); err != nil {
			return fmt.Errorf("gpu %d: %w", i, err)
		}
	}
	for _, f := range s.Faults {
		if _, err := canonicalCall(f.Call); err != nil {
			return err
		}
	}
	if !slices.IsSortedFunc(s.Events, func(a, b Event) int { return a.Seq - b.Seq }) {
		return errors.New("its events are out of order")
	}
	return nil
}

// fits checks that the instances could have been made on an empty GPU.
func (g *gpuState) fits(t *MIGTable) error {
	if t == nil {
		if len(g.Instances) > 0 || g.MIG || g.PendingMIG {
			return errors.New("it is in MIG mode, which the product has not")
		}
		return nil
	}
	if len(g.Instances) > 0 && !g.MIG {
		return errors.New("it has GPU instances but MIG mode is off")
	}
	rebuilt := gpuState{}
	for _, gi := range g.Instances {
		p := t.byID(gi.Profile)
		if p == nil {
			return fmt.Errorf("GPU instance %d has unknown profile %d", gi.ID, gi.Profile)
		}
		again, r := rebuilt.create(t, p, max(gi.Start, 0), gi.Serial)
		if r != Success || again.ID != gi.ID || again.Size != gi.Size {
			return fmt.Errorf("GPU instance %d cannot be at slice %d", gi.ID, gi.Start)
		}
		ids := map[int]bool{}
		for _, ci := range gi.Compute {
			c := ciSlices(ci.Profile)
			if c == 0 || c != ci.Size || ci.ID < 0 || ci.ID > 7 || ids[ci.ID] || !migUUIDForm.MatchString(string(ci.UUID)) {
				return fmt.Errorf("GPU instance %d has a bad compute instance %d", gi.ID, ci.ID)
			}
			ids[ci.ID] = true
			if _, r := again.create(p.Slices, c, max(ci.Start, 0), ci.Serial, ci.UUID); r != Success {
				return fmt.Errorf("GPU instance %d: compute instance %d cannot be at slice %d", gi.ID, ci.ID, ci.Start)
			}
		}
	}
	return nil
}

// clone is a copy that shares nothing with s.
func (s *State) clone() State {
	c := *s
	c.Events, c.Faults, c.GPUs = slices.Clone(s.Events), slices.Clone(s.Faults), slices.Clone(s.GPUs)
	for i := range c.GPUs {
		g := &c.GPUs[i]
		g.Processes, g.Instances = slices.Clone(g.Processes), slices.Clone(g.Instances)
		for j := range g.Instances {
			gi := &g.Instances[j]
			gi.Compute = slices.Clone(gi.Compute)
			for k := range gi.Compute {
				gi.Compute[k].Processes = slices.Clone(gi.Compute[k].Processes)
			}
		}
	}
	return c
}
