package sim

import (
	"errors"
	"fmt"
	"slices"

	"nvdra/nvml"
)

// errNoDevice says that a control verb named a device that is not there.
var errNoDevice = errors.New("the machine has no such device")

// onGPU changes a GPU from outside, lost or not.
func (m *Machine) onGPU(uuid nvml.UUID, act func(gpu) error) error {
	return m.change(func() error {
		g, ok := m.find(uuid)
		if !ok {
			return fmt.Errorf("%w: %s", errNoDevice, uuid)
		}
		return act(g)
	})
}

// Lose lets a GPU fall off the bus: XID 79, and GPU_IS_LOST until Reset.
func (m *Machine) Lose(uuid nvml.UUID) error {
	return m.onGPU(uuid, func(g gpu) error {
		g.state.Lost = true
		m.raise(Event{GPU: uuid, Type: EventXID, Data: 79, GPUInst: noInstance, CompInst: noInstance})
		return nil
	})
}

// Reset resets a GPU whatever its condition; nvidia-smi --gpu-reset, which goes
// through NVML, refuses while a process uses it.
func (m *Machine) Reset(uuid nvml.UUID) error {
	return m.onGPU(uuid, func(g gpu) error {
		g.reset()
		return nil
	})
}

// RaiseXID raises an XID on a GPU or a MIG device.
func (m *Machine) RaiseXID(device nvml.UUID, xid uint64) error {
	return m.change(func() error {
		e := Event{GPU: device, Type: EventXID, Data: xid, GPUInst: noInstance, CompInst: noInstance}
		if g, gi, ci, ok := m.migDevice(device); ok {
			e.GPU, e.GPUInst, e.CompInst = g.UUID, uint32(gi.ID), uint32(ci.ID)
		} else if _, ok := m.find(device); !ok {
			return fmt.Errorf("%w: %s", errNoDevice, device)
		}
		m.raise(e)
		return nil
	})
}

// processes is the list of processes of a GPU or MIG device. The caller holds
// the lock.
func (m *Machine) processes(device nvml.UUID) (*[]Process, error) {
	if _, _, ci, ok := m.migDevice(device); ok {
		return &ci.Processes, nil
	}
	if g, ok := m.find(device); ok {
		return &g.state.Processes, nil
	}
	return nil, fmt.Errorf("%w: %s", errNoDevice, device)
}

// Busy lets a process use a GPU or a MIG device.
func (m *Machine) Busy(device nvml.UUID, p Process) error {
	return m.change(func() error {
		list, err := m.processes(device)
		if err == nil {
			*list = append(*list, p)
		}
		return err
	})
}

// Idle ends the use of a device by one process, or by all when pid is 0.
func (m *Machine) Idle(device nvml.UUID, pid int) error {
	return m.change(func() error {
		list, err := m.processes(device)
		if err == nil {
			*list = slices.DeleteFunc(*list, func(p Process) bool { return pid == 0 || p.PID == pid })
		}
		return err
	})
}

// Remove takes a GPU out of the machine, and its MIG instances with it.
func (m *Machine) Remove(uuid nvml.UUID) error {
	return m.onGPU(uuid, func(g gpu) error {
		g.reset()
		g.state.Removed = true
		return nil
	})
}

// Add puts a removed GPU back.
func (m *Machine) Add(uuid nvml.UUID) error {
	return m.change(func() error {
		for i := range m.state.GPUs {
			if g := &m.state.GPUs[i]; g.UUID == uuid && g.Removed {
				g.Removed = false
				return nil
			}
		}
		return fmt.Errorf("%w that was removed: %s", errNoDevice, uuid)
	})
}

// Reboot restarts the machine. MIG instances do not survive, MIG mode does on
// GPUs that need a reset to change it and not on the others. When minors is not
// nil the GPUs that are there get these minor numbers, in order of PCI address.
func (m *Machine) Reboot(minors []int) error {
	return m.change(func() error {
		if minors != nil {
			if err := m.renumber(minors); err != nil {
				return err
			}
		}
		m.state.BootID = string(newUUID(""))
		m.restart()
		m.state.Gone = false
		m.state.Generation++
		return nil
	})
}

// forgetMode is what a driver start does to MIG mode: where it takes effect at
// once it is not kept, either.
func (g gpu) forgetMode() {
	if t := g.Product.MIG; t != nil && !t.ResetToToggle {
		g.state.PendingMIG = false
	}
}

// renumber gives out minors. The caller holds the lock.
func (m *Machine) renumber(minors []int) error {
	uuids := m.present()
	if len(minors) != len(uuids) {
		return fmt.Errorf("%d minors given for %d GPUs", len(minors), len(uuids))
	}
	taken := map[int]bool{}
	for i := range m.state.GPUs {
		if g := &m.state.GPUs[i]; g.Removed {
			taken[g.Minor] = true
		}
	}
	for _, n := range minors {
		if n < 0 || n >= GPUsWithMinors || taken[n] {
			return fmt.Errorf("minor %d is taken or not 0 to %d", n, GPUsWithMinors-1)
		}
		taken[n] = true
	}
	for i, uuid := range uuids {
		g, _ := m.find(uuid)
		g.state.Minor = minors[i]
	}
	return nil
}

// restart is what unloading the driver does to the GPUs. The caller holds the lock.
func (m *Machine) restart() {
	for _, uuid := range m.present() {
		g, _ := m.find(uuid)
		g.forgetMode()
		g.reset()
		g.state.Persistence = false
	}
}

// Unload unloads the driver. MIG instances go with it.
func (m *Machine) Unload() error {
	return m.change(func() error {
		m.restart()
		m.state.Gone = true
		close(m.raised) // those who wait for events notice
		m.raised = make(chan struct{})
		return nil
	})
}

// Load loads the driver again, in another version if one is given. Sessions
// opened before are void.
func (m *Machine) Load(version string) error {
	return m.change(func() error {
		if version != "" {
			if !versionForm.MatchString(version) {
				return fmt.Errorf("driver version %q must look like 580.95.05", version)
			}
			m.state.Driver = version
		}
		if !m.state.Gone {
			m.restart()
		}
		m.state.Gone = false
		m.state.Generation++
		return nil
	})
}
