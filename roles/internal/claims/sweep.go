package claims

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// getTimeout is how long Sweep waits for the API server to answer for a claim.
const getTimeout = 20 * time.Second

// ClaimReader is what Sweep needs of the API server. Get returns an error that
// apierrors.IsNotFound recognises if there is no such claim.
type ClaimReader interface {
	Get(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
}

// suspect is a claim that nobody seems to use.
type suspect struct {
	since time.Time
	why   string
}

// Sweep looks once at every claim the node remembers and unprepares those that
// nobody will unprepare any more:
//
//   - a claim that was being prepared and is gone from the API server: at once;
//   - a prepared claim that is gone, and any claim that is no longer allocated,
//     reserved by nobody, or allocated to other devices: when it has been like
//     that for the grace period. Kubelet is usually about to do it, and does it
//     after the containers have stopped.
//
// It also takes up again what could not be undone before, writes CDI specs that
// have gone missing, and removes old tombstones and specs without a claim. It
// asks the API server for claims it has records of and for nothing else.
//
// The error has what went wrong for all claims; the next pass tries again.
func (e *Engine) Sweep(ctx context.Context, reader ClaimReader) error {
	records, unreadable, err := e.view.records()
	if err != nil {
		return fmt.Errorf("sweep claims: %w", err)
	}
	e.forgetSuspects(records)
	var problems []error
	for uid, err := range unreadable {
		if !errors.Is(err, ErrDamaged) {
			problems = append(problems, err) // nothing to be done here
			continue
		}
		problems = append(problems, e.ifIdle(uid, func() error {
			_, err := e.read(Ref{UID: uid})
			return err
		}))
	}
	for _, r := range records {
		if unreadable[r.UID] != nil {
			continue // of a newer version: not ours to end
		}
		if err := e.sweepClaim(ctx, reader, r); err != nil {
			problems = append(problems, fmt.Errorf("claim %s: %w", r.Ref, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	problems = append(problems, e.removeOrphans())
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("sweep claims: %w", err)
	}
	return nil
}

// sweepClaim looks at one claim. r is how the claim was a moment ago, and its
// lock is not held: the API server may take its time.
func (e *Engine) sweepClaim(ctx context.Context, reader ClaimReader, r *Record) error {
	switch {
	case r.State == StateAborted:
		if time.Since(r.Since) < e.cfg.TombstoneAge {
			return nil
		}
		return e.ifUnchanged(r, func(r *Record) error {
			if _, err := Next(r.State, TombstoneOld); err != nil {
				return err
			}
			return e.files.remove(r.UID)
		})
	case e.rebooted(r) || r.State == StateUnpreparing || r.State == StateAborting:
		return e.ifUnchanged(r, func(r *Record) error {
			_, err := e.settled(ctx, r.Ref)
			return err
		})
	}
	suspected := e.suspect(r)
	why, now, err := e.unused(ctx, reader, r)
	if err != nil || suspected && !e.suspect(r) {
		return err // or it was asked for while we were looking
	}
	if !e.suspected(r, why, now) {
		if r.State != StatePrepared || e.specFits(r) {
			return nil
		}
		return e.ifUnchanged(r, func(r *Record) error {
			_, err := e.repair(ctx, r)
			return err
		})
	}
	return e.ifUnchanged(r, func(r *Record) error {
		if !e.suspect(r) {
			return nil // it was asked for in this moment
		}
		if err := e.end(ctx, r, ClaimGone); err != nil {
			return err
		}
		e.cfg.Report(r.Ref, ReasonStale, "unprepared, because "+why)
		return nil
	})
}

// ifUnchanged calls f with the record, if the claim's lock is free and the
// record is still what it was.
func (e *Engine) ifUnchanged(was *Record, f func(r *Record) error) error {
	return e.ifIdle(was.UID, func() error {
		r, err := e.read(was.Ref)
		if err != nil || r == nil || r.State != was.State || !r.Since.Equal(was.Since) {
			return err
		}
		return f(r)
	})
}

// unused says why nobody uses a claim, or nothing. now means that there is no
// doubt and nothing to wait for.
func (e *Engine) unused(ctx context.Context, reader ClaimReader, r *Record) (why string, now bool, err error) {
	if r.Name == "" {
		return "", false, nil // adopted without a name: kubelet will unprepare it
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	claim, err := reader.Get(ctx, r.Namespace, r.Name)
	preparing := r.State == StatePreparing
	switch {
	case apierrors.IsNotFound(err):
		return "the claim is gone from the API server", preparing, nil
	case err != nil:
		return "", false, fmt.Errorf("get it: %w", err)
	case claim.UID != r.UID:
		return "another claim has its name now", preparing, nil
	case claim.Status.Allocation == nil:
		return "the claim is not allocated any more", false, nil
	case len(claim.Status.ReservedFor) == 0:
		return "no pod has reserved the claim", false, nil
	case len(r.Devices) > 0 && !slices.ContainsFunc(r.Devices, func(d Prepared) bool { return allocated(claim, d.Device) }):
		return "the claim is allocated to other devices now", false, nil
	}
	return "", false, nil
}

// allocated reports whether a device is among those a claim has.
func allocated(claim *resourceapi.ResourceClaim, d Device) bool {
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Pool == d.Pool && r.Device == d.Name
	})
}

// suspected notes whether a claim seems unused, and reports whether that has
// been so for long enough.
func (e *Engine) suspected(r *Record, why string, now bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if why == "" {
		delete(e.suspects, r.UID)
		return false
	}
	s, known := e.suspects[r.UID]
	if !known {
		s = suspect{since: time.Now(), why: why}
		e.suspects[r.UID] = s
	}
	return now || time.Since(s.since) >= e.cfg.Grace
}

// suspect reports whether a claim seemed unused when it was last looked at, and
// nobody has asked for it since.
func (e *Engine) suspect(r *Record) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.suspects[r.UID]
	return ok
}

// forgetSuspects forgets the suspects that are not recorded any more.
func (e *Engine) forgetSuspects(records []*Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid := range e.suspects {
		if !slices.ContainsFunc(records, func(r *Record) bool { return r.UID == uid }) {
			delete(e.suspects, uid)
		}
	}
}

// Run sweeps now and then until ctx ends: at once, at intervals that differ a
// little so that nodes do not ask the API server in step, and again soon when a
// claim seemed unused. onError is given what Sweep returns; it may be nil.
func (e *Engine) Run(ctx context.Context, reader ClaimReader, onError func(error)) error {
	for {
		if err := e.Sweep(ctx, reader); err != nil && ctx.Err() == nil && onError != nil {
			onError(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(e.pause()):
		}
	}
}

// pause is how long to wait for the next sweep.
func (e *Engine) pause() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	pause := e.cfg.SweepEvery
	if len(e.suspects) > 0 {
		pause = min(pause, e.cfg.Grace)
	}
	return pause + time.Duration(rand.Int64N(int64(pause)/10+1))
}
