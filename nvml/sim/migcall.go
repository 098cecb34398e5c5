package sim

import "strings"

// migCalls is the part of the table that is about MIG.
var migCalls = map[string]call{
	"DeviceGetMigMode": ask("DeviceGetMigMode", "", "current pending", func(g gpu, a *arguments) ([]any, Return) {
		if g.Product.MIG == nil {
			return nil, NotSupported
		}
		return []any{number(g.state.MIG), number(g.state.PendingMIG)}, Success
	}),
	"DeviceSetMigMode": gpuCall("DeviceSetMigMode", "mode", "activation", true, false,
		func(m *Machine, g gpu, _ *migRef, a *arguments) ([]any, Return) {
			mode := a.number()
			if !a.done() || mode > 1 {
				return nil, InvalidArgument
			}
			activation, r := g.setMIGMode(mode == 1)
			return []any{int(activation)}, r
		}),
	"DeviceGetMaxMigDeviceCount": ask("DeviceGetMaxMigDeviceCount", "", "count", func(g gpu, a *arguments) ([]any, Return) {
		if g.Product.MIG == nil || !g.state.MIG {
			return []any{0}, Success
		}
		return []any{g.Product.MIG.MaxDevices}, Success
	}),
	// The client picks by index, among those it can see.
	"DeviceGetMigDeviceHandleByIndex": ask("DeviceGetMigDeviceHandleByIndex", "", "{uuid giCap ciCap}…", func(g gpu, a *arguments) (out []any, _ Return) {
		if g.Product.MIG == nil {
			return nil, NotSupported
		}
		for _, ref := range g.migList() {
			out = append(out, ref.ci.UUID, GICap(g.state.Minor, ref.gi.ID), CICap(g.state.Minor, ref.gi.ID, ref.ci.ID))
		}
		return out, Success
	}),
	"DeviceGetDeviceHandleFromMigDeviceHandle": onlyMIG("DeviceGetDeviceHandleFromMigDeviceHandle", "gpu", func(g gpu, ref migRef) []any {
		return []any{g.UUID}
	}),
	"DeviceGetGpuInstanceId": onlyMIG("DeviceGetGpuInstanceId", "id", func(g gpu, ref migRef) []any {
		return []any{ref.gi.ID}
	}),
	"DeviceGetComputeInstanceId": onlyMIG("DeviceGetComputeInstanceId", "id", func(g gpu, ref migRef) []any {
		return []any{ref.ci.ID}
	}),
	"DeviceGetAttributes": onlyMIG("DeviceGetAttributes", "sm ce dec enc jpeg ofa giSlices ciSlices memoryMiB", func(g gpu, ref migRef) []any {
		p := g.Product.MIG.byID(ref.gi.Profile)
		return []any{ciSM(p, ref.ci.Size), p.CE, p.Dec, p.Enc, p.JPEG, p.OFA, p.Slices, ref.ci.Size, p.MemoryMiB}
	}),
	"DeviceGetGpuInstanceProfileInfo":     profileInfo("DeviceGetGpuInstanceProfileInfo", "index", giProfileCount, (*MIGTable).byIndex),
	"DeviceGetGpuInstanceProfileInfoById": profileInfo("DeviceGetGpuInstanceProfileInfoById", "id", 256, (*MIGTable).byID),
	"DeviceGetGpuInstancePossiblePlacements": profileCall("DeviceGetGpuInstancePossiblePlacements", "", "{start size}…", false,
		func(m *Machine, g gpu, p *MIGProfile, a *arguments) (out []any, _ Return) {
			for _, start := range p.Starts {
				out = append(out, start, p.Size)
			}
			return out, Success
		}),
	"DeviceGetGpuInstanceRemainingCapacity": profileCall("DeviceGetGpuInstanceRemainingCapacity", "", "count", false,
		func(m *Machine, g gpu, p *MIGProfile, a *arguments) ([]any, Return) {
			if !g.state.MIG {
				return []any{0}, Success
			}
			return []any{g.state.remaining(g.Product.MIG, p)}, Success
		}),
	"DeviceCreateGpuInstance": profileCall("DeviceCreateGpuInstance", "[start size]", "gpuInstance", true,
		func(m *Machine, g gpu, p *MIGProfile, a *arguments) ([]any, Return) {
			start, size := a.numberOr(-1), a.numberOr(p.Size)
			if !a.done() || size != p.Size {
				return nil, InvalidArgument
			}
			gi, r := m.createInstance(g, p, start)
			if r != Success {
				return nil, r
			}
			return []any{instanceHandle{g.UUID, gi.ID, -1, gi.Serial}}, Success
		}),
	"DeviceGetGpuInstances": profileCall("DeviceGetGpuInstances", "", "gpuInstance…", false,
		func(m *Machine, g gpu, p *MIGProfile, a *arguments) (out []any, _ Return) {
			for _, gi := range g.state.Instances {
				if gi.Profile == p.ID {
					out = append(out, instanceHandle{g.UUID, gi.ID, -1, gi.Serial})
				}
			}
			return out, Success
		}),
	"DeviceGetGpuInstanceById": ask("DeviceGetGpuInstanceById", "id", "gpuInstance", func(g gpu, a *arguments) ([]any, Return) {
		gi := g.state.instance(a.number())
		if gi == nil {
			return nil, NotFound
		}
		return []any{instanceHandle{g.UUID, gi.ID, -1, gi.Serial}}, Success
	}),
	"GpuInstanceGetInfo": instanceCall("GpuInstanceGetInfo", "", "gpu id profile start size", false, false,
		func(m *Machine, g gpu, ref migRef, a *arguments) ([]any, Return) {
			return []any{g.UUID, ref.gi.ID, ref.gi.Profile, ref.gi.Start, ref.gi.Size}, Success
		}),
	"GpuInstanceDestroy": instanceCall("GpuInstanceDestroy", "", "", true, false,
		func(m *Machine, g gpu, ref migRef, a *arguments) ([]any, Return) {
			return nil, m.destroyInstance(g, ref.gi.ID)
		}),
	"GpuInstanceGetComputeInstanceProfileInfo": instanceCall("GpuInstanceGetComputeInstanceProfileInfo", "index engineIndex",
		"id slices instances sm ce dec enc jpeg ofa name", false, false,
		func(m *Machine, g gpu, ref migRef, a *arguments) ([]any, Return) {
			index, engine := a.number(), a.number()
			if !a.done() || index >= ciProfileCount || engine != 0 {
				return nil, InvalidArgument
			}
			p, c := g.Product.MIG.byID(ref.gi.Profile), ciSlices(index)
			n := len(ciStarts(p.Slices, c))
			if c == 0 || n == 0 {
				return nil, NotSupported
			}
			name := "MIG " + g.migDeviceName(migRef{ref.gi, &ComputeInstance{Size: c}})
			return []any{index, c, n, ciSM(p, c), p.CE, p.Dec, p.Enc, p.JPEG, p.OFA, name}, Success
		}),
	"GpuInstanceGetComputeInstanceRemainingCapacity": ciProfileCall("GpuInstanceGetComputeInstanceRemainingCapacity", "", "count", false,
		func(m *Machine, g gpu, ref migRef, c int, a *arguments) ([]any, Return) {
			return []any{ref.gi.remaining(g.Product.MIG.byID(ref.gi.Profile).Slices, c)}, Success
		}),
	"GpuInstanceGetComputeInstancePossiblePlacements": ciProfileCall("GpuInstanceGetComputeInstancePossiblePlacements", "", "{start size}…", false,
		func(m *Machine, g gpu, ref migRef, c int, a *arguments) (out []any, _ Return) {
			for _, start := range ciStarts(g.Product.MIG.byID(ref.gi.Profile).Slices, c) {
				out = append(out, start, c)
			}
			return out, Success
		}),
	"GpuInstanceCreateComputeInstance": ciProfileCall("GpuInstanceCreateComputeInstance", "[start size]", "computeInstance", true,
		func(m *Machine, g gpu, ref migRef, c int, a *arguments) ([]any, Return) {
			start, size := a.numberOr(-1), a.numberOr(c)
			if !a.done() || size != c {
				return nil, InvalidArgument
			}
			ci, r := m.createCompute(g, ref.gi, c, start)
			if r != Success {
				return nil, r
			}
			return []any{instanceHandle{g.UUID, ref.gi.ID, ci.ID, ci.Serial}}, Success
		}),
	"GpuInstanceGetComputeInstances": ciProfileCall("GpuInstanceGetComputeInstances", "", "computeInstance…", false,
		func(m *Machine, g gpu, ref migRef, c int, a *arguments) (out []any, _ Return) {
			for _, ci := range ref.gi.Compute {
				if ci.Size == c {
					out = append(out, instanceHandle{g.UUID, ref.gi.ID, ci.ID, ci.Serial})
				}
			}
			return out, Success
		}),
	"GpuInstanceGetComputeInstanceById": instanceCall("GpuInstanceGetComputeInstanceById", "id", "computeInstance", false, false,
		func(m *Machine, g gpu, ref migRef, a *arguments) ([]any, Return) {
			ci := ref.gi.compute(a.number())
			if ci == nil {
				return nil, NotFound
			}
			return []any{instanceHandle{g.UUID, ref.gi.ID, ci.ID, ci.Serial}}, Success
		}),
	"ComputeInstanceGetInfo": instanceCall("ComputeInstanceGetInfo", "", "gpu gpuInstance id profile start size", false, true,
		func(m *Machine, g gpu, ref migRef, a *arguments) ([]any, Return) {
			return []any{g.UUID, instanceHandle{g.UUID, ref.gi.ID, -1, ref.gi.Serial}, ref.ci.ID, ref.ci.Profile, ref.ci.Start, ref.ci.Size}, Success
		}),
	"ComputeInstanceDestroy": instanceCall("ComputeInstanceDestroy", "", "", true, true,
		func(m *Machine, g gpu, ref migRef, a *arguments) ([]any, Return) {
			return nil, m.destroyCompute(g, ref.gi, ref.ci.ID)
		}),
}

