// Package driverroot writes what a driver root of a simulated machine holds:
// libraries and programs, /dev nodes, and the parts of /proc and /sys that are
// about GPUs, in one directory that can be used as driver root and as host root.
//
//	root, err := driverroot.Open("/run/nvidia/driver", files, driverroot.Options{})
//	err = machine.OnChange(root.Show) // from now on it follows the machine
package driverroot

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nvdra/nvml/sim"
)

// Options change how a root is written.
type Options struct {
	// PlainNodes makes regular files in place of device nodes. Programs see the
	// GPUs then, but container runtimes and nvcdi do not.
	PlainNodes bool
}

// A Root is a directory that shows a machine. Only one Root may write a
// directory at a time.
type Root struct {
	dir     string
	files   string // what simbuild made
	options Options
	majors  majors
	shown   map[string]entry
	why     string // why there are no device nodes; "" when there are
}

// An entry is one thing below the root.
type entry struct {
	kind entryKind
	// text is the content of a file, the target of a link, or the file to copy.
	text         string
	major, minor uint32
	mode         fs.FileMode
}

type entryKind int

const (
	dirEntry entryKind = iota
	fileEntry
	linkEntry
	nodeEntry
	copyEntry // a file copied from elsewhere
)

// Open prepares to write dir. files is the directory made by package simbuild;
// without it ("") no libraries and programs are put into the root. What an
// earlier run has left in dir is taken over.
func Open(dir, files string, options Options) (*Root, error) {
	r := &Root{dir: dir, files: files, options: options, shown: map[string]entry{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make driver root: %w", err)
	}
	var err error
	if r.majors, err = chooseMajors(kernelDevices, filepath.Join(dir, "proc/devices")); err != nil {
		return nil, fmt.Errorf("choose device numbers: %w", err)
	}
	r.why = r.noNodes()
	if err := r.adopt(); err != nil {
		return nil, fmt.Errorf("read driver root: %w", err)
	}
	return r, nil
}

// NoNodes says why the root has regular files instead of device nodes; "" when
// it has device nodes.
func (r *Root) NoNodes() string { return r.why }

// noNodes finds out whether device nodes can be made here.
func (r *Root) noNodes() string {
	if r.options.PlainNodes {
		return "it was asked for"
	}
	if r.majors.realDriver {
		return "this machine has a real NVIDIA driver, and nodes would lead to its GPUs"
	}
	probe := filepath.Join(r.dir, ".gpusim-probe")
	os.Remove(probe) // of a run that was killed
	if err := unix.Mknod(probe, unix.S_IFCHR|0o600, int(unix.Mkdev(nvidiaMajor, 255))); err != nil {
		return fmt.Sprintf("mknod in %s: %v (it takes CAP_MKNOD and a file system that has devices)", r.dir, err)
	}
	os.Remove(probe)
	return ""
}

// kernelDevices is where this kernel lists its drivers' device numbers.
const kernelDevices = "/proc/devices"

// managed are the directories in which everything is the simulator's.
var managed = []string{"proc", "sys", "usr", "lib", "dev/nvidia-caps"}

// adopt finds what is there from an earlier run, so that Show removes what the
// machine no longer has. Entries get kind dirEntry or one that never equals
// what is wanted, except libraries and programs, which are compared by content.
func (r *Root) adopt() error {
	note := func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(r.dir, path)
		if err != nil {
			return err
		}
		e := entry{kind: -1}
		if d.IsDir() {
			e = entry{kind: dirEntry}
		}
		r.shown[rel] = e
		return nil
	}
	for _, m := range managed {
		if err := filepath.WalkDir(filepath.Join(r.dir, m), note); err != nil {
			return err
		}
	}
	nodes, err := filepath.Glob(filepath.Join(r.dir, "dev", "nvidia*"))
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if rel, err := filepath.Rel(r.dir, n); err == nil && rel != "dev/nvidia-caps" {
			r.shown[rel] = entry{kind: -1}
		}
	}
	return nil
}

