// Package simbuild builds what gpusim puts into a driver root: the NVML library
// and empty libraries with a C compiler, the stand-in programs with the go
// command, and a copy of the machine profiles.
//
//	err := simbuild.Build(ctx, "build/sim") // gpusim and gpusim-files/
package simbuild

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"nvdra/nvml/sim/driverroot"
	"nvdra/nvml/sim/libnvml"
)

// FilesDir is the name of the directory of built files beside gpusim.
const FilesDir = "gpusim-files"

// MachinesDir is where the machine profiles are in FilesDir.
const MachinesDir = "machines"

// Build makes dir/gpusim and dir/gpusim-files. The directory may be moved
// anywhere afterwards. What is up to date is left alone, and builds into the same
// directory wait for each other.
func Build(ctx context.Context, dir string) error {
	module, err := ModuleRoot()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("build simulator: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, ".lock"))
	if err != nil {
		return fmt.Errorf("build simulator: lock %s: %w", dir, err)
	}
	defer unlock()
	if err := buildFiles(ctx, module, filepath.Join(dir, FilesDir)); err != nil {
		return err
	}
	return goBuild(ctx, module, "./nvml/sim/gpusim", filepath.Join(dir, "gpusim"))
}

func buildFiles(ctx context.Context, module, dir string) error {
	for _, sub := range []string{"lib", "bin", MachinesDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return fmt.Errorf("build simulator: %w", err)
		}
	}
	if err := buildLibraries(ctx, dir); err != nil {
		return err
	}
	if err := goBuild(ctx, module, "./nvml/sim/bin", filepath.Join(dir, driverroot.StandIn)); err != nil {
		return err
	}
	return copyMachines(filepath.Join(module, "testdata", "machines"), filepath.Join(dir, MachinesDir))
}

// buildLibraries compiles what the fingerprint says is out of date.
func buildLibraries(ctx context.Context, dir string) error {
	print, err := fingerprint()
	if err != nil {
		return fmt.Errorf("build simulator: %w", err)
	}
	mark := filepath.Join(dir, "lib", ".fingerprint")
	if have, err := os.ReadFile(mark); err == nil && bytes.Equal(have, print) {
		return nil
	}
	for _, l := range driverroot.Libraries {
		file := filepath.Join(dir, "lib", l.Name)
		soname := l.SOName
		if soname == "" {
			soname = l.Name
		}
		build := func(file string) error { return libnvml.BuildEmpty(ctx, file, soname) }
		if soname == libnvml.SOName {
			build = func(file string) error { return libnvml.Build(ctx, file) }
		}
		if err := aside(file, build); err != nil {
			return err
		}
	}
	if err := os.WriteFile(mark, print, 0o644); err != nil {
		return fmt.Errorf("build simulator: %w", err)
	}
	return nil
}

// fingerprint changes when the libraries must be built again.
func fingerprint() ([]byte, error) {
	h := sha256.New()
	fmt.Fprintln(h, driverroot.Libraries, os.Getenv("CC"))
	err := fs.WalkDir(libnvml.Sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(libnvml.Sources, path)
		fmt.Fprintln(h, path, len(data))
		h.Write(data)
		return err
	})
	return fmt.Appendf(nil, "%x\n", h.Sum(nil)), err
}

// goBuild builds a static program.
func goBuild(ctx context.Context, module, pkg, file string) error {
	return aside(file, func(file string) error {
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", abs, pkg)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build simulator: go build %s: %w: %s", pkg, err, bytes.TrimSpace(out))
		}
		return nil
	})
}

// aside has a file made beside its place and puts it there when it differs, so
// that those who run it or have it loaded are not disturbed.
func aside(file string, build func(string) error) error {
	next := file + ".new"
	defer os.Remove(next)
	if err := build(next); err != nil {
		return err
	}
	have, errHave := os.ReadFile(file)
	want, err := os.ReadFile(next)
	if err != nil {
		return fmt.Errorf("build simulator: %w", err)
	}
	if errHave == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := os.Rename(next, file); err != nil {
		return fmt.Errorf("build simulator: %w", err)
	}
	return nil
}

// copyMachines copies the profiles and removes those that are no more.
func copyMachines(from, to string) error {
	sources, err := filepath.Glob(filepath.Join(from, "*.txtar"))
	if err != nil || len(sources) == 0 {
		return fmt.Errorf("build simulator: no machine profiles in %s", from)
	}
	stale, err := filepath.Glob(filepath.Join(to, "*.txtar"))
	if err != nil {
		return fmt.Errorf("build simulator: %w", err)
	}
	for _, f := range stale {
		if _, err := os.Stat(filepath.Join(from, filepath.Base(f))); errors.Is(err, fs.ErrNotExist) {
			if err := os.Remove(f); err != nil {
				return fmt.Errorf("build simulator: %w", err)
			}
		}
	}
	for _, f := range sources {
		data, err := os.ReadFile(f)
		if err != nil {
			return fmt.Errorf("build simulator: %w", err)
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(f)), data, 0o644); err != nil {
			return fmt.Errorf("build simulator: %w", err)
		}
	}
	return nil
}

// lock takes the lock file; unlock lets it go.
func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// ModuleRoot is the directory of this module's go.mod, at or above the working
// directory.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find module: %w", err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module nvdra\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find module: there is no go.mod of module nvdra at or above the working directory; run this in the source tree")
		}
		dir = parent
	}
}
