package image

import (
	"context"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Names of the two images every cluster has.
const (
	PauseName    = "localhost/pause:dev"    // the sandbox of every pod
	WorkloadName = "localhost/workload:dev" // a small userland for test pods: busybox and the C library
)

//go:embed pause/pause.c
var pauseSource []byte

// PauseSource is the source of the program that BuildPause builds.
func PauseSource() []byte { return pauseSource }

// BuildPause compiles the program that waits and buries orphans.
func BuildPause(ctx context.Context, out string) error {
	cmd := exec.CommandContext(ctx, "gcc", "-Os", "-static", "-s", "-Wall", "-Werror", "-x", "c", "-o", out, "-")
	cmd.Stdin = strings.NewReader(string(pauseSource))
	if words, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile pause: %w: %s", err, words)
	}
	return nil
}

// PauseRoot lays out the directory of the pause image.
func PauseRoot(root, pause string) (Config, error) {
	if err := install(pause, filepath.Join(root, "pause"), 0o755); err != nil {
		return Config{}, fmt.Errorf("lay out pause image: %w", err)
	}
	return Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}, nil
}

// libraries are what a program linked against the C library needs, as the
// driver's tools are that CDI shows in a container.
var libraries = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}

var libraryDirs = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib"}

// WorkloadRoot lays out the directory of the workload image from the machine's
// static busybox and its C library.
func WorkloadRoot(ctx context.Context, root, busybox string) (Config, error) {
	if err := workloadRoot(ctx, root, busybox); err != nil {
		return Config{}, fmt.Errorf("lay out workload image: %w", err)
	}
	return Config{Cmd: []string{"/bin/sh"}}, nil
}

func workloadRoot(ctx context.Context, root, busybox string) error {
	if err := mustBeStatic(busybox); err != nil {
		return err
	}
	for _, dir := range []string{"dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "var/tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		if err := os.Chmod(filepath.Join(root, dir), os.ModeSticky|0o777); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	if err := install(busybox, filepath.Join(root, "usr/bin/busybox"), 0o755); err != nil {
		return err
	}
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its applets: %w", busybox, err)
	}
	for _, name := range strings.Fields(string(applets)) {
		if name == "busybox" || strings.Contains(name, "/") {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "usr/bin", name)); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/sh\n",
		"group":  "root:x:0:\nnogroup:x:65534:\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return installLibraries(root)
}

// installLibraries copies the C library to the places where it is on the machine.
func installLibraries(root string) error {
	loader, err := interpreter("/proc/self/exe")
	if err != nil {
		return err
	}
	if loader == "" {
		if loader, err = interpreter("/bin/sh"); err != nil {
			return err
		}
	}
	if loader != "" {
		if err := install(loader, filepath.Join(root, "usr", strings.TrimPrefix(loader, "/usr")), 0o755); err != nil {
			return err
		}
	}
	for _, name := range libraries {
		for _, dir := range libraryDirs {
			err := install(filepath.Join(dir, name), filepath.Join(root, "usr", strings.TrimPrefix(dir, "/usr"), name), 0o755)
			if err == nil {
				break
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func mustBeStatic(program string) error {
	loader, err := interpreter(program)
	if err != nil {
		return err
	}
	if loader != "" {
		return fmt.Errorf("%s needs shared libraries; install the package busybox-static", program)
	}
	return nil
}

// interpreter is the dynamic loader a program asks for, or nothing.
func interpreter(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("read program %s: %w", program, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		raw := make([]byte, p.Filesz)
		if _, err := p.ReadAt(raw, 0); err != nil {
			return "", fmt.Errorf("read program %s: %w", program, err)
		}
		return strings.TrimRight(string(raw), "\x00"), nil
	}
	return "", nil
}

// install copies a file and makes the directories above it.
func install(from, to string, mode os.FileMode) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, raw, mode)
}
