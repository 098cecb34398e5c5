package driver

import (
	"context"
	"encoding/json"
	"errors"

	"nvdra/nvml"
)

// A Node and its child speak JSON over a socket: the child answers each
// request by one response with the same ID, in any order. Both are the same
// program, so nothing here has to stay compatible.

// The operations a child can be asked for.
const (
	opScan     = "scan"
	opGPU      = "gpu"
	opProfiles = "profiles"
	opMode     = "mode"
	opCreate   = "create"
	opDestroy  = "destroy"
	// opCancel asks that the request with this ID be given up. It has no
	// response of its own.
	opCancel = "cancel"
)

// A request is one call of a [nvml.Node] method.
type request struct {
	ID        uint64
	Op        string
	UUID      nvml.UUID      `json:",omitzero"`
	Enable    bool           `json:",omitzero"`
	Placement nvml.Placement `json:",omitzero"`
}

// A response is the answer to one request.
type response struct {
	ID     uint64
	Result json.RawMessage `json:",omitzero"`
	Err    *failure        `json:",omitzero"`
	// Stale means that the session is of no use any more.
	Stale bool `json:",omitzero"`
	// Retry means that a new session may do better, and that the call had no
	// effect.
	Retry bool `json:",omitzero"`
}

// A failure is an error that has gone through the socket: the same text, the
// same kinds.
type failure struct {
	Text  string
	Kinds []string
}

// kinds are the errors that callers test for.
var kinds = map[string]error{
	"driver":      nvml.ErrDriver,
	"notFound":    nvml.ErrNotFound,
	"lost":        nvml.ErrLost,
	"inUse":       nvml.ErrInUse,
	"unsupported": nvml.ErrUnsupported,
	"canceled":    context.Canceled,
	"deadline":    context.DeadlineExceeded,
}

func newFailure(err error) *failure {
	f := &failure{Text: err.Error()}
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			f.Kinds = append(f.Kinds, name)
		}
	}
	return f
}

// Error implements error.
func (f *failure) Error() string { return f.Text }

// Is makes errors.Is find the kinds.
func (f *failure) Is(target error) bool {
	for _, name := range f.Kinds {
		if kinds[name] == target {
			return true
		}
	}
	return false
}

// wireScan is a [nvml.Scan] without error values, which JSON cannot carry.
type wireScan struct {
	Driver nvml.Driver
	GPUs   []wireGPU
	Broken []wireBroken
}

type wireGPU struct {
	GPU       nvml.GPU
	BrokenMIG []*failure
}

type wireBroken struct {
	Index int
	UUID  nvml.UUID
	PCI   string
	Err   *failure
}

func newWireScan(s nvml.Scan) wireScan {
	w := wireScan{Driver: s.Driver}
	for _, g := range s.GPUs {
		w.GPUs = append(w.GPUs, newWireGPU(g))
	}
	for _, b := range s.Broken {
		w.Broken = append(w.Broken, wireBroken{Index: b.Index, UUID: b.UUID, PCI: b.PCI, Err: newFailure(b.Err)})
	}
	return w
}

func newWireGPU(g nvml.GPU) wireGPU {
	w := wireGPU{GPU: g}
	w.GPU.BrokenMIG = nil
	for _, err := range g.BrokenMIG {
		w.BrokenMIG = append(w.BrokenMIG, newFailure(err))
	}
	return w
}

func (w wireScan) scan() nvml.Scan {
	s := nvml.Scan{Driver: w.Driver}
	for _, g := range w.GPUs {
		s.GPUs = append(s.GPUs, g.gpu())
	}
	for _, b := range w.Broken {
		s.Broken = append(s.Broken, nvml.Broken{Index: b.Index, UUID: b.UUID, PCI: b.PCI, Err: b.Err})
	}
	return s
}

func (w wireGPU) gpu() nvml.GPU {
	g := w.GPU
	for _, f := range w.BrokenMIG {
		g.BrokenMIG = append(g.BrokenMIG, f)
	}
	return g
}
