package claims

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// restoreAtOnce is how many claims Restore works on at the same time.
const restoreAtOnce = 4

// Restore puts things in order after a start: whatever ended the process
// before, and however much the node changed since. It finishes unprepares that
// were under way, forgets claims of an earlier boot, writes CDI specs of
// prepared claims that are missing or outdated, removes specs of claims that
// do not exist, and removes temporary files. A claim that was being prepared
// stays as it is for kubelet to try again, or for Sweep.
//
// What is wrong with one claim is reported and tried again by Sweep; it does not
// stop the others. An error means that the directory cannot be used at all.
// Claims that another process works on right now are left to it.
func (e *Engine) Restore(ctx context.Context) error {
	if err := e.restore(ctx); err != nil {
		return fmt.Errorf("restore claims from %s: %w", e.dir.dir, err)
	}
	e.changed()
	return nil
}

func (e *Engine) restore(ctx context.Context) error {
	uids, err := e.dir.list()
	if err != nil {
		return err
	}
	staged, err := e.dir.staged()
	if err != nil {
		return err
	}
	slots := make(chan struct{}, restoreAtOnce)
	var claims sync.WaitGroup
	for _, uid := range uids {
		slots <- struct{}{}
		claims.Go(func() {
			defer func() { <-slots }()
			e.restoreClaim(ctx, uid)
		})
	}
	claims.Wait()
	for _, uid := range staged {
		if err := e.ifIdle(uid, func() error { return e.files.discard(uid) }); err != nil {
			e.cfg.Report(Ref{UID: uid}, ReasonUnreadable, err.Error())
		}
	}
	return e.removeOrphans()
}

// ifIdle calls f with the lock of a claim, or not at all if it is taken.
func (e *Engine) ifIdle(uid types.UID, f func() error) error {
	release, err := e.locks.try(claimLock(uid))
	if err != nil || release == nil {
		return err
	}
	defer release()
	return f()
}

// restoreClaim puts one claim in order and reports if that is not possible.
func (e *Engine) restoreClaim(ctx context.Context, uid types.UID) {
	ref, reason := Ref{UID: uid}, ReasonUnreadable
	err := e.ifIdle(uid, func() error {
		r, err := e.read(ref)
		if err != nil || r == nil {
			return err
		}
		ref = r.Ref
		if r.State == StatePrepared && !e.rebooted(r) {
			reason = ReasonSpec
			_, err = e.repair(ctx, r)
			return err
		}
		reason = ReasonUndo
		_, err = e.settled(ctx, ref)
		return err
	})
	if err != nil {
		e.cfg.Report(ref, reason, err.Error())
	}
}

// removeOrphans removes CDI specs of claims that nobody remembers. The spec of
// a claim whose record was damaged stays as long as its pod may run: a
// container of it that restarts needs the spec, and kubelet does not ask for
// the claim to be prepared again.
func (e *Engine) removeOrphans() error {
	uids, err := e.cfg.Specs.List()
	if err != nil {
		// Not having a list of specs must not keep anybody from preparing.
		e.cfg.Report(Ref{}, ReasonSpec, err.Error())
		return nil
	}
	damaged, err := e.dir.damagedSince(e.cfg.BootID)
	if err != nil {
		return err
	}
	for _, uid := range uids {
		uid := types.UID(uid)
		if damaged[uid] || checkUID(uid) != nil {
			continue
		}
		err := e.ifIdle(uid, func() error {
			known, err := e.dir.has(uid)
			if err != nil || known {
				return err
			}
			return e.cfg.Specs.Remove(string(uid))
		})
		if err != nil {
			e.cfg.Report(Ref{UID: uid}, ReasonSpec, err.Error())
		}
	}
	return nil
}
