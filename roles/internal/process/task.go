package process

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sort"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Grace is how long Run waits for its tasks once they have been told to stop.
// It is shorter than the 30 seconds that kubelet gives a pod, so that the log
// still says who did not stop.
const Grace = 20 * time.Second

// Kinds of errors of Run.
var (
	ErrEnded = errors.New("ended though nobody asked it to")
	ErrPanic = errors.New("panic")
	ErrStuck = errors.New("does not stop")
)

// A Task is long-running work with a name. Run returns when ctx is done, and
// then nil or the context's error; anything else, and any return before, is a
// failure of the task.
type Task struct {
	Name string
	Run  func(ctx context.Context) error
}

// Run runs tasks until ctx is done, which is a success, or until one of them
// returns or panics, which is an error that names the task. Either way the
// others are told to stop and are waited for, at most for Grace.
func Run(ctx context.Context, log *zap.Logger, tasks ...Task) error {
	if len(tasks) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	results := make(chan result, len(tasks)) // room for all: none waits for a Run that has given up
	running := map[int]string{}
	for i, task := range tasks {
		running[i] = task.Name
		go func() {
			r := result{i, fmt.Errorf("%w: its goroutine has ended", ErrPanic)} // what stays if runtime.Goexit ends it
			defer func() { results <- r }()
			r.err = call(ctx, log, task)
		}()
	}

	var errs []error
	var grace <-chan time.Time
	stop := ctx.Done()
	for len(running) > 0 {
		select {
		case r := <-results:
			name := running[r.index]
			delete(running, r.index)
			if err := r.failure(ctx, name); err != nil {
				errs = append(errs, err)
			}
			cancel()
		case <-stop:
			stop, grace = nil, time.After(Grace)
		case <-grace:
			errs = append(errs, fmt.Errorf("%s: %w within %v", names(running), ErrStuck, Grace))
			return oneLine(errs)
		}
	}
	return oneLine(errs)
}

// result is how a task came to its end.
type result struct {
	index int
	err   error
}

// failure turns a result into Run's error; nil if the task has done what it
// should. ctx is the context that the task has been given.
func (r result) failure(ctx context.Context, name string) error {
	stopping := ctx.Err() != nil
	switch {
	case r.err == nil && stopping:
		return nil
	case r.err == nil:
		return fmt.Errorf("%s: %w", name, ErrEnded)
	case stopping && !errors.Is(r.err, ErrPanic) && (errors.Is(r.err, ctx.Err()) || errors.Is(r.err, context.Cause(ctx))):
		return nil
	}
	return fmt.Errorf("%s: %w", name, r.err)
}

// call runs one task and turns a panic into an error.
func call(ctx context.Context, log *zap.Logger, task Task) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic", zap.String("task", task.Name), zap.Any("value", p), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrPanic, p)
		}
	}()
	return task.Run(ctx)
}

func names(running map[int]string) string {
	var list []string
	for _, name := range running {
		list = append(list, name)
	}
	sort.Strings(list)
	return strings.Join(list, ", ")
}

// oneLine joins errors with semicolons, the first failure first.
func oneLine(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return joined(errs)
}

// joined is errors.Join on one line.
type joined []error

func (j joined) Error() string {
	texts := make([]string, len(j))
	for i, err := range j {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (j joined) Unwrap() []error { return j }
