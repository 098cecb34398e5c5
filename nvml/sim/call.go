package sim

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"nvdra/nvml"
)

// A call is one NVML function as clients outside the process call it: text in,
// text out.
type call struct {
	args  string // names of the arguments, for the reader
	reply string // names of the fields of the answer
	run   func(m *Machine, ctx context.Context, a *arguments) ([]any, error)
}

// Call does the NVML call of that name. session is what Init answered to the
// caller, or "" for callers that keep no session. The error is a [Return], or
// the context's.
func (m *Machine) Call(ctx context.Context, session, name string, args []string) ([]string, error) {
	c, known := calls[name]
	if !known {
		return nil, FunctionNotFound
	}
	if session != "" {
		if err := m.checkSession(session); err != nil {
			return nil, err
		}
	}
	a := &arguments{left: args}
	out, err := c.run(m, ctx, a)
	if err != nil {
		return nil, err
	}
	fields := make([]string, len(out))
	for i, v := range out {
		fields[i] = fmt.Sprint(v)
	}
	return fields, nil
}

// session names what a client was told at Init: the generation of the driver
// and its version. The caller holds the lock.
func (m *Machine) session() string { return fmt.Sprintf("%d/%s", m.state.Generation, m.state.Driver) }

// checkSession refuses clients of a driver that has been replaced since.
func (m *Machine) checkSession(session string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.state.Gone:
		return DriverNotLoaded
	case session == m.session():
		return nil
	case !strings.HasSuffix(session, "/"+m.state.Driver):
		return LibRMVersionMismatch
	}
	return Uninitialized
}

// arguments takes the arguments of a call one by one. After one is missing or
// malformed, bad is set and the rest are zero.
type arguments struct {
	left []string
	bad  bool
}

func (a *arguments) text() string {
	if len(a.left) == 0 {
		a.bad = true
		return ""
	}
	s := a.left[0]
	a.left = a.left[1:]
	return s
}

func (a *arguments) uuid() nvml.UUID { return nvml.UUID(a.text()) }

// number reads a non-negative number.
func (a *arguments) number() int {
	n, err := strconv.ParseUint(a.text(), 10, 32)
	if err != nil {
		a.bad = true
	}
	return int(n)
}

// numberOr reads a number if there is one.
func (a *arguments) numberOr(otherwise int) int {
	if len(a.left) == 0 {
		return otherwise
	}
	return a.number()
}

// handle reads the handle of a GPU or compute instance.
func (a *arguments) handle(compute bool) instanceHandle {
	h, ok := parseHandle(a.text())
	if !ok || (h.ci >= 0) != compute {
		a.bad = true
	}
	return h
}

// done says that there were neither too few arguments nor too many.
func (a *arguments) done() bool { return !a.bad && len(a.left) == 0 }

// gpuCall is a call whose first argument is a GPU or a MIG device. A MIG device
// is looked up in its GPU; the calls that make no sense for one say so.
func gpuCall(name, args, reply string, changes bool, onMIG bool, act func(m *Machine, g gpu, mig *migRef, a *arguments) ([]any, Return)) call {
	return call{args: strings.TrimSpace("device " + args), reply: reply, run: func(m *Machine, ctx context.Context, a *arguments) ([]any, error) {
		uuid := a.uuid()
		parent, isMIG := m.parentOf(uuid)
		var out []any
		err := m.do(ctx, name, parent, changes, func(g gpu) Return {
			var mig *migRef
			if isMIG {
				for _, ref := range g.migList() {
					if ref.ci.UUID == uuid {
						mig = &ref
					}
				}
				if mig == nil {
					return NotFound
				}
				if !onMIG {
					return NotSupported
				}
			}
			var r Return
			out, r = act(m, g, mig, a)
			if !a.done() {
				return InvalidArgument
			}
			return r
		})
		return out, err
	}}
}

