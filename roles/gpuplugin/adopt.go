package gpuplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"nvdra/cdi"
	"nvdra/nvml/host"
	"nvdra/roles/internal/claims"
)

const (
	// upstreamName is the driver that this one takes over from, in messages.
	upstreamName = "the DRA Driver for NVIDIA GPUs"
	// upstreamFile is where it remembers claims, in the directory that is ours too.
	upstreamFile = "checkpoint.json"
	// maxUpstream is far above what it needs for the largest node.
	maxUpstream = 64 << 20
	// lockWait is how long it waits for its own locks.
	lockWait = 10 * time.Second

	// reasonLeftBehind: a claim was taken over, and what was set up for it on the
	// node will not be taken down by this driver.
	reasonLeftBehind = "LeftBehind"
	// reasonNotTakenOver: a claim of the other driver was not understood.
	reasonNotTakenOver = "ClaimNotTakenOver"
)

// An adoption takes over the claims that the DRA Driver for NVIDIA GPUs has
// prepared on this node and whose pods still run: kubelet does not prepare them
// again, a container of theirs that restarts needs its CDI spec, and nobody else
// must get their devices.
//
// It comes after the first reading of the machine and before claims are
// restored, and is over when the other driver's file has been renamed. Until
// then whatever interrupts it makes the next start begin again, which does no
// harm.
type adoption struct {
	dir     string // of the plugin, which is that of the other driver too
	bootID  string
	pool    string // the node's name
	engine  *claims.Engine
	specs   *cdi.Store
	machine *machine
	box     host.Host
	log     *zap.Logger
	// report tells people of what a claim leaves behind.
	report func(claim claims.Ref, reason, message string)
}

// run takes over what there is. An error means that the plugin must not start:
// going on would remove the CDI specs of running pods.
func (a adoption) run(ctx context.Context) error {
	if err := a.takeOver(ctx); err != nil {
		return fmt.Errorf("take over from %s: %w", upstreamName, err)
	}
	return nil
}

func (a adoption) takeOver(ctx context.Context) error {
	path := filepath.Join(a.dir, upstreamFile)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil // as on every start but one
	}
	release, err := lockUpstream(ctx, a.dir)
	if err != nil {
		return err
	}
	defer release()
	data, err := readUpstream(path)
	var c upstreamCheckpoint
	if err == nil {
		c, err = parseUpstream(data)
	}
	switch {
	case errors.Is(err, errUpstreamDamaged):
		return a.setAside(path, err)
	case err != nil:
		return err
	case c.bootID != "" && c.bootID != a.bootID:
		a.log.Info("take over nothing: the claims are of an earlier boot", zap.String("file", path), zap.Int("claims", len(c.claims)))
	default:
		if err := a.adoptAll(ctx, c); err != nil {
			return err
		}
	}
	return replaceName(path, path+".adopted")
}

// adoptAll takes over all claims that were ready.
func (a adoption) adoptAll(ctx context.Context, c upstreamCheckpoint) error {
	now := a.lookAround()
	var maybeMade []string // MIG devices that may have been made for their claims
	for _, claim := range c.claims {
		switch {
		case claim.err == nil && claim.State == upstreamStarted:
			// Kubelet has not been told of success, so it will ask again, or have it unprepared.
			a.log.Info("leave a claim that was not ready", zap.Stringer("claim", claim.ref()))
			continue
		case claim.err == nil && claim.State == upstreamCompleted && claim.devices() == 0:
			a.log.Info("leave a claim that has nothing", zap.Stringer("claim", claim.ref()))
			continue
		}
		taken, err := a.adopt(ctx, now, claim)
		if errors.Is(err, claims.ErrPermanent) {
			err = a.spare(claim, err)
		}
		if err != nil {
			return err
		}
		maybeMade = append(maybeMade, taken.mig...)
	}
	if len(maybeMade) > 0 {
		a.report(claims.Ref{}, reasonLeftBehind, fmt.Sprintf("MIG devices in use were taken over from %s as they are. If its feature gate DynamicMIG was on, it had made them for their claims: they stay and are offered to others when the claims end; destroy them with nvidia-smi mig -dci and -dgi if nobody is to have them: %s", upstreamName, strings.Join(maybeMade, ", ")))
	}
	return nil
}

