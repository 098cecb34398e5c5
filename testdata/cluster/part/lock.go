package part

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy is the kind of error of a lock somebody else holds.
var ErrBusy = errors.New("in use")

// TryLock takes a lock file or says ErrBusy. The kernel releases the lock when
// its holder ends, however that happens.
func TryLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open lock: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock %s: %w", path, ErrBusy)
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// Whoever held it before us may have removed the file: then ours is a
		// lock that nobody else will see.
		held, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if now, err := os.Stat(path); err == nil && os.SameFile(held, now) {
			return f, nil
		}
		f.Close()
	}
}

// Lock waits for a lock file. It calls waiting once if it has to wait.
func Lock(ctx context.Context, path string, waiting func()) (*os.File, error) {
	for first := true; ; first = false {
		l, err := TryLock(path)
		if err == nil || !errors.Is(err, ErrBusy) {
			return l, err
		}
		if first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}
