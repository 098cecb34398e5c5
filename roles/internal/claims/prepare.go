package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errUnprepared ends a prepare call during which the claim was unprepared.
var errUnprepared = fmt.Errorf("the claim was unprepared meanwhile: %w", context.Canceled)

// attempt is one call of Prepare while it runs.
type attempt struct {
	*Engine
	record    *Record
	published bool // others can see the record
	unsaved   bool // the record has progressed since it was saved
}

// Prepare gives a claim its devices and returns them. For a claim that is
// prepared it returns the same again, after it has made sure that the CDI spec
// is there and says what it should. A claim that needs nothing of this node
// gives an empty answer and leaves no trace.
//
// After an error the claim is either as it was before the call or Preparing:
// calling again goes on where it stopped if the plan is still the same, and
// otherwise undoes what was done first. Unprepare undoes it for good.
//
// The error wraps ErrConflict if another claim has a device, ErrLocked if
// another process works on the claim, and what the planner or a handler wraps.
func (e *Engine) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]Prepared, error) {
	if claim == nil {
		return nil, fmt.Errorf("prepare claim: %w: there is none", ErrPermanent)
	}
	ref := RefOf(claim)
	devices, err := e.prepare(ctx, ref, claim)
	if err != nil {
		return nil, fmt.Errorf("prepare claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return devices, nil
}

func (e *Engine) prepare(ctx context.Context, ref Ref, claim *resourceapi.ResourceClaim) ([]Prepared, error) {
	if err := checkUID(ref.UID); err != nil {
		return nil, err
	}
	a := &attempt{Engine: e}
	ctx, over := e.begin(ctx, ref.UID, a)
	defer over()
	release, err := e.locks.acquire(ctx, claimLock(ref.UID))
	if err != nil {
		return nil, err
	}
	defer release()
	if err := ctx.Err(); err != nil {
		return nil, because(ctx, err)
	}

	recorded, err := e.settled(ctx, ref)
	if err != nil {
		return nil, err
	}
	event := PrepareCalled
	if recorded != nil && recorded.State == StateAborted {
		if err := e.reallocated(recorded, claim); err != nil {
			return nil, err
		}
		event = Reallocated
	}
	next, err := Next(stateOf(recorded), event)
	if err != nil {
		return nil, err
	}
	if next == StatePrepared {
		return e.again(ctx, recorded)
	}
	planned, err := e.plan(ref, claim)
	if err != nil {
		return nil, err
	}
	if len(planned.Devices) == 0 && len(planned.Steps) == 0 && recorded == nil {
		return nil, nil
	}
	if err := a.resume(ctx, recorded, planned, next); err != nil {
		return nil, err
	}
	return a.run(ctx)
}

// begin registers a prepare call, so that Unprepare can end it.
func (e *Engine) begin(ctx context.Context, uid types.UID, a *attempt) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.suspects, uid) // somebody wants it after all
	if e.running[uid] == nil {
		e.running[uid] = map[*attempt]context.CancelCauseFunc{}
	}
	e.running[uid][a] = cancel
	return ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.running[uid], a)
		if len(e.running[uid]) == 0 {
			delete(e.running, uid)
		}
		cancel(nil)
	}
}

// settled returns the record of a claim, or nil, after finishing whatever an
// earlier unprepare or boot left unfinished.
func (e *Engine) settled(ctx context.Context, ref Ref) (*Record, error) {
	r, err := e.read(ref)
	if err != nil || r == nil {
		return nil, err
	}
	if e.rebooted(r) {
		return nil, e.forgetBoot(ctx, r)
	}
	if r.State == StateUnpreparing || r.State == StateAborting {
		if r, err = e.undo(ctx, r); err != nil {
			return nil, fmt.Errorf("finish the unprepare that came first: %w", err)
		}
	}
	return r, nil
}

func stateOf(r *Record) State {
	if r == nil {
		return StateAbsent
	}
	return r.State
}

// reallocated refuses a prepare call that must have been under way when the
// claim was unprepared: the pod it was for is gone.
func (e *Engine) reallocated(tombstone *Record, claim *resourceapi.ResourceClaim) error {
	age := time.Since(tombstone.Since)
	if newer(claim.Generation, claim.ResourceVersion, tombstone) || age >= e.cfg.TombstoneAge {
		return nil
	}
	return fmt.Errorf("%w (%w): this version of the claim was unprepared %s ago, before it was ready, and nobody has reserved it since",
		ErrRefused, ErrRetry, age.Round(time.Second))
}

// newer reports whether a version of a claim is newer than what the record saw.
func newer(generation int64, resourceVersion string, seen *Record) bool {
	if generation > seen.Generation {
		return true
	}
	now, errNow := strconv.ParseUint(resourceVersion, 10, 64)
	then, errThen := strconv.ParseUint(seen.ResourceVersion, 10, 64)
	if errNow != nil || errThen != nil {
		return resourceVersion != seen.ResourceVersion
	}
	return now > then
}

// plan asks the planner what a claim needs and returns it as a record that
// nothing has happened to.
func (e *Engine) plan(ref Ref, claim *resourceapi.ResourceClaim) (*Record, error) {
	var plan Plan
	err := guard(func() (err error) {
		plan, err = e.cfg.Planner.Plan(claim)
		return err
	})
	if err == nil {
		err = checkPlan(&plan, e.passive)
	}
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	r := &Record{
		Ref:             ref,
		ResourceVersion: claim.ResourceVersion,
		Generation:      claim.Generation,
		BootID:          e.cfg.BootID,
		Steps:           plan.Steps,
	}
	for _, d := range plan.Devices {
		r.Devices = append(r.Devices, Prepared{Device: d})
	}
	// The planner keeps what it returned; the record must not change with it.
	return r.clone(), nil
}