// parentOf is the GPU of a MIG device, or the GPU itself.
func (m *Machine) parentOf(uuid nvml.UUID) (parent nvml.UUID, isMIG bool) {
	if !strings.HasPrefix(string(uuid), "MIG-") {
		return uuid, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if g, _, _, ok := m.migDevice(uuid); ok {
		return g.UUID, true
	}
	return uuid, true
}

// ask is a gpuCall that looks and does not touch.
func ask(name, args, reply string, act func(g gpu, a *arguments) ([]any, Return)) call {
	return gpuCall(name, args, reply, false, false, func(_ *Machine, g gpu, _ *migRef, a *arguments) ([]any, Return) { return act(g, a) })
}

// instanceCall is a call whose first argument is a GPU or compute instance.
func instanceCall(name, args, reply string, changes, compute bool, act func(m *Machine, g gpu, ref migRef, a *arguments) ([]any, Return)) call {
	first := "gpuInstance "
	if compute {
		first = "computeInstance "
	}
	return call{args: strings.TrimSpace(first + args), reply: reply, run: func(m *Machine, ctx context.Context, a *arguments) ([]any, error) {
		h := a.handle(compute)
		if a.bad {
			return nil, InvalidArgument
		}
		var out []any
		err := m.do(ctx, name, h.gpu, changes, func(g gpu) Return {
			ref := migRef{gi: g.instance(h)}
			if compute {
				ref.gi, ref.ci = g.computeInstance(h)
			}
			if ref.gi == nil || compute && ref.ci == nil {
				return NotFound
			}
			var r Return
			out, r = act(m, g, ref, a)
			return r
		})
		return out, err
	}}
}

// calls is every NVML function the simulator answers, by the function's name
// without nvml in front and _v2 behind.
var calls = merge(deviceCalls, migCalls)

func merge(tables ...map[string]call) map[string]call {
	all := map[string]call{}
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

// deviceCalls is the part of the table that is not about MIG.
var deviceCalls = map[string]call{
	"Init": {"", "session driver cuda", func(m *Machine, ctx context.Context, a *arguments) (out []any, _ error) {
		return out, m.system(ctx, "Init", func() Return {
			out = []any{m.session(), m.state.Driver, m.state.CUDA}
			return Success
		})
	}},
	"SystemGetDriverVersion": {"", "version", func(m *Machine, ctx context.Context, a *arguments) (out []any, _ error) {
		return out, m.system(ctx, "SystemGetDriverVersion", func() Return { out = []any{m.state.Driver}; return Success })
	}},
	"SystemGetNVMLVersion": {"", "version", func(m *Machine, ctx context.Context, a *arguments) (out []any, _ error) {
		return out, m.system(ctx, "SystemGetNVMLVersion", func() Return {
			out = []any{fmt.Sprintf("%d.%s", m.state.CUDA/1000, m.state.Driver)}
			return Success
		})
	}},
	"SystemGetCudaDriverVersion": {"", "version", func(m *Machine, ctx context.Context, a *arguments) (out []any, _ error) {
		return out, m.system(ctx, "SystemGetCudaDriverVersion", func() Return { out = []any{m.state.CUDA}; return Success })
	}},
	"DeviceGetCount": {"", "{uuid minor}…", func(m *Machine, ctx context.Context, a *arguments) (out []any, _ error) {
		return out, m.system(ctx, "DeviceGetCount", func() Return {
			for _, uuid := range m.present() {
				g, _ := m.find(uuid)
				out = append(out, uuid, g.state.Minor)
			}
			return Success
		})
	}},
	"DeviceGetHandleByIndex": gpuCall("DeviceGetHandleByIndex", "", "", false, false,
		func(*Machine, gpu, *migRef, *arguments) ([]any, Return) { return nil, Success }),
	"DeviceGetHandleByUUID": gpuCall("DeviceGetHandleByUUID", "", "gpu [giCap ciCap]", false, true,
		func(m *Machine, g gpu, mig *migRef, a *arguments) ([]any, Return) {
			if mig == nil {
				return []any{g.UUID}, Success
			}
			return []any{g.UUID, GICap(g.state.Minor, mig.gi.ID), CICap(g.state.Minor, mig.gi.ID, mig.ci.ID)}, Success
		}),
	"DeviceGetHandleByPciBusId": {"pci", "gpu", func(m *Machine, ctx context.Context, a *arguments) (out []any, _ error) {
		pci, ok := canonicalPCI(a.text())
		if !ok || !a.done() {
			return nil, InvalidArgument
		}
		var uuid nvml.UUID
		m.mu.Lock()
		for _, u := range m.present() {
			if g, _ := m.find(u); g.PCI == pci {
				uuid = u
			}
		}
		m.mu.Unlock()
		if uuid == "" {
			return nil, NotFound
		}
		return []any{uuid}, m.read(ctx, "DeviceGetHandleByPciBusId", uuid, func(gpu) Return { return Success })
	}},
	"DeviceGetUUID": gpuCall("DeviceGetUUID", "", "uuid", false, true,
		func(m *Machine, g gpu, mig *migRef, a *arguments) ([]any, Return) {
			if mig != nil {
				return []any{mig.ci.UUID}, Success
			}
			return []any{g.UUID}, Success
		}),
	"DeviceGetName": gpuCall("DeviceGetName", "", "name", false, true,
		func(m *Machine, g gpu, mig *migRef, a *arguments) ([]any, Return) {
			if mig != nil {
				return []any{g.Name + " MIG " + g.migDeviceName(*mig)}, Success
			}
			return []any{g.Name}, Success
		}),
	"DeviceGetIndex": gpuCall("DeviceGetIndex", "", "index", false, true,
		func(m *Machine, g gpu, mig *migRef, a *arguments) ([]any, Return) {
			if mig == nil {
				return []any{g.index}, Success
			}
			for i, ref := range g.migList() {
				if ref.ci == mig.ci {
					return []any{i}, Success
				}
			}
			return nil, NotFound
		}),
	"DeviceGetMinorNumber": ask("DeviceGetMinorNumber", "", "minor", func(g gpu, a *arguments) ([]any, Return) {
		return []any{g.state.Minor}, Success
	}),
	"DeviceGetSerial": ask("DeviceGetSerial", "", "serial", func(g gpu, a *arguments) ([]any, Return) {
		if g.Serial == "" {
			return nil, NotSupported
		}
		return []any{g.Serial}, Success
	}),
	"DeviceGetModuleId": ask("DeviceGetModuleId", "", "module", func(g gpu, a *arguments) ([]any, Return) {
		if g.Module == 0 {
			return nil, NotSupported
		}
		return []any{g.Module}, Success
	}),
	"DeviceGetPciInfo": ask("DeviceGetPciInfo", "", "domain bus device deviceId subsystemId class subclass", func(g gpu, a *arguments) ([]any, Return) {
		domain, bus, dev := pciNumbers(g.PCI)
		return []any{domain, bus, dev, g.deviceID()<<16 | nvidiaVendor, g.subsystemID()<<16 | nvidiaVendor, 3, 2}, Success
	}),
	"DeviceGetBrand": ask("DeviceGetBrand", "", "brand", func(g gpu, a *arguments) ([]any, Return) {
		return []any{brands[g.Brand]}, Success
	}),
	"DeviceGetArchitecture": ask("DeviceGetArchitecture", "", "architecture", func(g gpu, a *arguments) ([]any, Return) {
		return []any{architectures[g.Architecture]}, Success
	}),
	"DeviceGetCudaComputeCapability": gpuCall("DeviceGetCudaComputeCapability", "", "major minor", false, true,
		func(m *Machine, g gpu, mig *migRef, a *arguments) ([]any, Return) {
			major, minor := g.computeCapability()
			return []any{major, minor}, Success
		}),
	"DeviceGetMemoryInfo": gpuCall("DeviceGetMemoryInfo", "", "total reserved free used", false, true,
		func(m *Machine, g gpu, mig *migRef, a *arguments) ([]any, Return) {
			total, reserved, used := g.memory(mig)
			return []any{total, reserved, total - reserved - used, used}, Success
		}),
	"DeviceGetAddressingMode": ask("DeviceGetAddressingMode", "", "mode", func(g gpu, a *arguments) ([]any, Return) {
		if g.AddressingMode == "" {
			return nil, NotSupported
		}
		return []any{addressingModes[g.AddressingMode]}, Success
	}),
	"DeviceGetComputeMode": ask("DeviceGetComputeMode", "", "mode", func(g gpu, a *arguments) ([]any, Return) {
		return []any{g.state.ComputeMode}, Success
	}),
	"DeviceSetComputeMode": gpuCall("DeviceSetComputeMode", "mode", "", true, false,
		func(m *Machine, g gpu, _ *migRef, a *arguments) ([]any, Return) {
			mode := a.number()
			switch {
			case !a.done() || mode > 3:
				return nil, InvalidArgument
			case mode == 1: // exclusive thread, which NVML has given up
				return nil, NotSupported
			case g.state.MIG:
				return nil, NotSupported
			}
			g.state.ComputeMode = mode
			return nil, Success
		}),
	"DeviceGetPersistenceMode": ask("DeviceGetPersistenceMode", "", "on", func(g gpu, a *arguments) ([]any, Return) {
		return []any{number(g.state.Persistence)}, Success
	}),
	"DeviceSetPersistenceMode": gpuCall("DeviceSetPersistenceMode", "on", "", true, false,
		func(m *Machine, g gpu, _ *migRef, a *arguments) ([]any, Return) {
			on := a.number()
			if !a.done() || on > 1 {
				return nil, InvalidArgument
			}
			g.state.Persistence = on == 1
			return nil, Success
		}),
	"DeviceGetDisplayMode": ask("DeviceGetDisplayMode", "", "on", func(g gpu, a *arguments) ([]any, Return) {
		return []any{0}, Success
	}),
	"DeviceGetDisplayActive": ask("DeviceGetDisplayActive", "", "on", func(g gpu, a *arguments) ([]any, Return) {
		return []any{0}, Success
	}),
	"DeviceGetVirtualizationMode": ask("DeviceGetVirtualizationMode", "", "mode", func(g gpu, a *arguments) ([]any, Return) {
		return []any{0}, Success
	}),
	"DeviceGetComputeRunningProcesses": gpuCall("DeviceGetComputeRunningProcesses", "", "{pid memory gi ci}…", false, true,
		func(m *Machine, g gpu, mig *migRef, a *arguments) (out []any, _ Return) {
			if mig == nil {
				for _, p := range g.state.Processes {
					out = append(out, p.PID, p.Memory, noInstance, noInstance)
				}
			}
			for _, ref := range g.migList() {
				if mig == nil || ref.ci == mig.ci {
					for _, p := range ref.ci.Processes {
						out = append(out, p.PID, p.Memory, ref.gi.ID, ref.ci.ID)
					}
				}
			}
			return out, Success
		}),
	"DeviceGetGpuFabricInfo": ask("DeviceGetGpuFabricInfo", "", "cluster status clique state healthMask healthSummary", func(g gpu, a *arguments) ([]any, Return) {
		f := g.Fabric
		if f == nil {
			return nil, NotSupported
		}
		state, cluster := fabricStates[f.State], strings.ReplaceAll(f.Cluster, "-", "")
		if f.State != "completed" {
			return []any{strings.Repeat("0", 32), 0, 0, state, 0, 0}, Success
		}
		return []any{cluster, 0, f.Clique, state, fabricHealthy, 1}, Success
	}),
	"DeviceReset": gpuCall("DeviceReset", "", "", true, false,
		func(m *Machine, g gpu, _ *migRef, a *arguments) ([]any, Return) {
			if !a.done() {
				return nil, InvalidArgument
			}
			if g.busy() {
				return nil, InUse
			}
			g.reset()
			return nil, Success
		}),
	"DeviceGetSupportedEventTypes": ask("DeviceGetSupportedEventTypes", "", "mask", func(g gpu, a *arguments) ([]any, Return) {
		return []any{supportedEvents}, Success
	}),
	"DeviceRegisterEvents": ask("DeviceRegisterEvents", "mask", "", func(g gpu, a *arguments) ([]any, Return) {
		if mask := a.number(); uint64(mask)&^supportedEvents != 0 {
			return nil, NotSupported
		}
		return nil, Success
	}),
	"EventSetCreate": {"", "seq", func(m *Machine, ctx context.Context, a *arguments) (out []any, _ error) {
		return out, m.system(ctx, "EventSetCreate", func() Return { out = []any{m.state.LastEvent}; return Success })
	}},
	"EventSetWait": {"seq timeoutMs {device mask}…", "seq device type data gi ci", func(m *Machine, ctx context.Context, a *arguments) ([]any, error) {
		seq, timeout := a.number(), a.number()
		var watches []Watch
		for len(a.left) > 0 {
			w := Watch{GPU: a.uuid()}
			w.Mask = uint64(a.number())
			watches = append(watches, w)
		}
		if !a.done() {
			return nil, InvalidArgument
		}
		if err := m.system(ctx, "EventSetWait", func() Return { return Success }); err != nil {
			return nil, err
		}
		e, err := m.waitEvent(ctx, seq, watches, time.Duration(timeout)*time.Millisecond)
		if err != nil {
			return nil, err
		}
		return []any{e.Seq, e.GPU, e.Type, e.Data, e.GPUInst, e.CompInst}, nil
	}},
}

// fabricHealthy is a health mask of a fabric in which nothing is wrong: full
// bandwidth, no recovery going on, correctly configured.
const fabricHealthy = 2<<0 | 2<<2 | 2<<4 | 2<<6 | 1<<8

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// memory is what the GPU or MIG device has in all, what of it is kept back and
// what processes use.
func (g gpu) memory(mig *migRef) (total, reserved, used uint64) {
	const mib = 1 << 20
	if mig != nil {
		total = g.Product.MIG.byID(mig.gi.Profile).MemoryMiB * mib
		for _, ci := range mig.gi.Compute {
			used += sum(ci.Processes)
		}
		return total, 0, min(used, total)
	}
	total, reserved, used = g.MemoryMiB*mib, g.ReservedMiB*mib, sum(g.state.Processes)
	for _, ref := range g.migList() {
		used += sum(ref.ci.Processes)
	}
	return total, reserved, min(used, total-reserved)
}

func sum(processes []Process) (bytes uint64) {
	for _, p := range processes {
		bytes += p.Memory
	}
	return bytes
}

// migDeviceName is "1g.10gb", or "1c.3g.40gb" for a part of a GPU instance.
func (g gpu) migDeviceName(ref migRef) string {
	p := g.Product.MIG.byID(ref.gi.Profile)
	if ref.ci.Size == p.Slices {
		return p.Name
	}
	return fmt.Sprintf("%dc.%s", ref.ci.Size, p.Name)
}

// nvidiaVendor is the PCI vendor id of NVIDIA.
const nvidiaVendor = 0x10de

// pciNumbers splits "0000:65:00.0".
func pciNumbers(pci string) (domain, bus, device uint64) {
	domain, _ = strconv.ParseUint(pci[0:4], 16, 32)
	bus, _ = strconv.ParseUint(pci[5:7], 16, 32)
	device, _ = strconv.ParseUint(pci[8:10], 16, 32)
	return domain, bus, device
}

// canonicalPCI turns the forms NVML accepts ("00000000:65:00.0", "0000:65:00.0",
// "65:00.0", any case) into the profile's.
func canonicalPCI(s string) (string, bool) {
	s = strings.ToLower(s)
	if strings.Count(s, ":") == 1 {
		s = "0000:" + s
	}
	if len(s) == len("00000000:65:00.0") && strings.HasPrefix(s, "0000") {
		s = s[4:]
	}
	return s, pciForm.MatchString(s)
}
