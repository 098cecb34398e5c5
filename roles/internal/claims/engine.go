package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Specs keeps the CDI specs of claims, one for each. A *cdi.Store does; its
// documentation says more. Errors of Write that wrap cdi.ErrInvalid are taken
// to be permanent.
type Specs interface {
	// Write replaces the spec of a claim, completely or not at all.
	Write(claimUID string, devices []cdispec.Device, common cdispec.ContainerEdits) error
	// Remove removes the spec of a claim. That there is none is success.
	Remove(claimUID string) error
	// List returns the UIDs of all claims that have a spec.
	List() ([]string, error)
	// Check reports whether a container runtime would find the devices.
	Check(claimUID string, deviceNames []string) error
	// DeviceID returns the full name of a device, as kubelet needs it.
	DeviceID(name string) string
}

// Config is what an Engine works with.
type Config struct {
	Dir      string             // where checkpoints are kept; other things must not be
	BootID   string             // changes when the node reboots
	Planner  Planner            // turns claims into steps
	Handlers map[string]Handler // by kind of step
	Specs    Specs              // where CDI specs are kept

	// Report tells people of something that concerns one claim and that no
	// caller can be told. Reasons are the Reason constants. It may be called
	// from several goroutines and must not wait for anything. It may be nil.
	Report func(claim Ref, reason, message string)

	Observer Observer

	// These have a default, which is used for zero.
	LockWait     time.Duration // how long to wait for a lock: 10 s
	TombstoneAge time.Duration // how long a late prepare is refused: 2 min
	Grace        time.Duration // how long a claim nobody seems to use is kept: 2 min
	SweepEvery   time.Duration // how often Run sweeps: 10 min
}

// Observer is told what metrics count. Functions may be nil.
type Observer struct {
	// Step is called when a handler returns. act is "do" or "undo".
	Step func(kind, act string, took time.Duration, err error)
	// Devices is called with the number of prepared devices of each type when
	// it may have changed. Types that were counted before are there with 0.
	Devices func(prepared map[string]int)
}

// Reasons of reports.
const (
	// ReasonDamaged: a checkpoint could not be read and was set aside. The
	// claim is treated as if it had never been prepared.
	ReasonDamaged = "CheckpointDamaged"
	// ReasonUnreadable: a checkpoint is left alone because it cannot be read
	// now, or only by a newer version.
	ReasonUnreadable = "CheckpointUnreadable"
	// ReasonUndo: what a claim left behind could not be undone. It is tried again.
	ReasonUndo = "UnprepareFailed"
	// ReasonSpec: the CDI spec of a prepared claim cannot be made. A container
	// of its pod that restarts now will not start.
	ReasonSpec = "CDISpecFailed"
	// ReasonStale: a claim was unprepared because nobody has it any more.
	ReasonStale = "StaleClaimUnprepared"
)

// An Engine prepares and unprepares claims. Its methods may be called from any
// number of goroutines; work on one claim happens one call after the other.
type Engine struct {
	cfg   Config
	dir   *directory
	files checkpoints // dir; a test puts itself in between
	view  *view
	locks *locks

	mu       sync.Mutex
	running  map[types.UID]map[*attempt]context.CancelCauseFunc // prepare calls under way
	suspects map[types.UID]suspect                              // claims that nobody seems to use
	counting sync.Mutex                                         // around telling the observer, so the newest count comes last
	types    map[string]bool                                    // device types counted so far; under counting
}

