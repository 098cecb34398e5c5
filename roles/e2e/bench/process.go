package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A memory is what a process occupies.
type memory struct {
	resident  int64 // bytes, those of its program file among them, which other processes may share
	anonymous int64 // bytes that only it has
}

// memoryOf reads what a process occupies now.
func memoryOf(pid int) (memory, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	m, err := parseRollup(raw)
	if err != nil {
		return memory{}, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	return m, nil
}

// errRollup is the kind of error of a smaps_rollup that is none.
var errRollup = errors.New("not in the form of /proc/PID/smaps_rollup")

// parseRollup reads the lines Rss and Anonymous of a smaps_rollup.
func parseRollup(raw []byte) (memory, error) {
	found := map[string]int64{}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok || name != "Rss" && name != "Anonymous" {
			continue
		}
		number, ok := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		n, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil || n < 0 || n > 1<<40 {
			return memory{}, fmt.Errorf("%w: line %.80q", errRollup, lines.Text())
		}
		found[name] = n << 10
	}
	if err := lines.Err(); err != nil {
		return memory{}, fmt.Errorf("%w: %w", errRollup, err)
	}
	if len(found) != 2 {
		return memory{}, fmt.Errorf("%w: Rss or Anonymous is missing", errRollup)
	}
	return memory{resident: found["Rss"], anonymous: found["Anonymous"]}, nil
}

// processorTime is how long a process has computed so far, all its threads
// together. It is exact, where /proc/PID/stat counts hundredths of a second.
func processorTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("read processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// childOf finds the only child of a process.
func childOf(parent int) (int, error) {
	var found []int
	err := eachProcess(func(pid int) {
		if parentOf(pid) == parent {
			found = append(found, pid)
		}
	})
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("it has %d", len(found))
	}
	if err != nil {
		return 0, fmt.Errorf("find child of process %d: %w", parent, err)
	}
	return found[0], nil
}

// inCgroup finds the only process with this command line in a control group or
// below it. Children that the process has made of itself do not count.
func inCgroup(group string, command ...string) (int, error) {
	line := strings.Join(command, "\x00") + "\x00"
	found := map[int]bool{}
	err := eachProcess(func(pid int) {
		groups, err1 := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		args, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err1 == nil && err2 == nil && strings.HasPrefix(string(args), line) && strings.Contains(string(groups), group) {
			found[pid] = true
		}
	})
	var first []int
	for pid := range found {
		if !found[parentOf(pid)] {
			first = append(first, pid)
		}
	}
	if err == nil && len(first) != 1 {
		err = fmt.Errorf("there are %d", len(first))
	}
	if err != nil {
		return 0, fmt.Errorf("find process %q in control group %s: %w", strings.Join(command, " "), group, err)
	}
	return first[0], nil
}

// eachProcess calls f with the number of every process there is.
func eachProcess(f func(pid int)) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err == nil && len(dirs) == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("list /proc: %w", err)
	}
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			f(pid)
		}
	}
	return nil
}

// parentOf is the parent of a process, or 0 if there is no such process.
func parentOf(pid int) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain anything.
	_, rest, _ := bytes.Cut(raw[bytes.LastIndexByte(raw, ')')+1:], []byte{' '})
	fields := bytes.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0
	}
	return parent
}
