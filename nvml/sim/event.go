package sim

import (
	"context"
	"slices"
	"time"

	"nvdra/nvml"
)

// The kinds of event NVML reports that the simulator raises.
const (
	EventXID             uint64 = 0x8   // nvmlEventTypeXidCriticalError
	EventMIGConfigChange uint64 = 0x100 // nvmlEventMigConfigChange
)

// supportedEvents is what nvmlDeviceGetSupportedEventTypes answers: ECC errors,
// XIDs and changes of the MIG configuration.
const supportedEvents = 0x1 | 0x2 | EventXID | EventMIGConfigChange

// noInstance is NVML's number for "no GPU instance" and "no compute instance".
const noInstance = 0xffffffff

// An Event is something the driver reports about a GPU.
type Event struct {
	Seq  int       `json:"seq"` // counts up by one
	GPU  nvml.UUID `json:"gpu"`
	Type uint64    `json:"type"`
	Data uint64    `json:"data"` // the XID
	// GPUInst and CompInst say which MIG device it is about; 0xffffffff when none.
	GPUInst  uint32 `json:"gpuInst"`
	CompInst uint32 `json:"compInst"`
}

// keptEvents is how many events a slow listener may be behind.
const keptEvents = 256

// raise appends an event and wakes listeners. The caller holds the lock.
func (m *Machine) raise(e Event) {
	m.state.LastEvent++
	e.Seq = m.state.LastEvent
	m.state.Events = append(m.state.Events, e)
	if n := len(m.state.Events); n > keptEvents {
		m.state.Events = slices.Delete(m.state.Events, 0, n-keptEvents)
	}
	close(m.raised)
	m.raised = make(chan struct{})
}

// A Watch is what an event set has been told to listen for on one GPU.
type Watch struct {
	GPU  nvml.UUID
	Mask uint64
}

// waitEvent returns the first event after seq that a watch asks for. It answers
// Timeout when none came in time, and DriverNotLoaded as soon as the driver is
// gone.
func (m *Machine) waitEvent(ctx context.Context, seq int, watches []Watch, timeout time.Duration) (Event, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		m.mu.Lock()
		gone, raised := m.state.Gone, m.raised
		var found *Event
		for _, e := range m.state.Events {
			if e.Seq > seq && slices.ContainsFunc(watches, func(w Watch) bool { return w.GPU == e.GPU && w.Mask&e.Type != 0 }) {
				found = &e
				break
			}
		}
		m.mu.Unlock()
		switch {
		case gone:
			return Event{}, DriverNotLoaded
		case found != nil:
			return *found, nil
		}
		select {
		case <-raised:
		case <-timer.C:
			return Event{}, Timeout
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}
