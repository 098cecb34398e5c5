package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"nvdra/nvml"
)

const (
	// cancelGrace is how long a call whose context ended may still take to
	// leave the GPU as it was, before its child is given up.
	cancelGrace = 2 * time.Second
	// endGrace is how long a child may take to end its session with the driver.
	endGrace = 5 * time.Second
	// closeGrace is how long Close waits for that.
	closeGrace = endGrace + time.Second
)

// A child is the parent's side of one NVML child process, that is of one
// session with the driver.
type child struct {
	library libraryFile
	conn    *os.File
	process *os.Process
	stderr  *words
	ended   chan struct{} // closed when the process is gone

	write sync.Mutex // one request at a time

	mu       sync.Mutex
	next     uint64
	waiting  map[uint64]chan response
	calls    int   // acquired, not yet released
	retired  bool  // takes no more calls
	ending   bool  // was told to end
	gone     error // why it answers no more
	idleStop func() bool
}

// startChild starts the program again as NVML child. It does not wait for it:
// the library is loaded while the first request is on its way.
func startChild(program string, file libraryFile) (*child, error) {
	if os.Getenv(childEnv) != "" {
		return nil, errNoChild
	}
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	c := &child{
		library: file,
		conn:    ours,
		stderr:  &words{},
		ended:   make(chan struct{}),
		waiting: map[uint64]chan response{},
	}
	cmd := &exec.Cmd{
		Path:       program,
		Args:       []string{ChildName, file.path},
		Env:        append(os.Environ(), childEnv+"=1"),
		Stderr:     c.stderr,
		ExtraFiles: []*os.File{theirs},
		// Signals from a terminal are for the parent; the child ends when the
		// parent does.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
		WaitDelay:   endGrace,
	}
	err = cmd.Start()
	theirs.Close() // the child has its own copy
	if err != nil {
		ours.Close() // nobody has read or written it
		return nil, err
	}
	c.process = cmd.Process
	go c.receive(cmd)
	return c, nil
}

// socketpair is two connected sockets.
func socketpair() (a, b *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	// Ours must not block a thread for each waiting read.
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		syscall.Close(fds[0])
		syscall.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "NVML child"), os.NewFile(uintptr(fds[1]), "parent"), nil
}

// receive hands each response to the call that waits for it, until the child
// is gone; then it tells all that still wait.
func (c *child) receive(cmd *exec.Cmd) {
	dec := json.NewDecoder(c.conn)
	var readErr error
	for {
		var resp response
		if readErr = dec.Decode(&resp); readErr != nil {
			break
		}
		c.mu.Lock()
		ch := c.waiting[resp.ID]
		delete(c.waiting, resp.ID)
		c.mu.Unlock()
		if ch != nil { // nil: its caller has given up
			ch <- resp
		}
	}
	// A child that closes its end, or sends what is no answer, is of no use.
	// While it was told to end it may take its time for it.
	c.mu.Lock()
	ending := c.ending
	c.mu.Unlock()
	if !ending {
		time.AfterFunc(endGrace/10, c.kill)
	}
	waitErr := cmd.Wait()
	c.mu.Lock()
	c.retired = true
	c.gone = fmt.Errorf("%w: the NVML child ended%s", nvml.ErrDriver, c.obituary(readErr, waitErr))
	for id, ch := range c.waiting {
		close(ch)
		delete(c.waiting, id)
	}
	c.mu.Unlock()
	c.conn.Close() // both sides are done with it
	close(c.ended)
}

// obituary is how the child ended, with its words if it had any.
func (c *child) obituary(readErr, waitErr error) string {
	text := ""
	if waitErr != nil {
		text += ": " + waitErr.Error()
	}
	if said := c.stderr.String(); said != "" {
		return text + ": " + said
	}
	if waitErr == nil && !errors.Is(readErr, io.EOF) {
		return ": " + readErr.Error()
	}
	return text
}

// acquire counts a call that is about to be made. It is false when the child
// takes none any more.
func (c *child) acquire() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired {
		return false
	}
	c.calls++
	if c.idleStop != nil {
		c.idleStop()
		c.idleStop = nil
	}
	return true
}

