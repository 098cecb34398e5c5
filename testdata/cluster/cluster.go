package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"nvdra.test/cluster/box"
)

// A cluster is one that is being started or changed: its record, and the
// processes this launcher has started for it.
type cluster struct {
	place
	mu  sync.Mutex // guards rec and its file
	rec *record
}

// A running part can be waited for.
type running struct {
	name  string
	began time.Time
	ended chan struct{} // closed when err is set
	err   error
}

// A partError says which part did not come up, and what it wrote last.
type partError struct {
	part string
	log  string // the last lines
	err  error
}

func (e *partError) Error() string {
	s := fmt.Sprintf("start %s: %v", e.part, e.err)
	if e.log != "" {
		s += "\nlast lines of its log:\n" + e.log
	}
	return s
}

func (e *partError) Unwrap() error { return e.err }

// errEnded is the kind of error of a part that did not stay.
var errEnded = errors.New("it ended")

// change changes the record and writes it down.
func (c *cluster) change(f func(r *record)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.rec)
	return c.rec.save(c.place)
}

// boxEnv is the environment of every program on a machine of the cluster.
func boxEnv() []string { return []string{"PATH=" + box.Path, "HOME=/root", "LANG=C.UTF-8"} }

// launch starts a part on a machine and records it.
func (c *cluster) launch(m machine, name string, args []string) (*running, error) {
	log, err := os.OpenFile(c.logFile(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: open log: %w", name, err)
	}
	defer log.Close()
	cmd := &exec.Cmd{Args: args, Env: boxEnv(), Stdout: log, Stderr: log, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	r := &running{name: name, began: time.Now(), ended: make(chan struct{})}
	if err := c.rec.box(m).Start(cmd, box.All); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p, ierr := box.Identify(cmd.Process.Pid)
	go func() {
		r.err = cmd.Wait()
		close(r.ended)
	}()
	if ierr != nil {
		return nil, fmt.Errorf("start %s: %w", name, ierr)
	}
	err = c.change(func(rec *record) {
		for i := range rec.Parts {
			if rec.Parts[i].Name == name {
				rec.Parts[i] = started{Name: name, Machine: m.Name, Args: args, Process: p}
				return
			}
		}
		rec.Parts = append(rec.Parts, started{Name: name, Machine: m.Name, Args: args, Process: p})
	})
	return r, err
}

// await waits until a part is well, it has ended, or its time is over.
func (c *cluster) await(ctx context.Context, r *running, limit time.Duration, well func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it was not ready after %v", limit))
	defer cancel()
	var last error
	for pause := 20 * time.Millisecond; ; pause = min(pause*3/2, 250*time.Millisecond) {
		if last = well(ctx); last == nil {
			return nil
		}
		select {
		case <-r.ended:
			return &partError{r.name, c.lastLines(r.name), errors.Join(errEnded, r.err)}
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
				return &partError{r.name, c.lastLines(r.name), fmt.Errorf("%w: %w", err, last)}
			}
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (c *cluster) lastLines(part string) string {
	raw, err := os.ReadFile(c.logFile(part))
	if err != nil {
		return fmt.Sprintf("(read log: %v)", err)
	}
	return tail(string(raw), 15)
}

// together runs functions at once. The first that fails stops the others and is
// what is returned.
func together(ctx context.Context, fs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// seconds prints a duration for people.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
