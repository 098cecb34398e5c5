// Package host reads what the kernel of a machine says about its GPUs: the
// files below /proc and /sys, under a root that may be the real one or a
// directory that looks like it.
//
//	box := host.At("/")
//	major, err := box.CharMajor("nvidia-caps")
//	root, err := box.PCIERoot("0000:65:00.0")
//
// Nothing here opens a GPU or talks to the driver; reading is cheap and holds
// no device file afterwards. An error names the file, the line where there is
// one, and what was expected. A missing file wraps [io/fs.ErrNotExist], so
// that a caller can tell "the kernel does not say" from "it says nonsense".
package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// A Host is a machine as seen below a root directory.
type Host struct {
	root string
}

// At is the machine whose /proc, /sys and /usr are below root. "" means "/".
func At(root string) Host {
	if root == "" {
		root = "/"
	}
	return Host{root: filepath.Clean(root)}
}

// Root is the directory this Host reads below.
func (h Host) Root() string { return h.root }

// maxFile bounds what is read of one file; everything read here is a few
// kilobytes at most, so more means that the root is not a machine.
const maxFile = 1 << 20

// maxLinks is how many symbolic links one path may go through, as in Linux.
const maxLinks = 40

// Path is where a file of the machine is found here, for messages and for
// programs that open it themselves. Links are not followed, see [Host.Resolve].
func (h Host) Path(name string) string {
	return filepath.Join(h.root, filepath.FromSlash(path.Clean("/"+name)))
}

// Resolve follows all symbolic links of a path of the machine, as the machine
// itself would: an absolute link starts again at the root of this Host, and
// ".." does not lead above it. The result is a path here without links.
func (h Host) Resolve(name string) (string, error) {
	inside, err := h.resolve(name)
	if err != nil {
		return "", err
	}
	return filepath.Join(h.root, inside), nil
}

// resolve is Resolve with a result relative to the root, "." for the root.
func (h Host) resolve(name string) (string, error) {
	var done []string
	todo := strings.Split(path.Clean("/"+name), "/")
	for links := 0; len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			if len(done) > 0 {
				done = done[:len(done)-1]
			}
			continue
		}
		here := filepath.Join(h.root, filepath.Join(done...), next)
		info, err := os.Lstat(here)
		if err != nil {
			return "", fmt.Errorf("resolve %s: %w", h.Path(name), err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = append(done, next)
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("resolve %s: %w", h.Path(name), syscall.ELOOP)
		}
		target, err := os.Readlink(here)
		if err != nil {
			return "", fmt.Errorf("resolve %s: %w", h.Path(name), err)
		}
		if path.IsAbs(target) {
			done = nil
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	if len(done) == 0 {
		return ".", nil
	}
	return filepath.Join(done...), nil
}

// read is the content of one small file. The links of its path are resolved
// inside the root first; os.Root then refuses whatever changed in between.
func (h Host) read(name string) ([]byte, error) {
	inside, err := h.resolve(name)
	if err != nil {
		return nil, readError(h.Path(name), err)
	}
	root, err := os.OpenRoot(h.root)
	if err != nil {
		return nil, readError(h.Path(name), err)
	}
	defer root.Close() // only a directory was opened; closing it cannot lose anything
	f, err := root.Open(inside)
	if err != nil {
		return nil, readError(h.Path(name), err)
	}
	defer f.Close() // read only
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, readError(h.Path(name), err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read %s: longer than %d bytes, this is not the kernel's file", h.Path(name), maxFile)
	}
	return data, nil
}

// readError says which file could not be read, without repeating its path as
// [os.PathError] would.
func readError(file string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("read %s: %w", file, err)
}

// lines calls f for every line of a file with its number, from 1. The error
// of f gets the file and the line in front.
func lines(file string, data []byte, f func(line string) error) error {
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		if err := f(strings.TrimRight(line, "\r\n")); err != nil {
			return fmt.Errorf("read %s: line %d: %w", file, n, err)
		}
	}
	return nil
}
