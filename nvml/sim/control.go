package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"nvdra/nvml"
)

// A Verb is one thing that can be done to a machine from outside.
type Verb struct {
	Name    string
	Args    string
	Doc     string
	Example string
	run     func(m *Machine, args []string) ([]string, error)
}

// Verbs is everything [Machine.Control] understands, in the order help prints it.
// DEVICE is a GPU by index, UUID or PCI address, or a MIG device by UUID; GPU the
// same without MIG devices; CALL an NVML function such as DeviceGetMemoryInfo,
// GetMemoryInfo or nvmlDeviceGetMemoryInfo.
func Verbs() []Verb {
	return []Verb{
		{"state", "", "print every GPU with its MIG devices, one a line", "state", (*Machine).ctlState},
		{"calls", "", "list the NVML calls that fail, delay and hold can name", "calls",
			func(*Machine, []string) ([]string, error) { return CallNames(), nil }},
		{"lose", "GPU", "let the GPU fall off the bus (XID 79); every call about it answers GPU_IS_LOST until reset", "lose 0",
			onGPU(func(m *Machine, gpu nvml.UUID, _ []string) error { return m.Lose(gpu) })},
		{"reset", "GPU", "reset the GPU: it is found again, MIG instances go, a pending MIG mode takes effect", "reset 0",
			onGPU(func(m *Machine, gpu nvml.UUID, _ []string) error { return m.Reset(gpu) })},
		{"xid", "DEVICE NUMBER", "raise an XID error event on a GPU or a MIG device", "xid 0 48", (*Machine).ctlXID},
		{"fail", "CALL CODE [gpu=GPU] [times=N]", "make a call answer an NVML error code, for ever or N times", "fail GetMemoryInfo NOT_SUPPORTED gpu=0", (*Machine).ctlFail},
		{"delay", "CALL DURATION [gpu=GPU]", "make a call take longer", "delay CreateGpuInstance 2s", (*Machine).ctlDelay},
		{"clear", "[CALL]", "take back fail and delay", "clear GetMemoryInfo",
			func(m *Machine, args []string) ([]string, error) { return nil, atMostOne(args, m.Clear) }},
		{"hold", "CALL [gpu=GPU] [after]", "stop a call before it does anything, or after it has taken effect but before its caller is told", "hold CreateGpuInstance", (*Machine).ctlHold},
		{"held", "CALL", "print how many calls are stopped now", "held CreateGpuInstance", (*Machine).ctlHeld},
		{"release", "[CALL] [with=CODE]", "let held calls go on, or answer a code instead", "release CreateGpuInstance", (*Machine).ctlRelease},
		{"busy", "DEVICE PID [MEMORY-MIB]", "let a process use a GPU or a MIG device", "busy MIG-… 4711 512", (*Machine).ctlBusy},
		{"idle", "DEVICE [PID]", "end the processes that use a GPU or a MIG device", "idle 0", (*Machine).ctlIdle},
		{"remove", "GPU", "take the GPU out of the machine", "remove 3",
			onGPU(func(m *Machine, gpu nvml.UUID, _ []string) error { return m.Remove(gpu) })},
		{"add", "GPU-UUID", "put a removed GPU back", "add GPU-…",
			func(m *Machine, args []string) ([]string, error) {
				if len(args) != 1 {
					return nil, errors.New("it takes one GPU UUID")
				}
				return nil, m.Add(nvml.UUID(args[0]))
			}},
		{"reboot", "[minors=N,N,…]", "restart the machine: new boot id, MIG instances gone, lost GPUs back; minors are given out anew when listed, in order of PCI address", "reboot minors=1,0,3,2", (*Machine).ctlReboot},
		{"unload", "", "unload the driver: every call answers DRIVER_NOT_LOADED", "unload",
			func(m *Machine, args []string) ([]string, error) { return nil, none(args, m.Unload) }},
		{"load", "[VERSION]", "load the driver again, perhaps in another version; sessions from before are void", "load 590.44.01",
			func(m *Machine, args []string) ([]string, error) { return nil, atMostOne(args, m.Load) }},
	}
}

// Control does what one line says: a verb and its arguments. It answers lines to
// print.
func (m *Machine) Control(args []string) ([]string, error) {
	if len(args) == 0 {
		return nil, errors.New("control simulator: no verb given")
	}
	for _, v := range Verbs() {
		if v.Name != args[0] {
			continue
		}
		out, err := v.run(m, args[1:])
		if err != nil {
			return nil, fmt.Errorf("control simulator: %s: %w", strings.Join(args, " "), err)
		}
		return out, nil
	}
	var names []string
	for _, v := range Verbs() {
		names = append(names, v.Name)
	}
	return nil, fmt.Errorf("control simulator: unknown verb %q; the verbs are %s", args[0], strings.Join(names, " "))
}

