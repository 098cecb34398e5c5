package claims

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// locks are named locks that hold between the goroutines of this process and
// between processes. For other processes a lock is a lock of the kernel on one
// byte of a file, the byte being chosen by the name. So a lock is free as soon
// as its holder is dead, however it died, and taking one writes nothing: files
// that come and go would make every fsync next to them slower.
//
// Order, for whoever needs more than one: claim, then step, then directory.
type locks struct {
	file *os.File
	wait time.Duration // how long acquire waits at most

	mu    sync.Mutex
	turns map[string]*turn
}

// turn is the queue of this process's goroutines for one lock.
type turn struct {
	free  chan struct{} // holds a value while nobody has the lock
	users int           // who have it or wait for it
}

// directoryLock is held while a claim is compared with all others and published.
const directoryLock = "directory"

// claimLock is held for all work on a claim.
func claimLock(uid types.UID) string { return "claim " + string(uid) }

// stepLock is held while a step is done, and while it is found out whether
// another claim needs it and if not, undone.
func stepLock(s Step) string { return fmt.Sprintf("step %s %s", s.Kind, s.Key) }

// openLocks opens the file that locks are on.
func openLocks(path string, wait time.Duration) (*locks, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	l := &locks{file: f, wait: wait, turns: map[string]*turn{}}
	release, err := l.try(directoryLock)
	if err != nil {
		return nil, errors.Join(err, f.Close()) // a file system without locks
	}
	if release != nil {
		release()
	}
	return l, nil
}

// acquire waits for a lock until ctx ends. If ctx has no deadline, or another
// process has the lock, it waits only so long. The error names file and lock.
func (l *locks) acquire(ctx context.Context, name string) (release func(), err error) {
	patient, cancel := ctx, func() {}
	if _, ok := ctx.Deadline(); !ok {
		patient, cancel = l.limit(ctx)
	}
	leave, err := l.queue(patient, name)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("lock %s (%s): %w by another call (%w): %w", l.file.Name(), name, ErrLocked, ErrRetry, err)
	}
	short, cancel := l.limit(ctx)
	defer cancel()
	if err := l.waitForByte(short, name); err != nil {
		leave()
		return nil, fmt.Errorf("lock %s (%s): %w", l.file.Name(), name, err)
	}
	return func() { l.unlock(name); leave() }, nil
}

func (l *locks) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, l.wait, fmt.Errorf("not free after %s; it frees itself when its holder is done or dead", l.wait))
}

// waitForByte takes the kernel's lock as soon as no other process has it. The
// kernel can wait for that only in a way that cannot be ended, so we look often.
func (l *locks) waitForByte(ctx context.Context, name string) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := l.control(name, unix.F_WRLCK)
		if err == nil || !errors.Is(err, ErrLocked) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w by another process (%w): %w", ErrLocked, ErrRetry, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// try takes a lock if it is free now. If not, release is nil.
func (l *locks) try(name string) (release func(), err error) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	leave, err := l.queue(over, name)
	if err != nil {
		return nil, nil
	}
	err = l.control(name, unix.F_WRLCK)
	switch {
	case err == nil:
		return func() { l.unlock(name); leave() }, nil
	case errors.Is(err, ErrLocked):
		leave()
		return nil, nil
	default:
		leave()
		return nil, fmt.Errorf("lock %s (%s): %w", l.file.Name(), name, err)
	}
}

// queue waits for this process's turn.
func (l *locks) queue(ctx context.Context, name string) (leave func(), err error) {
	l.mu.Lock()
	t := l.turns[name]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		t.free <- struct{}{}
		l.turns[name] = t
	}
	t.users++
	l.mu.Unlock()

	forget := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(l.turns, name)
		}
	}
	select {
	case <-t.free: // also when ctx is over: try relies on it
		return func() { t.free <- struct{}{}; forget() }, nil
	default:
	}
	select {
	case <-t.free:
		return func() { t.free <- struct{}{}; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, context.Cause(ctx)
	}
}

// control takes or gives back the kernel's lock of a name. The lock belongs to
// the open file, so one file serves the whole process; queue keeps its
// goroutines apart.
func (l *locks) control(name string, kind int16) error {
	lock := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: lockByte(name), Len: 1}
	for {
		err := unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &lock)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
			return ErrLocked
		default:
			return err
		}
	}
}

// lockByte returns the byte that stands for a name. There are so many that two
// names will not meet.
func lockByte(name string) int64 {
	digest := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(digest[:8]) >> 2)
}

// unlock gives the kernel's lock back. That cannot fail for a lock that is held;
// if it did, others would find out by waiting for it in vain.
func (l *locks) unlock(name string) {
	_ = l.control(name, unix.F_UNLCK)
}
