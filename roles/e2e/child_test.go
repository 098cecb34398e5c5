package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A child is a process that a test has started. It never outlives the test
// process, however that ends.
type child struct {
	name string
	log  string // file with all it says
	cmd  *exec.Cmd
	over chan struct{} // closed when it has ended and is reaped
	err  error         // how it ended; set when over is closed
}

// starting is what the starter thread is asked to do.
var starting = sync.OnceValue(func() chan<- func() {
	ask := make(chan func())
	go func() {
		// The kernel ends a child when the thread that started it ends, and
		// Go ends threads as it likes, except for this one.
		runtime.LockOSThread()
		for f := range ask {
			f()
		}
	}()
	return ask
})

// startChild starts a program. What it says is added to the file log.
func startChild(name, log string, env []string, program string, args ...string) (*child, error) {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer out.Close() // the child has its own copy
	c := &child{name: name, log: log, over: make(chan struct{})}
	c.cmd = exec.Command(program, args...)
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = env, out, out
	c.cmd.Dir = filepath.Dir(log)
	// A group of its own keeps a Ctrl-C at the terminal away: it is for the
	// test, which ends its children in the right order.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	starting() <- func() { started <- c.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.over)
	}()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// ended says whether the process is gone.
func (c *child) ended() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// signal sends a signal; a process that is gone already is no error.
func (c *child) signal(s os.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", c.name, err)
	}
	return nil
}

// wait waits for the end of the process.
func (c *child) wait(limit time.Duration) error {
	select {
	case <-c.over:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("%s does not end within %s", c.name, limit)
	}
}

// kill ends the process at once.
func (c *child) kill() error {
	if err := c.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return c.wait(10 * time.Second)
}

// stop asks the process to end, and ends it if it does not.
func (c *child) stop(patience time.Duration) error {
	if err := c.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := c.wait(patience); err != nil {
		return errors.Join(err, c.kill())
	}
	return nil
}

// tail is the end of what the process has said.
func (c *child) tail() string {
	data, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	const most = 6000
	if len(data) > most {
		data = append([]byte("…"), data[len(data)-most:]...)
	}
	return string(data)
}