// release counts a call that is over. After the last one the session ends:
// at once when the child is retired, otherwise after being idle.
func (c *child) release(idle time.Duration, expire func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
	if c.calls > 0 {
		return
	}
	if c.retired {
		c.end()
		return
	}
	c.idleStop = time.AfterFunc(idle, func() {
		c.mu.Lock()
		busy := c.calls > 0
		if !busy {
			c.retired = true
		}
		c.mu.Unlock()
		if !busy {
			expire()
		}
	}).Stop
}

// retire makes the child end as soon as no call runs in it.
func (c *child) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = true
	if c.calls == 0 {
		c.end()
	}
}

// end tells the child to end, by closing our half of the socket, and kills it
// if it does not. c.mu is held. When a call was given up in it, the driver
// hangs and there is nothing to wait for.
func (c *child) end() {
	if c.ending {
		return
	}
	c.ending = true
	if len(c.waiting) > 0 {
		c.kill()
		return
	}
	if err := c.hangUp(); err != nil {
		c.kill()
		return
	}
	time.AfterFunc(endGrace, c.kill)
}

func (c *child) hangUp() error {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	var shut error
	if err := raw.Control(func(fd uintptr) { shut = syscall.Shutdown(int(fd), syscall.SHUT_WR) }); err != nil {
		return err
	}
	return shut
}

// kill ends the child the hard way. Its error says that it is gone already.
func (c *child) kill() {
	_ = c.process.Kill()
}

// waitIfEnding waits until the child is gone, if it was told to end.
func (c *child) waitIfEnding(limit time.Duration) error {
	c.mu.Lock()
	ending := c.ending
	c.mu.Unlock()
	if !ending {
		return nil
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("the NVML child (process %d) hangs in the driver and cannot be ended", c.process.Pid)
	}
}

// call makes one request and waits for its response. When the context ends
// first the child is asked to give the request up, and left a moment to do so
// properly; if it does not answer even then, the driver hangs.
func (c *child) call(ctx context.Context, req request) (response, error) {
	answer := make(chan response, 1)
	c.mu.Lock()
	if c.gone != nil {
		c.mu.Unlock()
		return response{}, c.gone
	}
	c.next++
	req.ID = c.next
	c.waiting[req.ID] = answer
	c.mu.Unlock()

	c.send(req)
	select {
	case resp, ok := <-answer:
		return c.answered(resp, ok)
	case <-ctx.Done():
	}
	c.send(request{ID: req.ID, Op: opCancel})
	grace := time.NewTimer(cancelGrace)
	defer grace.Stop()
	select {
	case resp, ok := <-answer:
		return c.answered(resp, ok)
	case <-grace.C:
		return response{}, fmt.Errorf("%w: no answer from NVML: %w", nvml.ErrDriver, ctx.Err())
	}
}

func (c *child) answered(resp response, ok bool) (response, error) {
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		return response{}, c.gone
	}
	return resp, nil
}

// send writes a request. An error means that the child is gone, which receive
// finds out as well, with the reason; the call then gets that.
func (c *child) send(req request) {
	data, err := json.Marshal(req)
	if err != nil { // a request has no field that could not be encoded
		c.kill()
		return
	}
	c.write.Lock()
	defer c.write.Unlock()
	if _, err := c.conn.Write(append(data, '\n')); err != nil {
		c.kill()
	}
}

// words are what a child says on its standard error, which is why it ends:
// the dynamic linker's reason, or the first lines of a crash.
type words struct {
	mu   sync.Mutex
	data []byte
}

const (
	maxWords = 400 // bytes kept
	maxLines = 2   // lines shown
)

// Write implements io.Writer. What is too much is dropped.
func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.data = append(w.data, p[:min(len(p), maxWords-len(w.data))]...)
	return len(p), nil
}

// String is the words on one line.
func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := strings.FieldsFunc(string(w.data), func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[:min(len(lines), maxLines)], "; ")
}