// Show makes the directory show the machine. It may be given to
// sim.Machine.OnChange.
func (r *Root) Show(v sim.View) error {
	if text, ok := v.Profile.Files["proc/devices"]; ok {
		var err error
		if r.majors, err = r.majors.prescribed(string(text), kernelDevices); err != nil {
			return fmt.Errorf("show machine: %w", err)
		}
	}
	want := tree{}
	r.dev(want, v)
	proc(want, v, r.majors)
	sys(want, v)
	if r.files != "" {
		if err := r.install(want, v.State.Driver); err != nil {
			return fmt.Errorf("show machine: %w", err)
		}
	}
	for name, data := range v.Profile.Files {
		want.file(name, string(data))
	}
	want.parents()
	if err := r.apply(want); err != nil {
		return fmt.Errorf("show machine: %w", err)
	}
	return nil
}

// A tree is what should be below the root, by path.
type tree map[string]entry

func (t tree) dir(path string)          { t[path] = entry{kind: dirEntry} }
func (t tree) file(path, text string)   { t[path] = entry{kind: fileEntry, text: text, mode: 0o444} }
func (t tree) link(path, target string) { t[path] = entry{kind: linkEntry, text: target} }

// parents adds the directories everything is in.
func (t tree) parents() {
	for _, path := range slices.Collect(maps.Keys(t)) {
		for d := filepath.Dir(path); d != "."; d = filepath.Dir(d) {
			t.dir(d)
		}
	}
}

// apply makes the directory what it should be: removes from the leaves down,
// then makes from the root up, touching only what differs.
func (r *Root) apply(want tree) error {
	gone := slices.Sorted(maps.Keys(r.shown))
	slices.Reverse(gone)
	for _, path := range gone {
		have := r.shown[path]
		e, wanted := want[path]
		if wanted && (e.kind == dirEntry) == (have.kind == dirEntry) {
			continue
		}
		if err := os.Remove(filepath.Join(r.dir, path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if have.kind == dirEntry && errors.Is(err, unix.ENOTEMPTY) {
				continue // somebody else put something there
			}
			return err
		}
		delete(r.shown, path)
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		e := want[path]
		if have, ok := r.shown[path]; ok && have == e {
			continue
		}
		if err := r.make(filepath.Join(r.dir, path), e); err != nil {
			return err
		}
		r.shown[path] = e
	}
	return nil
}

// make makes one entry, in place of what is there. Everything but a directory is
// made aside and renamed, so that readers see the old or the new.
func (r *Root) make(path string, e entry) error {
	if e.kind == dirEntry {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	if same(path, e) {
		return nil
	}
	aside := filepath.Join(r.dir, ".gpusim-new")
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := create(aside, e); err != nil {
		return err
	}
	return os.Rename(aside, path)
}

// create makes one entry that is no directory.
func create(path string, e entry) error {
	switch e.kind {
	case linkEntry:
		return os.Symlink(e.text, path)
	case nodeEntry:
		if err := unix.Mknod(path, unix.S_IFCHR|uint32(e.mode.Perm()), int(unix.Mkdev(e.major, e.minor))); err != nil {
			return fmt.Errorf("mknod %s: %w", path, err)
		}
		return os.Chmod(path, e.mode) // the umask does not hold for nodes
	case copyEntry:
		data, err := os.ReadFile(e.text)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, data, e.mode); err != nil {
			return err
		}
		return os.Chmod(path, e.mode)
	}
	if err := os.WriteFile(path, []byte(e.text), e.mode); err != nil {
		return err
	}
	return os.Chmod(path, e.mode)
}

// same says that the entry is there already, left by an earlier run. A library
// that programs have loaded must not be replaced by its equal.
func same(path string, e entry) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	switch e.kind {
	case linkEntry:
		target, err := os.Readlink(path)
		return err == nil && target == e.text
	case nodeEntry:
		var s unix.Stat_t
		return unix.Lstat(path, &s) == nil && s.Mode == unix.S_IFCHR|uint32(e.mode.Perm()) && s.Rdev == unix.Mkdev(e.major, e.minor)
	case copyEntry:
		have, errHave := os.ReadFile(path)
		want, errWant := os.ReadFile(e.text)
		return info.Mode().IsRegular() && info.Mode().Perm() == e.mode && errHave == nil && errWant == nil && string(have) == string(want)
	}
	have, err := os.ReadFile(path)
	return info.Mode().IsRegular() && info.Mode().Perm() == e.mode && err == nil && string(have) == e.text
}

// relative is the link from one path below the root to another.
func relative(from, to string) string {
	rel, err := filepath.Rel(filepath.Dir(from), to)
	if err != nil {
		return strings.Repeat("../", strings.Count(from, "/")) + to
	}
	return rel
}
