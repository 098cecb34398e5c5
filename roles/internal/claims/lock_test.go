package claims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func mustOpenLocks(t *testing.T, dir string, wait time.Duration) *locks {
	t.Helper()
	l, err := openLocks(filepath.Join(dir, lockName), wait)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLockExcludes(t *testing.T) {
	dir := fastDir(t)
	var processes []*locks
	for range 6 {
		processes = append(processes, mustOpenLocks(t, dir, time.Minute))
	}
	var inside atomic.Int32
	var group sync.WaitGroup
	for i := range 12 {
		group.Go(func() {
			for range 100 {
				release, err := processes[i%6].acquire(t.Context(), "x")
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two are inside")
				}
				runtime.Gosched()
				inside.Add(-1)
				release()
			}
		})
	}
	group.Wait()
	if names, err := readNames(dir); err != nil || len(names) != 1 {
		t.Errorf("left: %q, %v", names, err)
	}
	for _, l := range processes {
		if len(l.turns) > 0 {
			t.Errorf("%d queues are left", len(l.turns))
		}
	}
}

// R019: a holder that does not let go makes others fail in bounded time with
// the file's name, and nobody has to clean up after it.
func TestR019StuckHolder(t *testing.T) {
	b := setUp(t, func(c *Config) { c.LockWait = 30 * time.Millisecond })
	c := claim("job", gpu("gpu-0", "act"))
	for _, name := range []string{claimLock(c.UID), directoryLock, stepLock(stepsOf("gpu-0", "act")[0])} {
		other := mustOpenLocks(t, b.cfg.Dir, time.Second)
		if release, err := other.try(name); release == nil {
			t.Fatal(err)
		}
		_, err := b.Prepare(t.Context(), c)
		wantError(t, err, ErrLocked, filepath.Join(b.cfg.Dir, ".lock"), name, "another process", "30ms")
		wantError(t, err, ErrRetry)
		if err := other.file.Close(); err != nil { // what the kernel does for a process that was killed
			t.Fatal(err)
		}
		mustPrepare(t, b, c)
		mustUnprepare(t, b, c)
	}
	mustBeEmpty(t, b)
}

// A call waits for one before it in the same process as long as it may run
// itself; without a deadline, only so long.
func TestLockWaits(t *testing.T) {
	dir := fastDir(t)
	synctest.Test(t, func(t *testing.T) {
		l := mustOpenLocks(t, dir, 10*time.Second)
		release, err := l.acquire(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = l.acquire(t.Context(), "x")
		wantError(t, err, ErrLocked, "another call", filepath.Join(dir, lockName)+" (x)")
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("waited %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		time.AfterFunc(30*time.Second, release)
		release, err = l.acquire(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		if again, err := l.try("x"); again != nil || err != nil {
			t.Errorf("a held lock was taken: %v", err)
		}
		release()
		if release, err = l.try("x"); release == nil || err != nil {
			t.Fatalf("a free lock was not taken: %v", err)
		}
		release()
	})
}

// A lock file that is none is an error with its name, not a wait.
func TestLockCannotBeMade(t *testing.T) {
	b := setUp(t)
	path := filepath.Join(b.cfg.Dir, lockName)
	if err := errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(b.cfg)
	wantError(t, err, nil, path)
	l := mustOpenLocks(t, t.TempDir(), time.Minute)
	if err := l.file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.acquire(t.Context(), "x"); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("a closed file: %v", err)
	}
	if _, err := l.try("x"); err == nil {
		t.Error("a closed file was locked")
	}
	if len(l.turns) > 0 {
		t.Error("a queue is left")
	}
}

// The names of locks do not meet.
func TestLockBytes(t *testing.T) {
	seen := map[int64]string{}
	for i := range 100000 {
		name := claimLock(types.UID(fmt.Sprint(i)))
		at := lockByte(name)
		if at < 0 || seen[at] != "" {
			t.Fatalf("%s is at %d, and so is %q", name, at, seen[at])
		}
		seen[at] = name
	}
}
