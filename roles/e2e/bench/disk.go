package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	diskWrites = 100
	// recordSize is about that of a claim's record.
	recordSize = 1500
)

// disk measures what the node's disk takes to keep one small file: the least a
// plugin can do that remembers a claim over a crash of the machine.
func (b *bench) disk() (err error) {
	dir, err := os.MkdirTemp(b.cluster.file("/var/lib/kubelet"), "disk-")
	if err != nil {
		return fmt.Errorf("measure disk: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var times sample
	for range diskWrites {
		if err := timed(&times, func() error { return keep(dir) }); err != nil {
			return fmt.Errorf("measure disk: %w", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	b.table.add("the disk, to compare with: write, sync, rename, sync directory",
		row{what: "p50", ours: milliseconds(times.median())},
		row{what: "p99", ours: milliseconds(times.p99())},
	)
	return nil
}

// keep puts a file into a directory so that it outlives a power cut.
func keep(dir string) error {
	temp := filepath.Join(dir, "x.tmp")
	f, err := os.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, recordSize))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, "x")); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