// resume decides whether to go on with an earlier attempt or to start anew.
func (a *attempt) resume(ctx context.Context, recorded, planned *Record, next State) error {
	a.record = planned.moved(next, time.Now())
	if stateOf(recorded) != StatePreparing {
		return nil
	}
	if !samePlan(recorded, planned) {
		if err := a.undoSteps(ctx, recorded); err != nil {
			return fmt.Errorf("undo an earlier attempt with another plan: %w", err)
		}
		return nil
	}
	// The tombstone of this claim has to know the newest version seen.
	a.unsaved = newer(planned.Generation, planned.ResourceVersion, recorded)
	recorded.ResourceVersion, recorded.Generation = planned.ResourceVersion, planned.Generation
	a.record, a.published = recorded, true
	return nil
}

// run does the steps that are not done yet, writes the CDI spec, and records
// that the claim is prepared.
func (a *attempt) run(ctx context.Context) ([]Prepared, error) {
	r := a.record
	if !a.published {
		// It is checked again when the record is published, under the lock
		// that makes it certain. Here it saves the work.
		if err := a.admissible(); err != nil {
			return nil, err
		}
	}
	for i := range r.Steps {
		if r.Steps[i].done() {
			continue
		}
		if err := a.do(ctx, i); err != nil {
			return nil, errors.Join(fmt.Errorf("step %s: %w", r.Steps[i].Kind, because(ctx, err)), a.saveProgress())
		}
	}
	if err := a.finish(ctx); err != nil {
		return nil, errors.Join(because(ctx, err), a.saveProgress())
	}
	a.changed()
	return a.record.clone().Devices, nil
}

// do does one step. Before a step that can change the node, the record says
// that it has begun; the results of the steps before it are saved with that.
func (a *attempt) do(ctx context.Context, i int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := &a.record.Steps[i]
	h, err := a.handler(*s)
	if err != nil {
		return err
	}
	if !a.isPassive(s.Kind) {
		release, err := a.locks.acquire(ctx, stepLock(*s))
		if err != nil {
			return err
		}
		defer release()
		if err := a.beginStep(ctx, s); err != nil {
			return err
		}
	}
	began := time.Now()
	var result json.RawMessage
	err = guard(func() (err error) {
		result, err = h.Do(ctx, *s)
		return err
	})
	a.observe(s.Kind, "do", began, err)
	if err != nil {
		return err
	}
	if result, err = canonical(result); err != nil {
		return fmt.Errorf("%w: its result is not JSON: %w", ErrPermanent, err)
	}
	if result == nil {
		result = json.RawMessage("null")
	}
	s.Result, a.unsaved = result, true
	return nil
}

// beginStep makes sure that the record on disk says that s has begun.
func (a *attempt) beginStep(ctx context.Context, s *Step) error {
	if s.Begun && !a.unsaved {
		return nil
	}
	had := s.Begun
	s.Begun = true
	if err := a.commit(ctx, a.record); err != nil {
		s.Begun = had
		return err
	}
	return nil
}

// commit puts the record on disk. The first time, it makes sure that no other
// claim has what this one is about to take: under a lock that is held for
// nothing slower than reading the records that changed and a rename.
func (a *attempt) commit(ctx context.Context, r *Record) error {
	if err := a.files.stage(r); err != nil {
		return err
	}
	if a.published {
		if err := a.files.publish(r.UID); err != nil {
			return err
		}
	} else if err := a.publishFirst(ctx, r); err != nil {
		return errors.Join(err, a.files.discard(r.UID))
	}
	a.published, a.unsaved = true, false
	return a.files.sync()
}

func (a *attempt) publishFirst(ctx context.Context, r *Record) error {
	release, err := a.locks.acquire(ctx, directoryLock)
	if err != nil {
		return err
	}
	defer release()
	if err := a.admissible(); err != nil {
		return err
	}
	return a.files.publish(r.UID)
}

// admissible refuses a claim that collides with another one.
func (a *attempt) admissible() error {
	others, _, err := a.view.records()
	if err != nil {
		return err
	}
	if err := overlap(a.record, others); err != nil {
		return err
	}
	return disagreement(a.record, others, a.isPassive)
}

// finish writes the CDI spec and then records that the claim is prepared, so
// that a claim that is recorded as prepared has its spec.
func (a *attempt) finish(ctx context.Context) error {
	next, err := Next(a.record.State, StepsDone)
	if err != nil {
		return err
	}
	prepared := a.record.moved(next, time.Now())
	spec, err := a.specOf(ctx, prepared)
	if err != nil {
		return err
	}
	if err := a.writeSpec(prepared, spec); err != nil {
		return err
	}
	if err := a.commit(ctx, prepared); err != nil {
		return errors.Join(err, a.retractSpec())
	}
	a.record = prepared
	return nil
}

// retractSpec removes the spec again if nothing on disk remembers that it was
// written. A failed write may have reached the disk all the same.
func (a *attempt) retractSpec() error {
	if a.published {
		return nil
	}
	if r, err := a.files.load(a.record.UID); err != nil || stateOf(r) == StatePrepared {
		return err
	}
	return a.cfg.Specs.Remove(string(a.record.UID))
}

// saveProgress records how far a failed attempt got, for the next one and for
// undoing it.
func (a *attempt) saveProgress() error {
	if !a.published || !a.unsaved {
		return nil
	}
	return a.save(a.record, false)
}

// because adds to an error why the context ended, if that says more.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}
