package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// orphans fails if a process that has to do with a directory outlives what
// started it: every process that works for a node is told of its directory.
func orphans(dir string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left, err := processesOf(dir)
		if err != nil || len(left) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("end everything in %s: still there: %s", dir, strings.Join(left, "; "))
		}
	}
}

// processesOf lists the processes that have a directory in their arguments or
// their environment.
func processesOf(dir string) ([]string, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	own := fmt.Sprintf("/proc/%d", os.Getpid())
	var found []string
	for _, p := range processes {
		args, err := os.ReadFile(p + "/cmdline")
		if err != nil || len(args) == 0 || p == own {
			continue // it has just ended, or is a zombie
		}
		env, err := os.ReadFile(p + "/environ")
		if err != nil {
			continue
		}
		if bytes.Contains(slices.Concat(args, env), []byte(dir+"/")) {
			found = append(found, filepath.Base(p)+" "+string(bytes.ReplaceAll(args, []byte{0}, []byte{' '})))
		}
	}
	return found, nil
}
