package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"nvdra/nvml"
)

// victim is the name under which the test program runs again as a plugin that
// will be killed, see TestChildDiesWithParent.
const victim = "victim"

func TestMain(m *testing.M) {
	switch {
	case IsChild():
		if err := ServeChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Args[0] == victim:
		_, err := Open(os.Args[1]).Scan(context.Background())
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fakeSource is an NVML library of one GPU with nothing but the functions that
// every library has. What the real library does in its worst hours is chosen
// when it is compiled.
const fakeSource = `
#include <string.h>
#include <unistd.h>
#include <stdio.h>
static int gpu;
#ifndef LACKS_INIT
int nvmlInitWithFlags(unsigned flags) {
#ifdef NOT_LOADED
	return 9;
#endif
	return 0;
}
#endif
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { static char s[32]; snprintf(s, sizeof s, "code %d", r); return s; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, VERSION, n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) {
#ifdef HANGS
	for (;;) sleep(1000);
#endif
#ifdef UNINITIALIZED_ONCE
	if (access(UNINITIALIZED_ONCE, F_OK) != 0) { fclose(fopen(UNINITIALIZED_ONCE, "w")); return 1; }
#endif
#ifdef UNINITIALIZED
	return 1;
#endif
	*n = 1; return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = &gpu; return i == 0 ? 0 : 2; }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) { *d = &gpu; return strcmp(u, "GPU-0") == 0 ? 0 : 6; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { strncpy(s, "GPU-0", n); return 0; }
int nvmlDeviceGetMinorNumber(void *d, unsigned *n) { *n = 4; return 0; }
int nvmlDeviceGetPciInfo_v3(void *d, void *info) {
	memset(info, 0, 68);
	strcpy((char *)info + 36, "00000000:0A:00.0");
	return 0;
}
#ifdef CRASHES
int nvmlDeviceGetName(void *d, char *s, unsigned n) { *(volatile int *)0 = 1; return 0; }
#endif
#ifdef EVERYTHING
int nvmlSystemGetCudaDriverVersion_v2(int *v) { return EVERYTHING; }
int nvmlSystemGetCudaDriverVersion(int *v) { return EVERYTHING; }
int nvmlDeviceGetName(void *d, char *s, unsigned n) { return EVERYTHING; }
int nvmlDeviceGetBrand(void *d, int *b) { return EVERYTHING; }
int nvmlDeviceGetArchitecture(void *d, unsigned *a) { return EVERYTHING; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { return EVERYTHING; }
int nvmlDeviceGetMemoryInfo(void *d, void *m) { return EVERYTHING; }
int nvmlDeviceGetAddressingMode(void *d, void *m) { return EVERYTHING; }
int nvmlDeviceGetMigMode(void *d, unsigned *a, unsigned *b) { return EVERYTHING; }
#endif
`

const usual = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"

// install compiles the library and puts it below a root, by a rename as a
// package manager does.
func install(t *testing.T, root, name string, defines ...string) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(defines, func(d string) bool { return strings.HasPrefix(d, "VERSION=") }) {
		defines = append(defines, "VERSION=1.0")
	}
	args := []string{"-shared", "-fPIC", "-w", "-x", "c", "-", "-o", file + ".new"}
	for _, d := range defines {
		if k, v, ok := strings.Cut(d, "="); ok && strings.Trim(v, "0123456789") != "" {
			d = k + `="` + v + `"`
		}
		args = append(args, "-D"+d)
	}
	cmd := exec.Command("gcc", args...)
	cmd.Stdin = strings.NewReader(fakeSource)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, root string, opts ...Option) *Node {
	t.Helper()
	n := Open(root, opts...)
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// wantError checks the kind of an error and that it says all of the parts.
func wantError(t *testing.T, err, kind error, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v, want one that is %q", err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

// children are the NVML children of a process.
func children(t *testing.T, parent int) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, file := range dirs {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has just ended
		}
		// pid (name) state parent …
		_, rest, _ := strings.Cut(string(data), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) || fields[0] == "Z" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		if cmdline, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline")); err == nil && strings.HasPrefix(string(cmdline), ChildName+"\x00") {
			found = append(found, pid)
		}
	}
	return found
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("%s: not within 10 s", what)
}

func TestNoDriverThenDriver(t *testing.T) {
	root := t.TempDir()
	n := open(t, root)
	_, err := n.Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, "scan GPUs", libraryName, root, "/usr/lib64", "--driver-root or DRIVER_ROOT")
	_, err = n.GPU(t.Context(), "GPU-0")
	wantError(t, err, nvml.ErrDriver)
	_, err = n.MIGProfiles(t.Context(), "GPU-0")
	wantError(t, err, nvml.ErrDriver)
	_, err = n.SetMIGMode(t.Context(), "GPU-0", true)
	wantError(t, err, nvml.ErrDriver)
	_, err = n.CreateMIG(t.Context(), nvml.Placement{GPU: "GPU-0"})
	wantError(t, err, nvml.ErrDriver)
	wantError(t, n.DestroyMIG(t.Context(), "MIG-0"), nvml.ErrDriver)

	install(t, root, usual)
	scan, err := n.Scan(t.Context())
	if err != nil || len(scan.GPUs) != 1 {
		t.Fatalf("after the driver has arrived: %+v, %v", scan, err)
	}
	if err := os.Remove(filepath.Join(root, usual)); err != nil {
		t.Fatal(err)
	}
	_, err = n.Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, "find "+libraryName)
}