// onlyMIG is a call that makes sense for MIG devices only.
func onlyMIG(name, reply string, act func(g gpu, ref migRef) []any) call {
	return gpuCall(name, "", reply, false, true, func(_ *Machine, g gpu, mig *migRef, a *arguments) ([]any, Return) {
		if mig == nil {
			return nil, NotSupported
		}
		return act(g, *mig), Success
	})
}

// profileInfo is the call that describes a GPU instance profile, found one way
// or the other.
func profileInfo(name, key string, limit int, find func(*MIGTable, int) *MIGProfile) call {
	return ask(name, key, "id slices instances sm ce dec enc jpeg ofa memoryMiB name", func(g gpu, a *arguments) ([]any, Return) {
		n := a.number()
		if a.bad || n >= limit {
			return nil, InvalidArgument
		}
		if g.Product.MIG == nil {
			return nil, NotSupported
		}
		p := find(g.Product.MIG, n)
		if p == nil {
			return nil, NotSupported
		}
		return []any{p.ID, p.Slices, p.Instances, p.SM, p.CE, p.Dec, p.Enc, p.JPEG, p.OFA, p.MemoryMiB, "MIG " + p.Name}, Success
	})
}

// profileCall is a call about one GPU instance profile of a GPU.
func profileCall(name, args, reply string, changes bool, act func(m *Machine, g gpu, p *MIGProfile, a *arguments) ([]any, Return)) call {
	return gpuCall(name, strings.TrimSpace("profile "+args), reply, changes, false, func(m *Machine, g gpu, _ *migRef, a *arguments) ([]any, Return) {
		id := a.number()
		if a.bad {
			return nil, InvalidArgument
		}
		if g.Product.MIG == nil {
			return nil, NotSupported
		}
		p := g.Product.MIG.byID(id)
		if p == nil {
			return nil, InvalidArgument
		}
		return act(m, g, p, a)
	})
}

