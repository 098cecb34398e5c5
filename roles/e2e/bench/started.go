package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A started is a process on the node that we have started ourselves.
type started struct {
	name     string
	launcher *exec.Cmd // passes the process' end on
	pid      int       // of the process, as this machine counts
	at       time.Time // when it became the program
	log      string    // file with what it says
}

// endLimit is how long a process may take to end when it is asked to.
const endLimit = 10 * time.Second

// start starts a program on the node. With an image it sees that directory as its
// root, with what the product's pod mounts. The moment of its start is taken by
// the process that becomes it, right before it does.
func (b *bench) start(ctx context.Context, name string, inImage bool, env []string, args ...string) (*started, error) {
	moment := nodeDir + "/" + name + ".started"
	log := filepath.Join(b.work, name+".log")
	if err := os.RemoveAll(b.cluster.file(moment)); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer out.Close() // the process has its own copy
	line := []string{"exec", nodeName, nodeBench, "enter", "-moment", moment}
	if inImage {
		line = append(line, "-image", nodeImage)
	}
	for _, e := range env {
		line = append(line, "-env", e)
	}
	s := &started{name: name, launcher: b.cluster.command(context.WithoutCancel(ctx), append(append(line, "--"), args...)...), log: log}
	s.launcher.Stdout, s.launcher.Stderr = out, out
	if err := s.launcher.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	err = poll(ctx, 10*time.Second, 2*time.Millisecond, func() error {
		raw, err := os.ReadFile(b.cluster.file(moment))
		if err != nil {
			return err
		}
		nano, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			return fmt.Errorf("read the time of its start: %w", err)
		}
		s.at = time.Unix(0, nano)
		return nil
	})
	if err == nil {
		s.pid, err = childOf(s.launcher.Process.Pid)
	}
	if err != nil {
		_ = s.launcher.Process.Kill() // with its child, if any, when the cluster ends
		return nil, fmt.Errorf("start %s: %w; it says: %s", name, err, s.tail())
	}
	return s, nil
}

// stop asks the process to end, and waits until it has.
func (s *started) stop() error {
	if err := syscall.Kill(s.pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop %s: %w", s.name, err)
	}
	late := time.AfterFunc(endLimit, func() {
		_ = syscall.Kill(s.pid, syscall.SIGKILL) // if it is gone, so much the better
	})
	defer late.Stop()
	if err := s.launcher.Wait(); err != nil {
		return fmt.Errorf("stop %s: %w; it says: %s", s.name, err, s.tail())
	}
	return nil
}

// await waits until the process has said something.
func (s *started) await(ctx context.Context, limit time.Duration, word string) error {
	err := poll(ctx, limit, 20*time.Millisecond, func() error {
		raw, err := os.ReadFile(s.log)
		if err == nil && !bytes.Contains(raw, []byte(word)) {
			err = fmt.Errorf("it has not said %q", word)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w; it says: %s", s.name, err, s.tail())
	}
	return nil
}

// tail is the end of what the process has said.
func (s *started) tail() string {
	raw, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(raw[max(0, len(raw)-2000):]))
}

// poll calls f until it succeeds, at most for limit.
func poll(ctx context.Context, limit, pause time.Duration, f func() error) error {
	for deadline := time.Now().Add(limit); ; {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not after %v: %w", limit, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
