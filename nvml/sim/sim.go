// Package sim is a machine with NVIDIA GPUs made of rules, for tests and for
// clusters without GPUs. It is never part of the product binary.
//
// A machine is loaded from a profile ([LoadProfile], testdata/machines) and
// behaves as the driver does: MIG placements overlap or not, an instance in use
// refuses to go, a lost GPU stays lost until it is reset. [Machine] implements
// nvml.Node, so that code under test can use it in process; package sim/wire
// serves the same machine on a socket, where sim/libnvml (a libnvidia-ml.so.1)
// and sim/bin (nvidia-smi and others) find it.
//
//	profile, err := sim.LoadProfile("h100x8", "testdata/machines")
//	m, err := sim.New(profile)
//	m.Lose("GPU-…")                             // the GPU falls off the bus
//	m.Hold("CreateGpuInstance", "", false)      // creations stop …
//	m.Release("CreateGpuInstance", sim.Success) // … and go on
//
// Everything that can be done to a machine from outside is also a line of text
// ([Machine.Control]), which is what gpusim ctl sends; [Verbs] documents them.
package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"nvdra/nvml"
)

// A Machine is a simulated machine. Its methods may be called from several
// goroutines. Its state outlives every client.
type Machine struct {
	profile *Profile

	mu       sync.Mutex
	state    State
	raised   chan struct{} // closed and replaced when an event is raised
	holds    []*hold
	counts   map[string]int
	onChange func(View) error
}

var _ nvml.Node = (*Machine)(nil)

// New makes the machine a profile describes.
func New(p *Profile) (*Machine, error) {
	s, err := newState(p)
	if err != nil {
		return nil, fmt.Errorf("make machine %s: %w", p.Name, err)
	}
	return Restore(p, s), nil
}

// Restore makes a machine with a state from [ParseState].
func Restore(p *Profile, s State) *Machine {
	return &Machine{profile: p, state: s, raised: make(chan struct{}), counts: map[string]int{}}
}

// Profile is what the machine was made from. It must not be changed.
func (m *Machine) Profile() *Profile { return m.profile }

// A View is a machine at one moment, for those who show it: the files below a
// driver root.
type View struct {
	Profile *Profile
	State   State
}

// A GPUView is one GPU at one moment.
type GPUView struct {
	Index     int // among the GPUs that are there
	Board     *Board
	Product   *Product
	Minor     int
	Lost      bool // it has fallen off the bus
	Instances []GPUInstance
}

// GPUs are the GPUs that have not been hot-removed, in order of PCI address.
func (v View) GPUs() []GPUView {
	var gpus []GPUView
	for i := range v.State.GPUs {
		g, b := &v.State.GPUs[i], &v.Profile.GPUs[i]
		if g.Removed {
			continue
		}
		product := v.Profile.Products[b.Product]
		gpus = append(gpus, GPUView{Index: len(gpus), Board: b, Product: &product, Minor: g.Minor, Lost: g.Lost, Instances: g.Instances})
	}
	return gpus
}

// View is the machine now.
func (m *Machine) View() View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view()
}

func (m *Machine) view() View { return View{Profile: m.profile, State: m.state.clone()} }

// OnChange has f called now and after every change, before the client that
// caused the change gets its answer: as the kernel's files change before an
// ioctl returns. Calls do not overlap. f must not call the machine. When f
// returns an error, the change stands and the client gets UNKNOWN.
func (m *Machine) OnChange(f func(View) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onChange = f
	return f(m.view())
}

// change does something to the machine from outside.
func (m *Machine) change(act func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := act(); err != nil {
		return err
	}
	return m.tell()
}

// tell reports a change. The caller holds the lock.
func (m *Machine) tell() error {
	if m.onChange == nil {
		return nil
	}
	if err := m.onChange(m.view()); err != nil {
		return fmt.Errorf("show the changed machine: %w", err)
	}
	return nil
}

// A gpu is a GPU during one call: its fixed and its changing half. It is valid
// only while the lock is held.
type gpu struct {
	*Board
	*Product
	state *gpuState
	index int // among the GPUs that are there
}

// find looks a GPU up, lost or not, unless it has been removed.
func (m *Machine) find(uuid nvml.UUID) (gpu, bool) {
	index := 0
	for i := range m.state.GPUs {
		g := &m.state.GPUs[i]
		if g.Removed {
			continue
		}
		if g.UUID == uuid {
			b := &m.profile.GPUs[i]
			product := m.profile.Products[b.Product]
			return gpu{b, &product, g, index}, true
		}
		index++
	}
	return gpu{}, false
}

