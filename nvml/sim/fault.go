package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"nvdra/nvml"
)

// A Fault changes how one NVML call behaves.
type Fault struct {
	Call string    `json:"call"`          // canonical name: "DeviceGetMemoryInfo"
	GPU  nvml.UUID `json:"gpu,omitempty"` // only on this GPU; "" on all
	// Return is answered instead of doing anything; Success when the fault only
	// delays.
	Return Return        `json:"return,omitempty"`
	Delay  time.Duration `json:"delay,omitempty"`
	Left   int           `json:"left,omitempty"` // how many more times; 0 is for ever
}

// A hold stops calls until it is released.
type hold struct {
	call    string
	gpu     nvml.UUID
	after   bool          // the call takes effect first, and only its answer waits
	waiting int           // calls stopped now
	open    chan struct{} // closed by release
	answer  Return        // what stopped calls answer; Success: they go on
}

func matches(call string, gpu nvml.UUID, wantCall string, wantGPU nvml.UUID) bool {
	return call == wantCall && (wantGPU == "" || wantGPU == gpu)
}

// CallNames lists the calls a fault or a hold can name, sorted.
func CallNames() []string { return sortedKeys(calls) }

// canonicalCall finds the call a person means: with or without nvml in front and
// _v2 behind, with or without Device, GpuInstance, ComputeInstance or System,
// in any case. CreateGpuInstanceWithPlacement is CreateGpuInstance.
func canonicalCall(name string) (string, error) {
	want := strings.TrimPrefix(strings.ToLower(name), "nvml")
	if i := strings.LastIndex(want, "_v"); i > 0 {
		want = want[:i]
	}
	want = strings.TrimSuffix(want, "withplacement")
	for c := range calls {
		if strings.ToLower(c) == want {
			return c, nil
		}
	}
	var found []string
	for c := range calls {
		for _, prefix := range []string{"Device", "GpuInstance", "ComputeInstance", "System"} {
			if strings.ToLower(strings.TrimPrefix(c, prefix)) == want {
				found = append(found, c)
				break
			}
		}
	}
	slices.Sort(found)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("find NVML call %q: there is none; the calls are %s", name, strings.Join(CallNames(), " "))
	}
	return "", fmt.Errorf("find NVML call %q: it could be %s; say which", name, strings.Join(found, " or "))
}

// before applies faults and holds to a call that is about to be done.
func (m *Machine) before(ctx context.Context, call string, gpu nvml.UUID) error {
	m.mu.Lock()
	m.counts[call]++
	h := m.findHold(call, gpu, false)
	var f Fault
	for i := range m.state.Faults {
		if matches(call, gpu, m.state.Faults[i].Call, m.state.Faults[i].GPU) {
			f = m.state.Faults[i]
			if f.Left == 1 {
				m.state.Faults = slices.Delete(m.state.Faults, i, i+1)
			} else if f.Left > 1 {
				m.state.Faults[i].Left--
			}
			break
		}
	}
	m.mu.Unlock()
	if err := m.wait(ctx, h); err != nil {
		return err
	}
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return f.Return.asError()
}

// after stops a call that has taken effect, when a hold asks for that.
func (m *Machine) after(ctx context.Context, call string, gpu nvml.UUID) error {
	m.mu.Lock()
	h := m.findHold(call, gpu, true)
	m.mu.Unlock()
	return m.wait(ctx, h)
}

// findHold finds the hold that stops the call and counts the call in. The
// caller holds the lock.
func (m *Machine) findHold(call string, gpu nvml.UUID, after bool) *hold {
	for _, h := range m.holds {
		if h.after == after && matches(call, gpu, h.call, h.gpu) {
			h.waiting++
			return h
		}
	}
	return nil
}

func (m *Machine) wait(ctx context.Context, h *hold) error {
	if h == nil {
		return nil
	}
	defer func() {
		m.mu.Lock()
		h.waiting--
		m.mu.Unlock()
	}()
	select {
	case <-h.open:
		return h.answer.asError()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Fail makes a call answer a code, times times or for ever when times is 0.
func (m *Machine) Fail(call string, gpu nvml.UUID, code Return, times int) error {
	return m.addFault(Fault{Call: call, GPU: gpu, Return: code, Left: times})
}

// Delay makes a call take longer.
func (m *Machine) Delay(call string, gpu nvml.UUID, by time.Duration) error {
	return m.addFault(Fault{Call: call, GPU: gpu, Delay: by})
}

func (m *Machine) addFault(f Fault) error {
	name, err := canonicalCall(f.Call)
	if err != nil {
		return err
	}
	f.Call = name
	return m.change(func() error {
		m.state.Faults = slices.DeleteFunc(m.state.Faults, func(old Fault) bool { return old.Call == f.Call && old.GPU == f.GPU })
		m.state.Faults = append(m.state.Faults, f)
		return nil
	})
}

// Clear takes back every Fail and Delay of a call, or all when call is "".
func (m *Machine) Clear(call string) error {
	if call != "" {
		name, err := canonicalCall(call)
		if err != nil {
			return err
		}
		call = name
	}
	return m.change(func() error {
		m.state.Faults = slices.DeleteFunc(m.state.Faults, func(f Fault) bool { return call == "" || f.Call == call })
		return nil
	})
}

// Hold stops a call until Release: before it does anything, or with after once
// it has taken effect but before its caller gets the answer. A held call whose
// caller dies is still done when released, as a call in the kernel is.
func (m *Machine) Hold(call string, gpu nvml.UUID, after bool) error {
	name, err := canonicalCall(call)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.holds {
		if h.call == name && h.gpu == gpu && h.after == after {
			return nil
		}
	}
	m.holds = append(m.holds, &hold{call: name, gpu: gpu, after: after, open: make(chan struct{})})
	return nil
}

// Release lets the held calls of a name go on, or of all names when call is "".
// With an answer other than Success those that wait now answer that instead.
func (m *Machine) Release(call string, answer Return) error {
	if call != "" {
		name, err := canonicalCall(call)
		if err != nil {
			return err
		}
		call = name
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds = slices.DeleteFunc(m.holds, func(h *hold) bool {
		if call != "" && h.call != call {
			return false
		}
		h.answer = answer
		close(h.open)
		return true
	})
	return nil
}

// Held counts the calls of a name that are stopped now.
func (m *Machine) Held(call string) (int, error) {
	name, err := canonicalCall(call)
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, h := range m.holds {
		if h.call == name {
			n += h.waiting
		}
	}
	return n, nil
}

// Count says how often a call has been made since the machine was opened.
func (m *Machine) Count(call string) (int, error) {
	name, err := canonicalCall(call)
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[name], nil
}
