package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"nvdra.test/cluster/part"
)

func runDown(_ context.Context, p place, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: down takes no arguments, got %q", errUsage, args)
	}
	lock, err := lockPlace(p)
	if err != nil {
		return err
	}
	defer unlockPlace(p, lock)
	if _, err := os.Stat(p.file(recordFile)); errors.Is(err, os.ErrNotExist) {
		fmt.Printf("cluster %s is not up\n", p.name)
		return removeEmptyPlace(p)
	}
	began := time.Now()
	if err := tearDown(p); err != nil {
		return fmt.Errorf("end cluster %s: %w", p.name, err)
	}
	fmt.Printf("cluster %s is gone (%s)\n", p.name, seconds(time.Since(began)))
	return nil
}

// tearDown removes everything of a cluster, whatever state it is in. It follows
// the record alone, finds nothing to remove where nothing is, and can be
// repeated.
func tearDown(p place) error {
	r, err := loadRecord(p)
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	if r.BootID == boot {
		// With the first process of a box the kernel ends all others in it.
		for _, m := range r.Machines {
			if err := m.Init.Signal(syscall.SIGKILL); err != nil {
				return err
			}
		}
		for _, m := range r.Machines {
			if err := m.Init.End(0); err != nil {
				return err
			}
		}
		for _, s := range r.Parts {
			if err := s.Process.End(0); err != nil {
				return err
			}
		}
	}
	// What an interrupted start had not recorded yet was born in the cgroup.
	if err := r.Cgroup.Kill(30 * time.Second); err != nil {
		return err
	}
	if err := removeLink(r.Link); err != nil {
		return err
	}
	if err := r.Cgroup.Remove(); err != nil {
		return err
	}
	return removePlace(p)
}

// removeLink removes the cluster's device. The kernel does so too when the box at
// the other end is gone, but takes its time.
func removeLink(name string) error {
	if _, err := net.InterfaceByName(name); err != nil {
		return nil
	}
	err := ip(nil, "link del "+name)
	if _, gone := net.InterfaceByName(name); gone != nil {
		return nil // perhaps the kernel was first
	}
	return err
}

// removePlace removes the state directory. A box's mounts exist only in the box;
// should one be here after all, deleting through it would delete what it shows.
func removePlace(p place) error {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	defer mounts.Close()
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) > 1 && strings.HasPrefix(f[1]+"/", p.dir+"/") {
			return fmt.Errorf("remove %s: something is mounted at %s; unmount it first", p.dir, f[1])
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	// The record goes last: as long as it is there, this can be repeated.
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	for _, e := range entries {
		if e.Name() == recordFile {
			continue
		}
		if err := os.RemoveAll(p.file(e.Name())); err != nil {
			return fmt.Errorf("remove state: %w", err)
		}
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	return nil
}

// removeEmptyPlace removes the directory of a start that was killed before it
// had written anything.
func removeEmptyPlace(p place) error {
	if err := os.Remove(p.file(recordFile + ".new")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove state: %w", err)
	}
	if entries, err := os.ReadDir(p.dir); err == nil && len(entries) == 0 {
		if err := os.Remove(p.dir); err != nil {
			return fmt.Errorf("remove state: %w", err)
		}
	}
	return nil
}

// lockPlace makes this the only launcher that changes the cluster.
func lockPlace(p place) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(p.dir), 0o755); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	l, err := part.TryLock(p.lockFile())
	if errors.Is(err, part.ErrBusy) {
		return nil, fmt.Errorf("cluster %s: another launcher is working on it; wait for it or stop it: %w", p.name, err)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

func unlockPlace(p place, lock *os.File) {
	_ = os.Remove(p.lockFile()) // whoever waits for it notices that it is gone
	lock.Close()
	if dir := filepath.Dir(p.dir); filepath.Base(dir) == "nvdra" {
		_ = os.Remove(dir) // succeeds when no other cluster is in it
	}
}