func none(args []string, f func() error) error {
	if len(args) > 0 {
		return errors.New("it takes no argument")
	}
	return f()
}

func atMostOne(args []string, f func(string) error) error {
	switch len(args) {
	case 0:
		return f("")
	case 1:
		return f(args[0])
	}
	return errors.New("it takes at most one argument")
}

// onGPU is a verb with a GPU as its only argument.
func onGPU(f func(m *Machine, gpu nvml.UUID, rest []string) error) func(*Machine, []string) ([]string, error) {
	return func(m *Machine, args []string) ([]string, error) {
		if len(args) != 1 {
			return nil, errors.New("it takes one GPU")
		}
		uuid, err := m.FindGPU(args[0])
		if err != nil {
			return nil, err
		}
		return nil, f(m, uuid, nil)
	}
}

// FindGPU finds a GPU by index, UUID or PCI address, as nvidia-smi -i does.
func (m *Machine) FindGPU(id string) (nvml.UUID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pci, isPCI := canonicalPCI(id)
	for i, uuid := range m.present() {
		g, _ := m.find(uuid)
		if string(uuid) == id || strconv.Itoa(i) == id || isPCI && g.PCI == pci {
			return uuid, nil
		}
	}
	return "", fmt.Errorf("find GPU %q: there are %d GPUs and none has this index, UUID or PCI address", id, len(m.present()))
}

// options splits "gpu=0 times=3 after" into what is known and reports the rest.
func options(args []string, known ...string) (map[string]string, error) {
	got := map[string]string{}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		if !slices.Contains(known, key) {
			return nil, fmt.Errorf("unknown argument %q; it takes %s", a, strings.Join(known, ", "))
		}
		got[key] = value
	}
	return got, nil
}

// gpuOption is the UUID of the GPU in gpu=…, or "".
func (m *Machine) gpuOption(got map[string]string) (nvml.UUID, error) {
	if id, ok := got["gpu"]; ok {
		return m.FindGPU(id)
	}
	return "", nil
}

func (m *Machine) ctlState(args []string) ([]string, error) {
	var out []string
	v := m.View()
	if v.State.Gone {
		out = append(out, "driver "+v.State.Driver+" is not loaded")
	} else {
		out = append(out, fmt.Sprintf("driver %s generation %d boot %s", v.State.Driver, v.State.Generation, v.State.BootID))
	}
	for i := range v.State.GPUs {
		g := &v.State.GPUs[i]
		line := fmt.Sprintf("gpu %s minor %d pci %s", g.UUID, g.Minor, v.Profile.GPUs[i].PCI)
		for _, f := range []struct {
			on   bool
			word string
		}{{g.Removed, "removed"}, {g.Lost, "lost"}, {g.MIG, "mig"}, {g.MIG != g.PendingMIG, "mig-pending"}, {len(g.Processes) > 0, "busy"}} {
			if f.on {
				line += " " + f.word
			}
		}
		out = append(out, line)
		for _, gi := range g.Instances {
			out = append(out, fmt.Sprintf("  gi %d profile %d start %d size %d", gi.ID, gi.Profile, gi.Start, gi.Size))
			for _, ci := range gi.Compute {
				line := fmt.Sprintf("    ci %d %s", ci.ID, ci.UUID)
				if len(ci.Processes) > 0 {
					line += " busy"
				}
				out = append(out, line)
			}
		}
	}
	for _, f := range v.State.Faults {
		out = append(out, fmt.Sprintf("fault %s gpu=%s return=%s delay=%s left=%d", f.Call, f.GPU, f.Return.Name(), f.Delay, f.Left))
	}
	return out, nil
}

func (m *Machine) ctlXID(args []string) ([]string, error) {
	if len(args) != 2 {
		return nil, errors.New("it takes a device and a number")
	}
	xid, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("XID %q is not a number", args[1])
	}
	device, err := m.findDevice(args[0])
	if err != nil {
		return nil, err
	}
	return nil, m.RaiseXID(device, xid)
}

// findDevice finds a GPU as FindGPU does, or takes a MIG UUID.
func (m *Machine) findDevice(id string) (nvml.UUID, error) {
	if strings.HasPrefix(id, "MIG-") {
		return nvml.UUID(id), nil
	}
	return m.FindGPU(id)
}

