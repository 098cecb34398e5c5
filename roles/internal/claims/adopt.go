package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Adopted is a claim that another program prepared on this node before us.
type Adopted struct {
	// Ref may have no namespace and no name if the other program did not
	// remember them. Such a claim is not looked up by Sweep: it stays until
	// kubelet unprepares it.
	Ref
	// BootID is of the boot in which the claim was prepared; "" is this one.
	BootID string
	// Devices have the CDI ids that kubelet was told.
	Devices []Prepared
	// Steps count as done, and are undone when the claim ends. Their
	// Result may be missing if their handler needs none.
	Steps []Step
}

// Adopt remembers a claim that another program prepared, as if Prepare had: it
// is given to kubelet again, guarded against other claims, repaired and
// unprepared like any other. It touches nothing on the node. In particular it
// leaves the CDI spec as the other program wrote it; from then on the spec is
// written again only if it is lost or what it should say has changed.
//
// A claim that is known already, in whatever state, stays as it is, and adopted
// is false: so whoever is interrupted begins again and does no harm. It is not
// compared with other claims, because what it has it has.
//
// Adopt comes before Restore, which removes CDI specs that nobody remembers. An
// error that wraps ErrPermanent says that there is no such claim; see Spare.
func (e *Engine) Adopt(ctx context.Context, a Adopted) (adopted bool, err error) {
	adopted, err = e.adopt(ctx, a)
	if err != nil {
		return false, fmt.Errorf("adopt claim %s: %w", a.Ref, err)
	}
	if adopted {
		e.changed()
	}
	return adopted, nil
}

func (e *Engine) adopt(ctx context.Context, a Adopted) (bool, error) {
	r, err := e.adoptedRecord(a)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrPermanent, err)
	}
	release, err := e.locks.acquire(ctx, claimLock(r.UID))
	if err != nil {
		return false, err
	}
	defer release()
	known, err := e.read(r.Ref)
	if known != nil || errors.Is(err, ErrNewer) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if s, err := e.specOf(ctx, r); err == nil {
		r.Spec = s.print // what is there counts as what we would write now
	}
	// Without a print, Restore tries to write the spec and reports if it cannot.
	return true, e.publishAdopted(ctx, r)
}

// adoptedRecord makes a record of a claim and refuses one that could not be
// right.
func (e *Engine) adoptedRecord(a Adopted) (*Record, error) {
	r := (&Record{Ref: a.Ref, BootID: a.BootID, Devices: a.Devices, Steps: a.Steps}).moved(StatePrepared, time.Now())
	if r.BootID == "" {
		r.BootID = e.cfg.BootID
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		passive, known := e.passive(s.Kind)
		if !known {
			return nil, fmt.Errorf("step %q: nothing here handles this kind of step", s.Kind)
		}
		s.Begun = !passive
		if s.Result == nil {
			s.Result = json.RawMessage("null")
		}
	}
	return r, r.normalize()
}

// publishAdopted writes the record under the lock under which others compare
// themselves with all records.
func (e *Engine) publishAdopted(ctx context.Context, r *Record) error {
	if err := e.files.stage(r); err != nil {
		return err
	}
	release, err := e.locks.acquire(ctx, directoryLock)
	if err == nil {
		err = e.files.publish(r.UID)
		release()
	}
	if err != nil {
		return errors.Join(err, e.files.discard(r.UID))
	}
	return e.files.sync()
}

// Spare keeps the CDI spec of a claim that another program prepared and that
// could not be adopted, because nobody can tell what it is. As with a claim
// whose record was damaged, the spec stays until kubelet unprepares the claim or
// the node reboots: a container that restarts needs it. For a claim that is
// known it does nothing.
func (e *Engine) Spare(uid types.UID) error {
	if err := e.spare(uid); err != nil {
		return fmt.Errorf("keep CDI spec of claim %s: %w", uid, err)
	}
	return nil
}

func (e *Engine) spare(uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	if known, err := e.dir.has(uid); err != nil || known {
		return err
	}
	spared, err := e.dir.damagedSince(e.cfg.BootID)
	if err != nil || spared[uid] {
		return err
	}
	name := fmt.Sprintf("%s.%s.%d", uid, bootMark(e.cfg.BootID), time.Now().UnixNano())
	f, err := os.OpenFile(filepath.Join(e.dir.dir, damagedDir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}
