package claims

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Unprepare undoes everything Prepare did for a claim, from the record alone:
// neither the claim nor the planner is asked. A prepare call that is under way
// is told to stop, and waited for. A claim that is not known is a success, and
// nothing is written for it.
//
// After an error the claim has some of it left; calling again goes on.
func (e *Engine) Unprepare(ctx context.Context, ref Ref) error {
	err := checkUID(ref.UID)
	if err == nil {
		e.stopPrepares(ref.UID)
		err = e.unprepare(ctx, ref)
	}
	if err != nil {
		return fmt.Errorf("unprepare claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return nil
}

func (e *Engine) unprepare(ctx context.Context, ref Ref) error {
	release, err := e.locks.acquire(ctx, claimLock(ref.UID))
	if err != nil {
		return err
	}
	defer release()
	r, err := e.read(ref)
	if err != nil {
		return err
	}
	if r == nil {
		// If its record was damaged the spec is still there.
		return e.cfg.Specs.Remove(string(ref.UID))
	}
	return e.end(ctx, r, UnprepareCalled)
}

// stopPrepares ends the prepare calls for a claim that are under way: the pod
// they are for is gone.
func (e *Engine) stopPrepares(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, cancel := range e.running[uid] {
		cancel(errUnprepared)
	}
}

// end unprepares a claim whose lock is held, for whatever reason.
func (e *Engine) end(ctx context.Context, r *Record, why Event) error {
	if e.rebooted(r) {
		return e.forgetBoot(ctx, r)
	}
	next, err := Next(r.State, why)
	if err != nil {
		return err
	}
	if next == StateAborted {
		return nil
	}
	if next != r.State {
		r = r.moved(next, time.Now())
		// The record must not say Prepared any more once something is undone.
		// If nothing is to be undone, nothing is lost by repeating the rest.
		if r.begun() {
			if err := e.save(r, false); err != nil {
				return err
			}
		}
	}
	_, err = e.undo(ctx, r)
	return err
}

// undo takes a claim that is being unprepared to its end, and returns the
// record that is left, if any. The CDI spec goes before the record, so that if
// it cannot be removed somebody still knows of it.
func (e *Engine) undo(ctx context.Context, r *Record) (*Record, error) {
	next, err := Next(r.State, UndoDone)
	if err != nil {
		return nil, err
	}
	if err := e.undoSteps(ctx, r); err != nil {
		return nil, err
	}
	if err := e.cfg.Specs.Remove(string(r.UID)); err != nil {
		return nil, err
	}
	defer e.changed()
	if next == StateAbsent {
		return nil, e.files.remove(r.UID)
	}
	r = r.moved(next, time.Now())
	r.Devices, r.Steps, r.Spec = nil, nil, ""
	return r, e.save(r, false)
}

// undoSteps undoes what has begun, last things first, and records each.
func (e *Engine) undoSteps(ctx context.Context, r *Record) error {
	for i := len(r.Steps) - 1; i >= 0; i-- {
		if !r.Steps[i].Begun {
			continue
		}
		if err := e.undoStep(ctx, r, i); err != nil {
			return fmt.Errorf("undo step %s: %w", r.Steps[i].Kind, because(ctx, err))
		}
	}
	return nil
}

// undoStep undoes one step, unless somebody else holds what it changed. The
// lock of the step makes this a decision: nobody begins the step meanwhile, and
// when it is over the record no longer claims to hold it.
func (e *Engine) undoStep(ctx context.Context, r *Record, i int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := &r.Steps[i]
	h, err := e.handler(*s)
	if err != nil {
		return err
	}
	release, err := e.locks.acquire(ctx, stepLock(*s))
	if err != nil {
		return err
	}
	defer release()
	others, _, err := e.view.records()
	if err != nil {
		return err
	}
	if !held(r, i, others) {
		began := time.Now()
		err := guard(func() error { return h.Undo(ctx, *s) })
		e.observe(s.Kind, "undo", began, err)
		if err != nil {
			return err
		}
	}
	s.Begun, s.Result = false, nil
	return e.save(r, false)
}

// rebooted reports whether the node restarted since the record was made. A
// record that does not say when is taken to be of this boot: a claim too many
// is a nuisance, one too few takes a device from a running pod.
func (e *Engine) rebooted(r *Record) bool {
	return r.BootID != "" && r.BootID != e.cfg.BootID
}

// forgetBoot removes a claim of an earlier boot. Its pods are gone and so is
// what its steps did, except for steps that outlive a boot, which are undone.
// Until that has worked the record stays as it is, and is of another boot.
func (e *Engine) forgetBoot(ctx context.Context, r *Record) error {
	if _, err := Next(r.State, NodeRebooted); err != nil {
		return err
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		survives, err := e.survives(*s)
		if err != nil {
			return fmt.Errorf("step %s: %w", s.Kind, err)
		}
		s.Begun = s.Begun && survives
	}
	if r.begun() {
		// It may take several tries. Meanwhile the record must not make others
		// believe that the rest is still there.
		if next, err := Next(r.State, ClaimGone); err == nil {
			r = r.moved(next, time.Now())
		}
		if err := e.save(r, false); err != nil {
			return err
		}
	}
	if err := e.undoSteps(ctx, r); err != nil {
		return fmt.Errorf("undo what outlived a reboot: %w", err)
	}
	if err := e.cfg.Specs.Remove(string(r.UID)); err != nil {
		return err
	}
	defer e.changed()
	return e.files.remove(r.UID)
}

// survives reports whether what a step did can still be there after a reboot.
func (e *Engine) survives(s Step) (yes bool, err error) {
	if survivor, ok := e.cfg.Handlers[s.Kind].(Survivor); ok {
		err = guard(func() error {
			yes = survivor.SurvivesReboot(s)
			return nil
		})
	}
	return yes, err
}