// An old library has only what is required; a board can refuse all the rest.
func TestOptionalQueriesMayBeMissing(t *testing.T) {
	want := nvml.GPU{UUID: "GPU-0", Minor: 4, PCI: "0000:0a:00.0"}
	for _, define := range []string{"OLD", "EVERYTHING=3", "EVERYTHING=13", "EVERYTHING=25"} {
		t.Run(define, func(t *testing.T) {
			root := t.TempDir()
			install(t, root, usual, define)
			scan, err := open(t, root).Scan(t.Context())
			if err != nil || len(scan.Broken) > 0 || len(scan.GPUs) != 1 || fmt.Sprint(scan.GPUs[0]) != fmt.Sprint(want) {
				t.Errorf("got %+v, %v, want one GPU %+v", scan, err, want)
			}
		})
	}
}

// Any other answer than "not supported" breaks the GPU, and says which call.
func TestOtherAnswersBreakTheGPU(t *testing.T) {
	for code, kind := range map[int]error{999: nil, 15: nvml.ErrLost, 4: nil} {
		root := t.TempDir()
		install(t, root, usual, fmt.Sprintf("EVERYTHING=%d", code))
		scan, err := open(t, root).Scan(t.Context())
		if err != nil || len(scan.Broken) != 1 || len(scan.GPUs) != 0 {
			t.Errorf("code %d: %+v, %v", code, scan, err)
			continue
		}
		b := scan.Broken[0]
		if b.UUID != "GPU-0" || b.PCI != "0000:0a:00.0" || !strings.Contains(b.Err.Error(), fmt.Sprintf("nvmlDeviceGetName: code %d", code)) {
			t.Errorf("code %d: %+v", code, b)
		}
		if kind != nil && !errors.Is(b.Err, kind) {
			t.Errorf("code %d: %v is not %q", code, b.Err, kind)
		}
	}
}

func TestUnusableLibraries(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, usual)
	n := open(t, root)

	install(t, root, usual, "LACKS_INIT")
	_, err := n.Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, file, "nvmlInitWithFlags")

	install(t, root, usual, "NOT_LOADED")
	_, err = n.Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, "nvmlInitWithFlags: code 9")

	if err := os.WriteFile(file, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = n.Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, "load "+file)

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = n.Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, file, "not a regular file")
	eventually(t, "all children end", func() bool { return len(children(t, os.Getpid())) == 0 })
}

// A driver update replaces the library while the plugin runs. In one process
// all calls would still end in the library that was loaded first.
func TestReplacedLibraryIsUsed(t *testing.T) {
	root := t.TempDir()
	n := open(t, root)
	for _, version := range []string{"1.0", "2.0", "1.0"} {
		install(t, root, usual, "VERSION="+version+".x")
		scan, err := n.Scan(t.Context())
		if err != nil || scan.Driver.Version != version+".x" {
			t.Fatalf("got %q, %v, want %s.x", scan.Driver.Version, err, version)
		}
	}
	eventually(t, "one child is left", func() bool { return len(children(t, os.Getpid())) == 1 })
}

func TestTwoRootsAtOnce(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	install(t, a, usual, "VERSION=a")
	install(t, b, "usr/lib64/libnvidia-ml.so.1", "VERSION=b")
	nodes := map[string]*Node{"a": open(t, a), "b": open(t, b)}
	for want, n := range nodes {
		if scan, err := n.Scan(t.Context()); err != nil || scan.Driver.Version != want {
			t.Errorf("got %q, %v, want %q", scan.Driver.Version, err, want)
		}
	}
}

// A driver that was restarted answers "uninitialized" until there is a new session.
func TestSessionIsOpenedAgain(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual, "UNINITIALIZED_ONCE="+filepath.Join(root, "once"))
	if scan, err := open(t, root).Scan(t.Context()); err != nil || len(scan.GPUs) != 1 {
		t.Errorf("got %+v, %v", scan, err)
	}
	install(t, root, usual, "UNINITIALIZED")
	_, err := open(t, root).Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, "nvmlDeviceGetCount_v2: code 1")
}

func TestCrashInLibrary(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual, "CRASHES")
	n := open(t, root)
	_, err := n.Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, "the NVML child ended", "SIGSEGV")
	install(t, root, usual)
	if scan, err := n.Scan(t.Context()); err != nil || len(scan.GPUs) != 1 {
		t.Errorf("after the crash: %+v, %v", scan, err)
	}
}

