package cdi

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func errorWith(err error, output []byte) error {
	return fmt.Errorf("%w: %s", err, bytes.TrimSpace(output))
}

// buildHook links the hook program once, by the command line in its comment.
var buildHook = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built, HookName)
	build := exec.Command("go", "build", "-trimpath", "-tags", "netgo,osusergo",
		"-ldflags", `-s -w -linkmode external -extldflags "-static"`,
		"-o", path, "./nvidia-cdi-hook")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return "", errorWith(err, out)
	}
	return path, nil
})

func hookProgram(t *testing.T) string {
	t.Helper()
	path, err := buildHook()
	if err != nil {
		t.Fatalf("build hook program: %v", err)
	}
	return path
}

func TestInstallHook(t *testing.T) {
	src := filepath.Join(t.TempDir(), "src")
	dir := filepath.Join(t.TempDir(), "plugins/gpu.nvidia.com")
	dst := filepath.Join(dir, HookName)
	install := func(program string) os.FileInfo {
		t.Helper()
		putFile(t, src, program, 0o600)
		if err := InstallHook(src, dst); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(dst)
		if err != nil || string(data) != program {
			t.Errorf("installed %q, %v", data, err)
		}
		info, err := os.Stat(dst)
		if err != nil || info.Mode() != 0o755 {
			t.Errorf("mode is %v, %v; want 0755", info.Mode(), err)
		}
		return info
	}
	first := install("\x7fELF one")
	if again := install("\x7fELF one"); !os.SameFile(first, again) {
		t.Error("the same program was installed again")
	}
	second := install("\x7fELF two")
	if os.SameFile(first, second) {
		t.Error("the file was written over, not replaced")
	}
	if err := os.Chmod(dst, 0o644); err != nil {
		t.Fatal(err)
	}
	install("\x7fELF two") // cures the mode

	// A link is not followed: what it leads to is not ours to overwrite.
	victim := filepath.Join(t.TempDir(), "victim")
	putFile(t, victim, "\x7fELF two", 0o755)
	if err := errors.Join(os.Remove(dst), os.Symlink(victim, dst)); err != nil {
		t.Fatal(err)
	}
	install("\x7fELF three")
	if data, err := os.ReadFile(victim); err != nil || string(data) != "\x7fELF two" {
		t.Errorf("what the link led to is now %q, %v", data, err)
	}

	// What killed installers left goes, what others are at work on stays.
	for name, age := range map[string]time.Duration{"1": time.Hour, "2": 0} {
		path := filepath.Join(dir, "."+HookName+"."+name+".tmp")
		putFile(t, path, "", 0o600)
		when := time.Now().Add(-age)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	install("\x7fELF four")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "."+HookName+".2.tmp" {
		t.Errorf("left are %v, %v", entries, err)
	}

	putFile(t, src, "#!/bin/sh", 0o755)
	for want, err := range map[string]error{
		"it is not a program": InstallHook(src, dst),
		"no such file":        InstallHook(filepath.Join(dir, "none"), dst),
		"not a directory":     InstallHook(hookProgram(t), filepath.Join(src, HookName)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "install hook program /") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A runtime is executing the program while a new one is installed: W34.
func TestInstallHookWhileRunning(t *testing.T) {
	dst := filepath.Join(t.TempDir(), HookName)
	if err := InstallHook(hookProgram(t), dst); err != nil {
		t.Fatal(err)
	}
	bundle := t.TempDir()
	putFile(t, filepath.Join(bundle, "config.json"), `{"root": {"path": "rootfs"}}`, 0o600)
	if err := os.Mkdir(filepath.Join(bundle, "rootfs"), 0o700); err != nil {
		t.Fatal(err)
	}
	running := exec.Command(dst, "create-symlinks", "--link", "a::/b")
	state, err := running.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	running.Stdout, running.Stderr = &output, &output
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	other, err := os.Executable() // some other program
	if err != nil {
		t.Fatal(err)
	}
	if err := InstallHook(other, dst); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	_, err = fmt.Fprintf(state, `{"ociVersion": "1.2.0", "id": "x", "bundle": %q}`, bundle)
	if err := errors.Join(err, state.Close(), running.Wait()); err != nil {
		t.Errorf("the running hook: %v: %s", err, &output)
	}
	if target, err := os.Readlink(filepath.Join(bundle, "rootfs/b")); err != nil || target != "a" {
		t.Errorf("its link leads to %q, %v", target, err)
	}
}

// The program needs no loader and no library.
func TestHookIsStatic(t *testing.T) {
	path := hookProgram(t)
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it asks for a loader")
		}
	}
	if libraries, err := file.ImportedLibraries(); err == nil && len(libraries) > 0 {
		t.Errorf("it needs %v", libraries)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", info.Size())
	if info.Size() > 16<<20 {
		t.Errorf("it has %d bytes; it was below 8 MiB once", info.Size())
	}
}

// hostRootVar names the empty host for the second half of TestHookOnEmptyHost.
const hostRootVar = "NVDRA_TEST_EMPTY_HOST"

// TestHookOnEmptyHost runs the hooks that our specs name on a host that has
// nothing but /proc, a container, and ldconfig as update-ldcache wants it.
func TestHookOnEmptyHost(t *testing.T) {
	host := t.TempDir()
	program, err := os.ReadFile(hookProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	putFile(t, filepath.Join(host, HookName), string(program), 0o755)
	const bundle, rootfs = "/run/bundle", "/run/bundle/rootfs"
	putFile(t, filepath.Join(host, bundle, "config.json"), `{"ociVersion": "1.2.0", "root": {"path": "rootfs"}, "process": {"env": []}}`, 0o644)
	for _, dir := range []string{"proc", "old", rootfs + "/proc", rootfs + "/sys", rootfs + "/etc", rootfs + "/usr/lib64", rootfs + "/dev"} {
		if err := os.MkdirAll(filepath.Join(host, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	putFile(t, filepath.Join(host, "state.json"), fmt.Sprintf(`{"ociVersion": "1.2.0", "id": "x", "status": "creating", "bundle": %q}`, bundle), 0o644)
	// ldconfig belongs to the host. The stand-in writes what it was told, and
	// is the hook program's twin in needing nothing.
	buildLdconfig(t, filepath.Join(host, "sbin/ldconfig"))

	for _, c := range []struct {
		args    []string
		warning string
		refused string
	}{
		{args: []string{"create-symlinks", "--link", "libcuda.so.580.95.05::/usr/lib64/libcuda.so.1", "--link", "../card1::/dev/dri/by-path/pci-0000:65:00.0-card"}},
		{args: []string{"update-ldcache", "--folder", "/usr/lib64", "--folder", "/usr/lib64/vdpau"}},
		{args: []string{"enable-cuda-compat", "--host-driver-version=580.95.05"}},
		{args: []string{"disable-device-node-modification"}},
		{args: []string{"update-application-profile"}},
		{args: []string{"hook-of-a-later-version"}, warning: "Unsupported CDI hook"}, // no error, or containers would not start after a downgrade
		{args: []string{"apply-cuda-memory-limits", "--gpu-id", "GPU-1"}, warning: "Unsupported CDI hook"},
		{args: []string{"create-symlinks", "--no-such-flag"}, refused: "no-such-flag"},
		{args: []string{"create-symlinks", "--link", "no link", "--container-spec", "/none"}, refused: "/none"},
	} {
		out, err := onHost(host, append([]string{"/" + HookName}, c.args...))
		switch {
		case c.refused == "" && (err != nil || c.warning == "" && len(out) > 0 || !bytes.Contains(out, []byte(c.warning))):
			t.Errorf("%v: got %v: %s; want success with the warning %q", c.args, err, out, c.warning)
		case c.refused != "" && (err == nil || !bytes.Contains(out, []byte(c.refused))):
			t.Errorf("%v: got %v: %s; want it refused with %q", c.args, err, out, c.refused)
		}
	}
	for link, want := range map[string]string{
		"/usr/lib64/libcuda.so.1":                "libcuda.so.580.95.05",
		"/dev/dri/by-path/pci-0000:65:00.0-card": "../card1",
	} {
		if target, err := os.Readlink(filepath.Join(host, rootfs, link)); err != nil || target != want {
			t.Errorf("%s leads to %q, %v; want %q", link, target, err, want)
		}
	}
	cache, err := os.ReadFile(filepath.Join(host, rootfs, "etc/ld.so.cache"))
	if err != nil || string(cache) != "made by ldconfig" {
		t.Errorf("ldconfig did not run in the container: %q, %v", cache, err)
	}
	conf, err := filepath.Glob(filepath.Join(host, rootfs, "etc/ld.so.conf.d/00-nvcr-*.conf"))
	if err != nil || len(conf) != 1 {
		t.Errorf("no directories for ldconfig: %v, %v", conf, err)
	}
}

func buildLdconfig(t *testing.T, path string) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "main.go")
	putFile(t, src, `package main

import "os"

func main() {
	for i, arg := range os.Args {
		if arg == "-C" {
			if err := os.WriteFile(os.Args[i+1], []byte("made by ldconfig"), 0o644); err != nil {
				panic(err)
			}
		}
	}
}
`, 0o600)
	build := exec.Command("go", "build", "-o", path, src)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatal(errorWith(err, out))
	}
}

// onHost runs a program with host as its root, in namespaces of its own. It
// does so by way of this test program, see enterHost.
func onHost(host string, args []string) ([]byte, error) {
	var out []byte
	var err error
	// A user namespace, where they are allowed, makes it possible without being
	// root; without one, root can do it.
	for _, flags := range []uintptr{syscall.CLONE_NEWNS, syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER} {
		cmd := exec.Command("/proc/self/exe", append([]string{"-test.run=^TestEnterHost$", "--"}, args...)...)
		cmd.Env = []string{hostRootVar + "=" + host, "NVIDIA_CTK_DEBUG=false"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if flags&syscall.CLONE_NEWUSER != 0 {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		}
		out, err = cmd.CombinedOutput()
		if !errors.Is(err, syscall.EPERM) {
			return out, err
		}
	}
	return out, err
}

// TestEnterHost is not a test but what onHost starts: it makes the directory
// the root of this process, with /proc, and becomes the program.
func TestEnterHost(t *testing.T) {
	host := os.Getenv(hostRootVar)
	if host == "" {
		return
	}
	args := os.Args[3:]
	err := enterHost(host)
	if err == nil {
		var state *os.File
		if state, err = os.Open("/state.json"); err == nil {
			err = unix.Dup2(int(state.Fd()), 0)
		}
	}
	if err == nil {
		err = unix.Exec(args[0], args, []string{"NVIDIA_CTK_DEBUG=false"})
	}
	_, _ = io.WriteString(os.Stderr, "enter host: "+err.Error())
	os.Exit(125)
}

func enterHost(host string) error {
	step := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	rootfs := filepath.Join(host, "run/bundle/rootfs")
	if err := errors.Join(
		step("make mounts private", unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")),
		step("mount host", unix.Mount(host, host, "", unix.MS_BIND, "")),
		step("mount proc", unix.Mount("/proc", filepath.Join(host, "proc"), "", unix.MS_BIND|unix.MS_REC, "")),
		step("mount container", unix.Mount(rootfs, rootfs, "", unix.MS_BIND, "")),
		step("pivot", unix.PivotRoot(host, filepath.Join(host, "old"))),
		step("chdir", unix.Chdir("/")),
	); err != nil {
		return err
	}
	return step("unmount the old root", unix.Unmount("/old", unix.MNT_DETACH))
}