func (m *Machine) ctlFail(args []string) ([]string, error) {
	if len(args) < 2 {
		return nil, errors.New("it takes a call and a code")
	}
	code, err := ParseReturn(args[1])
	if err != nil {
		return nil, err
	}
	if code == Success {
		return nil, errors.New("SUCCESS is no failure; use clear")
	}
	got, err := options(args[2:], "gpu", "times")
	if err != nil {
		return nil, err
	}
	gpu, err := m.gpuOption(got)
	if err != nil {
		return nil, err
	}
	times := 0
	if s, ok := got["times"]; ok {
		if times, err = strconv.Atoi(s); err != nil || times < 1 {
			return nil, fmt.Errorf("times=%s is not a positive number", s)
		}
	}
	return nil, m.Fail(args[0], gpu, code, times)
}

func (m *Machine) ctlDelay(args []string) ([]string, error) {
	if len(args) < 2 {
		return nil, errors.New("it takes a call and a duration")
	}
	by, err := time.ParseDuration(args[1])
	if err != nil || by <= 0 {
		return nil, fmt.Errorf("%q is not a positive duration such as 2s", args[1])
	}
	got, err := options(args[2:], "gpu")
	if err != nil {
		return nil, err
	}
	gpu, err := m.gpuOption(got)
	if err != nil {
		return nil, err
	}
	return nil, m.Delay(args[0], gpu, by)
}

func (m *Machine) ctlHold(args []string) ([]string, error) {
	if len(args) < 1 {
		return nil, errors.New("it takes a call")
	}
	got, err := options(args[1:], "gpu", "after")
	if err != nil {
		return nil, err
	}
	gpu, err := m.gpuOption(got)
	if err != nil {
		return nil, err
	}
	_, after := got["after"]
	return nil, m.Hold(args[0], gpu, after)
}

func (m *Machine) ctlHeld(args []string) ([]string, error) {
	if len(args) != 1 {
		return nil, errors.New("it takes a call")
	}
	n, err := m.Held(args[0])
	return []string{strconv.Itoa(n)}, err
}

func (m *Machine) ctlRelease(args []string) ([]string, error) {
	call := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "with=") {
		call, args = args[0], args[1:]
	}
	got, err := options(args, "with")
	if err != nil {
		return nil, err
	}
	answer := Success
	if s, ok := got["with"]; ok {
		if answer, err = ParseReturn(s); err != nil {
			return nil, err
		}
	}
	return nil, m.Release(call, answer)
}

func (m *Machine) ctlBusy(args []string) ([]string, error) {
	if len(args) < 2 || len(args) > 3 {
		return nil, errors.New("it takes a device, a process id and perhaps its memory in MiB")
	}
	pid, err := strconv.ParseUint(args[1], 10, 31)
	if err != nil {
		return nil, fmt.Errorf("process id %q is not a number", args[1])
	}
	memory := uint64(256)
	if len(args) == 3 {
		if memory, err = strconv.ParseUint(args[2], 10, 24); err != nil {
			return nil, fmt.Errorf("memory %q is not a number of MiB", args[2])
		}
	}
	device, err := m.findDevice(args[0])
	if err != nil {
		return nil, err
	}
	return nil, m.Busy(device, Process{PID: int(pid), Memory: memory << 20})
}

func (m *Machine) ctlIdle(args []string) ([]string, error) {
	if len(args) < 1 || len(args) > 2 {
		return nil, errors.New("it takes a device and perhaps a process id")
	}
	pid := 0
	if len(args) == 2 {
		var err error
		if pid, err = strconv.Atoi(args[1]); err != nil || pid <= 0 {
			return nil, fmt.Errorf("process id %q is not a positive number", args[1])
		}
	}
	device, err := m.findDevice(args[0])
	if err != nil {
		return nil, err
	}
	return nil, m.Idle(device, pid)
}

func (m *Machine) ctlReboot(args []string) ([]string, error) {
	got, err := options(args, "minors")
	if err != nil {
		return nil, err
	}
	var minors []int
	if s, ok := got["minors"]; ok {
		for _, f := range strings.Split(s, ",") {
			n, err := strconv.Atoi(f)
			if err != nil {
				return nil, fmt.Errorf("minor %q is not a number", f)
			}
			minors = append(minors, n)
		}
	}
	return nil, m.Reboot(minors)
}