func TestHangInLibrary(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual, "HANGS")
	n := open(t, root)
	start := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			_, err := n.Scan(within(t, 100*time.Millisecond))
			wantError(t, err, nvml.ErrDriver, "no answer from NVML")
			wantError(t, err, context.DeadlineExceeded)
		})
	}
	wg.Wait()
	if took := time.Since(start); took > 100*time.Millisecond+2*cancelGrace {
		t.Errorf("giving up took %s", took)
	}
	eventually(t, "the hanging children end", func() bool { return len(children(t, os.Getpid())) == 0 })
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Scan(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestIdleSessionEnds(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual)
	n := open(t, root, Idle(200*time.Millisecond))
	for range 2 {
		for range 3 { // calls in a row share a session
			if _, err := n.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := children(t, os.Getpid()); len(got) != 1 {
				t.Fatalf("%d children after a call, want 1", len(got))
			}
		}
		eventually(t, "the session ends", func() bool { return len(children(t, os.Getpid())) == 0 })
	}
}

func TestCloseAndUseAgain(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual)
	n := Open(root)
	if err := n.Close(); err != nil {
		t.Errorf("close before use: %v", err)
	}
	for range 2 {
		if _, err := n.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		if got := children(t, os.Getpid()); len(got) != 0 {
			t.Fatalf("%d children after Close", len(got))
		}
	}
}

func TestManyAtOnceWithClose(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual)
	n := open(t, root)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 20 {
				if scan, err := n.Scan(t.Context()); err != nil || len(scan.GPUs) != 1 {
					t.Errorf("got %+v, %v", scan, err)
				}
				if i == 0 {
					if err := n.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// A plugin that is killed must not leave a child that goes on changing GPUs.
func TestChildDiesWithParent(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual, "HANGS")
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{victim, root}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child []int
	eventually(t, "the child starts", func() bool { child = children(t, cmd.Process.Pid); return len(child) == 1 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	eventually(t, "the child ends", func() bool { return errors.Is(syscall.Kill(child[0], 0), syscall.ESRCH) })
}

func TestProgramWithoutHook(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual)
	t.Setenv(childEnv, "1")
	_, err := Open(root).Scan(t.Context())
	wantError(t, err, nvml.ErrDriver, "driver.IsChild")
}

func TestUnknownUUIDs(t *testing.T) {
	root := t.TempDir()
	install(t, root, usual)
	n := open(t, root)
	if g, err := n.GPU(t.Context(), "GPU-0"); err != nil || g.Minor != 4 {
		t.Errorf("got %+v, %v", g, err)
	}
	for _, uuid := range []nvml.UUID{"", "GPU-1", "MIG-1", "0"} {
		_, err := n.GPU(t.Context(), uuid)
		wantError(t, err, nvml.ErrNotFound, "read "+string(uuid))
		wantError(t, n.DestroyMIG(t.Context(), uuid), nvml.ErrNotFound, "destroy "+string(uuid))
	}
	if p, err := n.MIGProfiles(t.Context(), "GPU-0"); err != nil || len(p) != 0 {
		t.Errorf("profiles of a GPU without MIG: %v, %v", p, err)
	}
	_, err := n.SetMIGMode(t.Context(), "GPU-0", true)
	wantError(t, err, nvml.ErrUnsupported, "switch MIG mode of GPU-0 on", "no MIG mode")
	_, err = n.CreateMIG(t.Context(), nvml.Placement{GPU: "GPU-0", ProfileID: 19})
	wantError(t, err, nvml.ErrUnsupported, "create MIG profile 19 at slice 0 of GPU-0", "no MIG mode")
}

func TestFindLibrary(t *testing.T) {
	root := t.TempDir()
	write := func(name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	find := func(want string, opts ...Option) {
		t.Helper()
		got, err := Open(root, opts...).library.find()
		if err != nil || got.path != filepath.Join(root, want) {
			t.Errorf("found %q, %v, want %q", got.path, err, want)
		}
	}
	write("lib/aarch64-linux-gnu/libnvidia-ml.so.1")
	find("lib/aarch64-linux-gnu/libnvidia-ml.so.1")
	write("real/libnvidia-ml.so.580")
	if err := os.MkdirAll(filepath.Join(root, "usr/lib64"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/real/libnvidia-ml.so.580", filepath.Join(root, "usr/lib64/libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
	find("real/libnvidia-ml.so.580")
	write("libnvidia-ml.so.1") // the root itself is a directory of libraries (GKE)
	find("libnvidia-ml.so.1")
	find("real/libnvidia-ml.so.580", LibraryPath("/real/libnvidia-ml.so.580"))

	_, err := Open(root, LibraryPath("/opt/x.so")).library.find()
	wantError(t, err, nvml.ErrDriver, filepath.Join(root, "opt/x.so"), "correct the path")
	_, err = Open(t.TempDir(), Setting("nvidiaDriverRoot")).library.find()
	wantError(t, err, nvml.ErrDriver, "set nvidiaDriverRoot")
	wantError(t, err, fs.ErrNotExist)
}
