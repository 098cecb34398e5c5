package box

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Process is one process and no other: its number together with the moment
// it began, in the kernel's ticks, because numbers are used again.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Identify says which process has a number now.
func Identify(pid int) (Process, error) {
	_, start, err := readStat(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: start}, nil
}

// Alive says whether the process still runs. One that has ended but was not yet
// buried does not.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	state, start, err := readStat(p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// Signal sends a signal to this very process. A process that has ended is no error.
func (p Process) Signal(sig syscall.Signal) error {
	if !p.Alive() {
		return nil
	}
	// FindProcess holds on to the process that has the number now; whether
	// that is ours is asked again afterwards.
	h, err := os.FindProcess(p.PID)
	if err != nil {
		return fmt.Errorf("find process %d: %w", p.PID, err)
	}
	defer h.Release()
	if !p.Alive() {
		return nil
	}
	if err := h.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// End asks the process to end, waits, kills it if it will not, and waits again.
// A patience of zero kills at once.
func (p Process) End(patience time.Duration) error {
	if patience > 0 {
		if err := p.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if p.waitGone(patience) {
			return nil
		}
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	if !p.waitGone(20 * time.Second) {
		return fmt.Errorf("end process %d: it is still there 20s after it was killed", p.PID)
	}
	return nil
}

func (p Process) waitGone(limit time.Duration) bool {
	for end := time.Now().Add(limit); p.Alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func readStat(pid int) (state byte, start uint64, err error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	state, start, err = parseStat(raw)
	if err != nil {
		return 0, 0, fmt.Errorf("read process %d: %w", pid, err)
	}
	return state, start, nil
}

// parseStat reads the state and the start time from /proc/PID/stat. The name in
// brackets may hold anything, brackets and spaces included.
func parseStat(raw []byte) (state byte, start uint64, err error) {
	i := bytes.LastIndexByte(raw, ')')
	if i < 0 {
		return 0, 0, errors.New("parse stat: no name in brackets")
	}
	fields := strings.Fields(string(raw[i+1:]))
	if len(fields) < 20 || len(fields[0]) != 1 {
		return 0, 0, fmt.Errorf("parse stat: %d fields after the name, want at least 20", len(fields))
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("parse stat: start time: %w", err)
	}
	return fields[0][0], start, nil
}
