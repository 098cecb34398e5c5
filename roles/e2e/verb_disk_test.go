package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
	"rsc.io/script"
)

// ballast fills a disk.
const ballast = ".ballast"

// diskVerb makes a directory a disk that can be full.
func diskVerb(w *world) script.Cmd {
	const example = `disk small $CDI   # an empty disk of 1 MiB, mounted there
	disk fill $CDI    # until not a byte is free
	disk free $CDI`
	return verb("small|fill|free DIR", "let a directory be on a disk of its own, and fill it", example, func(_ *script.State, args []string) (string, error) {
		if len(args) != 2 {
			return "", usage("disk takes small, fill or free, and a directory")
		}
		dir := args[1]
		switch args[0] {
		case "small":
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return "", err
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
				return "", fmt.Errorf("mount a small disk on %s: %w; this test needs root", dir, err)
			}
			w.mounts = append(w.mounts, dir)
			return "", nil
		case "fill":
			return "", fill(filepath.Join(dir, ballast))
		case "free":
			return "", os.Remove(filepath.Join(dir, ballast))
		}
		return "", usage("disk takes small, fill or free, and a directory")
	})
}

func fill(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// readonlyVerb makes a directory one nobody can write to, root neither.
func readonlyVerb(w *world) script.Cmd {
	const example = `readonly $CDI
	readonly -undo $CDI`
	return verb("[-undo] DIR", "let a directory be on a disk that is mounted for reading only", example, func(_ *script.State, args []string) (string, error) {
		if len(args) == 2 && args[0] == "-undo" {
			w.mounts = slices.DeleteFunc(w.mounts, func(m string) bool { return m == args[1] })
			return "", unmount(args[1])
		}
		if len(args) != 1 {
			return "", usage("readonly takes a directory")
		}
		if err := unix.Mount(args[0], args[0], "", unix.MS_BIND, ""); err != nil {
			return "", fmt.Errorf("mount %s for reading only: %w; this test needs root", args[0], err)
		}
		w.mounts = append(w.mounts, args[0])
		return "", unix.Mount("", args[0], "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	})
}

func unmount(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return &fs.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return nil
}