// ciProfileCall is a call about one compute instance profile of a GPU instance;
// act gets its number of slices.
func ciProfileCall(name, args, reply string, changes bool, act func(m *Machine, g gpu, ref migRef, c int, a *arguments) ([]any, Return)) call {
	return instanceCall(name, strings.TrimSpace("profile "+args), reply, changes, false, func(m *Machine, g gpu, ref migRef, a *arguments) ([]any, Return) {
		c := ciSlices(a.number())
		if a.bad || c == 0 || len(ciStarts(g.Product.MIG.byID(ref.gi.Profile).Slices, c)) == 0 {
			return nil, InvalidArgument
		}
		return act(m, g, ref, c, a)
	})
}

// ciSM is the share of a GPU instance's multiprocessors that c slices get.
func ciSM(p *MIGProfile, c int) int { return p.SM * c / p.Slices }

// createInstance makes a GPU instance; start is negative for any placement.
func (m *Machine) createInstance(g gpu, p *MIGProfile, start int) (*GPUInstance, Return) {
	if !g.state.MIG {
		return nil, NotSupported
	}
	gi, r := g.state.create(g.Product.MIG, p, start, m.nextSerial())
	if r == Success {
		m.migChanged(g)
	}
	return gi, r
}

func (m *Machine) destroyInstance(g gpu, id int) Return {
	r := g.state.destroy(id)
	if r == Success {
		m.migChanged(g)
	}
	return r
}

func (m *Machine) createCompute(g gpu, gi *GPUInstance, c, start int) (*ComputeInstance, Return) {
	ci, r := gi.create(g.Product.MIG.byID(gi.Profile).Slices, c, start, m.nextSerial(), newUUID("MIG-"))
	if r == Success {
		m.migChanged(g)
	}
	return ci, r
}

func (m *Machine) destroyCompute(g gpu, gi *GPUInstance, id int) Return {
	r := gi.destroyCompute(id)
	if r == Success {
		m.migChanged(g)
	}
	return r
}

// migChanged raises the event for a changed set of instances.
func (m *Machine) migChanged(g gpu) {
	m.raise(Event{GPU: g.UUID, Type: EventMIGConfigChange, GPUInst: noInstance, CompInst: noInstance})
}
