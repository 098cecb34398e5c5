package process

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// wait is a task that does as it is told.
func wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		err := Run(ctx, zap.NewNop(), Task{"a", wait}, Task{"b", func(ctx context.Context) error { <-ctx.Done(); return nil }})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestRunWithoutTasks(t *testing.T) {
	if err := Run(t.Context(), zap.NewNop()); err != nil {
		t.Error(err)
	}
}

func TestRunNamesTheTaskThatFails(t *testing.T) {
	cause := errors.New("no such socket")
	for name, test := range map[string]struct {
		run  func(context.Context) error
		is   error
		says string
	}{
		"error":       {func(context.Context) error { return cause }, cause, "serve kubelet: no such socket"},
		"nil":         {func(context.Context) error { return nil }, ErrEnded, "serve kubelet: ended though nobody asked it to"},
		"panic":       {func(context.Context) error { panic("index out of range") }, ErrPanic, "serve kubelet: panic: index out of range"},
		"goexit":      {func(context.Context) error { runtime.Goexit(); return nil }, ErrPanic, "serve kubelet: panic: its goroutine has ended"},
		"own context": {func(context.Context) error { return context.Canceled }, context.Canceled, "serve kubelet: context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var others atomic.Int32
				err := Run(t.Context(), zap.NewNop(), Task{"a", func(ctx context.Context) error { defer others.Add(1); return wait(ctx) }},
					Task{"serve kubelet", test.run}, Task{"b", func(ctx context.Context) error { <-ctx.Done(); others.Add(1); return nil }})
				if !errors.Is(err, test.is) || err.Error() != test.says {
					t.Errorf("Run = %v, want %q", err, test.says)
				}
				if others.Load() != 2 {
					t.Error("Run did not wait for the others")
				}
			})
		})
	}
}

func TestPanicIsLoggedWithItsStack(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	if err := Run(t.Context(), zap.New(core), Task{"a", func(context.Context) error { panic("x") }}); !errors.Is(err, ErrPanic) {
		t.Error(err)
	}
	entries := logs.FilterMessage("panic").All()
	if len(entries) != 1 || !strings.Contains(entries[0].ContextMap()["stack"].(string), "task_test.go") {
		t.Errorf("%+v", entries)
	}
}

func TestRunReportsWhatFailsOnTheWayOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := Run(t.Context(), zap.NewNop(),
			Task{"a", func(context.Context) error { return io.ErrUnexpectedEOF }},
			Task{"b", func(ctx context.Context) error { <-ctx.Done(); return io.ErrClosedPipe }})
		if err == nil || err.Error() != "a: unexpected EOF; b: io: read/write on closed pipe" || !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = Run(ctx, zap.NewNop(), Task{"b", func(ctx context.Context) error { <-ctx.Done(); panic("late") }})
		if !errors.Is(err, ErrPanic) {
			t.Error(err)
		}
	})
}

func TestRunDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		stuck := func(context.Context) error { <-release; return nil }
		before := time.Now()
		err := Run(t.Context(), zap.NewNop(), Task{"z", stuck}, Task{"fails", func(context.Context) error { return io.EOF }}, Task{"a", stuck})
		if !errors.Is(err, ErrStuck) || !errors.Is(err, io.EOF) || err.Error() != "fails: EOF; a, z: does not stop within 20s" {
			t.Error(err)
		}
		if took := time.Since(before); took != Grace {
			t.Errorf("took %v", took)
		}
	})
}

func TestRunInsideRun(t *testing.T) {
	err := Run(t.Context(), zap.NewNop(), Task{"outer", func(ctx context.Context) error {
		return Run(ctx, zap.NewNop(), Task{"inner", func(context.Context) error { return io.EOF }})
	}}, Task{"other", wait})
	if err == nil || err.Error() != "outer: inner: EOF" {
		t.Error(err)
	}
}