// adopt takes over one claim and tells what it will leave behind.
func (a adoption) adopt(ctx context.Context, now surroundings, claim upstreamClaim) (taken, error) {
	t, err := now.takeOver(claim)
	if err != nil {
		return taken{}, err
	}
	news, err := a.engine.Adopt(ctx, t.Adopted)
	if err != nil {
		return taken{}, err
	}
	if news {
		a.log.Info("take over claim", zap.Stringer("claim", t.Ref), zap.Int("devices", len(t.Devices)))
	}
	for _, note := range t.notes {
		a.log.Warn("take over claim", zap.Stringer("claim", t.Ref), zap.String("problem", note))
	}
	for _, what := range t.left {
		a.report(t.Ref, reasonLeftBehind, fmt.Sprintf("Claim %s was prepared by %s, and %s. Better end the pods of such claims before one driver replaces the other", t.Ref, upstreamName, what))
	}
	return t, nil
}

// spare leaves the CDI spec of a claim that was not understood.
func (a adoption) spare(claim upstreamClaim, why error) error {
	a.report(claim.ref(), reasonNotTakenOver, fmt.Sprintf("Claim %.100q, prepared by %s, is not taken over: %v. Its CDI spec stays until it is unprepared, but its devices are not guarded: delete its pod", claim.uid, upstreamName, why))
	if err := a.engine.Spare(claim.uid); err != nil && !errors.Is(err, claims.ErrPermanent) {
		return err // a UID that cannot be one has no spec
	}
	return nil
}

// setAside moves a file that is not understood out of the way. What its claims
// were nobody can tell any more, but their pods may run: their CDI specs stay.
func (a adoption) setAside(path string, why error) error {
	uids, err := a.specs.List()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		if err := a.engine.Spare(types.UID(uid)); err != nil {
			return err
		}
	}
	to := path + ".damaged"
	if err := replaceName(path, to); err != nil {
		return err
	}
	a.report(claims.Ref{}, claims.ReasonDamaged, fmt.Sprintf("Read what %s remembers in %s: %v. It was kept as %s and its claims count as not prepared: their CDI specs stay, but their devices are not guarded, and what was changed on the node for them is not undone. Drain the node to be sure", upstreamName, path, why, to))
	return nil
}

// readUpstream reads the file. Something that is no ordinary file of ordinary
// size is damaged; one that cannot be read is an error like any other.
func readUpstream(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: it is a symbolic link", errUpstreamDamaged)
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w; the plugin must be able to read it, or move it away if no pod on this node uses a GPU", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxUpstream {
		return nil, fmt.Errorf("%w: it is no ordinary file of at most %d bytes", errUpstreamDamaged, maxUpstream)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	return data, nil
}

// replaceName renames a file so that it is still renamed after a power cut.
// What had the name before is replaced.
func replaceName(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err == nil {
		err = errors.Join(dir.Sync(), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("rename %s: %w", from, err)
	}
	return nil
}

// lockUpstream takes the locks under which the other driver works: the first is
// held while it prepares or unprepares a claim, the second while it reads or
// writes its file. It may still run for a moment while it is being replaced.
func lockUpstream(ctx context.Context, dir string) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			f.Close() //nolint:errcheck // nothing was written, and closing gives the lock back
		}
	}
	deadline := time.Now().Add(lockWait)
	for _, name := range []string{"pu.lock", "cp.lock"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // nobody can hold it
		}
		if err == nil {
			held = append(held, f)
			err = waitForFile(ctx, f, deadline)
		}
		if err != nil {
			release()
			return nil, fmt.Errorf("lock %s: %w", filepath.Join(dir, name), err)
		}
	}
	return release, nil
}

// waitForFile takes a lock of the kind the other driver uses.
func waitForFile(ctx context.Context, f *os.File, deadline time.Time) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%w after %s: %s still runs on this node; uninstall it first", claims.ErrLocked, lockWait, upstreamName)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