// present lists the UUIDs of the GPUs that are there, lost or not, in NVML's order.
func (m *Machine) present() []nvml.UUID {
	var uuids []nvml.UUID
	for i := range m.state.GPUs {
		if !m.state.GPUs[i].Removed {
			uuids = append(uuids, m.state.GPUs[i].UUID)
		}
	}
	return uuids
}

// system does an NVML call that is about no GPU.
func (m *Machine) system(ctx context.Context, call string, act func() Return) error {
	if err := m.enter(ctx, call, ""); err != nil {
		return err
	}
	if err := m.act(false, act); err != nil {
		return err
	}
	return m.after(ctx, call, "")
}

// read does an NVML call that only looks at a GPU.
func (m *Machine) read(ctx context.Context, call string, uuid nvml.UUID, act func(gpu) Return) error {
	return m.do(ctx, call, uuid, false, act)
}

// write does an NVML call that changes a GPU.
func (m *Machine) write(ctx context.Context, call string, uuid nvml.UUID, act func(gpu) Return) error {
	return m.do(ctx, call, uuid, true, act)
}

// do is the way of every NVML call about a GPU: faults and holds first, then what
// is true of all calls (no driver, no such GPU, lost GPU), then the call itself.
func (m *Machine) do(ctx context.Context, call string, uuid nvml.UUID, changes bool, act func(gpu) Return) error {
	if err := m.enter(ctx, call, uuid); err != nil {
		return err
	}
	err := m.act(changes, func() Return {
		g, found := m.find(uuid)
		if !found {
			return NotFound
		}
		if g.state.Lost {
			return GPUIsLost
		}
		return act(g)
	})
	if err != nil {
		return err
	}
	return m.after(ctx, call, uuid)
}

// enter applies faults and holds to a call.
func (m *Machine) enter(ctx context.Context, call string, uuid nvml.UUID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.before(ctx, call, uuid)
}

// act does a call under the lock, unless there is no driver.
func (m *Machine) act(changes bool, act func() Return) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.Gone {
		return DriverNotLoaded
	}
	if r := act(); r != Success {
		return r
	}
	if changes {
		if err := m.tell(); err != nil {
			return errors.Join(Unknown, err)
		}
	}
	return nil
}

// migDevice finds a MIG device by UUID: its GPU, GPU instance and compute
// instance. The GPU may be lost. The caller holds the lock.
func (m *Machine) migDevice(uuid nvml.UUID) (gpu, *GPUInstance, *ComputeInstance, bool) {
	for _, parent := range m.present() {
		g, _ := m.find(parent)
		for i := range g.state.Instances {
			gi := &g.state.Instances[i]
			for j := range gi.Compute {
				if gi.Compute[j].UUID == uuid {
					return g, gi, &gi.Compute[j], true
				}
			}
		}
	}
	return gpu{}, nil, nil, false
}

// migList is the MIG devices of a GPU in NVML's order: by GPU instance, then by
// compute instance.
func (g gpu) migList() []migRef {
	var list []migRef
	for i := range g.state.Instances {
		gi := &g.state.Instances[i]
		for j := range gi.Compute {
			list = append(list, migRef{gi, &gi.Compute[j]})
		}
	}
	return list
}

// A migRef is a MIG device during one call.
type migRef struct {
	gi *GPUInstance
	ci *ComputeInstance
}

// busy says that a process uses the GPU or one of its MIG devices.
func (g gpu) busy() bool {
	return len(g.state.Processes) > 0 || slices.ContainsFunc(g.migList(), func(r migRef) bool { return len(r.ci.Processes) > 0 })
}

// setMIGMode switches MIG mode, or has it switched at the next reset.
func (g gpu) setMIGMode(enable bool) (activation, r Return) {
	switch {
	case g.Product.MIG == nil:
		return Success, NotSupported
	case enable == g.state.MIG:
		g.state.PendingMIG = enable
		return Success, Success
	case len(g.state.Instances) > 0:
		return InUse, InUse
	case g.Product.MIG.ResetToToggle:
		g.state.PendingMIG = enable
		return ResetRequired, Success
	case g.busy():
		g.state.PendingMIG = enable
		return InUse, Success
	}
	g.state.MIG, g.state.PendingMIG = enable, enable
	return Success, Success
}

// reset resets the GPU: pending modes take effect, instances go.
func (g gpu) reset() {
	g.state.Lost = false
	g.state.MIG = g.state.PendingMIG
	g.state.Instances, g.state.Processes, g.state.ComputeMode = nil, nil, 0
}