// Open returns an engine for the directory. It creates what is missing and
// refuses a directory it cannot use: better no plugin than one that cannot
// remember. It does nothing to claims yet; call Restore before anything else.
func Open(cfg Config) (*Engine, error) {
	var missing []error
	for _, field := range []struct {
		name    string
		missing bool
	}{{"BootID", cfg.BootID == ""}, {"Planner", cfg.Planner == nil}, {"Specs", cfg.Specs == nil}} {
		if field.missing {
			missing = append(missing, fmt.Errorf("%s is not set", field.name))
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(cfg.Handlers)) {
		if kind == "" || cfg.Handlers[kind] == nil {
			missing = append(missing, fmt.Errorf("handler %q has no kind or is nil", kind))
		}
	}
	if err := errors.Join(missing...); err != nil {
		return nil, fmt.Errorf("open claim engine: %w", err)
	}
	cfg.Handlers = maps.Clone(cfg.Handlers)
	if cfg.Report == nil {
		cfg.Report = func(Ref, string, string) {}
	}
	for value, standard := range map[*time.Duration]time.Duration{
		&cfg.LockWait:     10 * time.Second,
		&cfg.TombstoneAge: 2 * time.Minute,
		&cfg.Grace:        2 * time.Minute,
		&cfg.SweepEvery:   10 * time.Minute,
	} {
		if *value == 0 {
			*value = standard
		}
	}
	dir, err := openDirectory(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint directory %s: %w; the plugin must be able to read and write it", cfg.Dir, err)
	}
	locks, err := openLocks(filepath.Join(dir.dir, lockName), cfg.LockWait)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint directory %s: make its lock: %w", cfg.Dir, err)
	}
	return &Engine{
		cfg:      cfg,
		dir:      dir,
		files:    dir,
		view:     newView(dir),
		locks:    locks,
		running:  map[types.UID]map[*attempt]context.CancelCauseFunc{},
		suspects: map[types.UID]suspect{},
		types:    map[string]bool{},
	}, nil
}

// Records returns all claims the node remembers, sorted by UID, tombstones too.
// Records that cannot be read are missing; Restore reports them.
func (e *Engine) Records() []Record {
	records, _, err := e.view.records()
	if err != nil {
		return nil // the directory is gone: the next call of kubelet will say so
	}
	out := make([]Record, 0, len(records))
	for _, r := range records {
		out = append(out, *r.clone())
	}
	return out
}

// passive reports whether steps of a kind change nothing on the node, and
// whether the kind is known at all.
func (e *Engine) passive(kind string) (passive, known bool) {
	h, known := e.cfg.Handlers[kind]
	p, ok := h.(Passive)
	return ok && p.Passive(), known
}

func (e *Engine) isPassive(kind string) bool {
	passive, _ := e.passive(kind)
	return passive
}

// handler returns the handler of a recorded step.
func (e *Engine) handler(s Step) (Handler, error) {
	h, ok := e.cfg.Handlers[s.Kind]
	if !ok {
		return nil, fmt.Errorf("nothing in this version handles this kind of step; run the version that prepared the claim to unprepare it")
	}
	return h, nil
}

// read returns the record of a claim whose lock is held, or nil. A damaged
// record is set aside: nothing can be done with it, and the claim must not be
// stuck for ever because of it.
func (e *Engine) read(ref Ref) (*Record, error) {
	r, err := e.files.load(ref.UID)
	switch {
	case errors.Is(err, ErrDamaged):
		to, asideErr := e.dir.setAside(ref.UID, e.cfg.BootID)
		if to == "" {
			return nil, errors.Join(err, asideErr)
		}
		e.cfg.Report(ref, ReasonDamaged, fmt.Sprintf("%v; it was kept as %s and the claim counts as not prepared. What its steps changed on the node was not undone", err, to))
		return nil, asideErr
	case err != nil:
		return nil, err
	case r == nil:
		return nil, nil
	}
	return r.clone(), nil
}

// save replaces a published record. Callers that go on to do something which
// must not be forgotten over a power cut ask for it to be durable.
func (e *Engine) save(r *Record, durable bool) error {
	if err := e.files.stage(r); err != nil {
		return err
	}
	if err := e.files.publish(r.UID); err != nil {
		return err
	}
	if durable {
		return e.files.sync()
	}
	return nil
}

// changed tells the observer how many devices are prepared.
func (e *Engine) changed() {
	if e.cfg.Observer.Devices == nil {
		return
	}
	e.counting.Lock()
	defer e.counting.Unlock()
	records, _, err := e.view.records()
	if err != nil {
		return // whoever needs the directory next says so
	}
	counts := map[string]int{}
	for t := range e.types {
		counts[t] = 0
	}
	for _, r := range records {
		if r.State != StatePrepared {
			continue
		}
		for _, d := range r.Devices {
			counts[d.Type]++
			e.types[d.Type] = true
		}
	}
	e.cfg.Observer.Devices(counts)
}

// observe tells the observer of one handler call.
func (e *Engine) observe(kind, act string, began time.Time, err error) {
	if e.cfg.Observer.Step != nil {
		e.cfg.Observer.Step(kind, act, time.Since(began), err)
	}
}
