package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/google/go-cmp/cmp"

	"nvdra/nvml/sim/simbuild"
	"nvdra/nvml/sim/simtest"
)

// A program is a running gpusim.
type program struct {
	cmd *exec.Cmd
	log *os.File // what it has said
}

// said is what the program has said so far.
func (p *program) said(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(p.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// start starts gpusim and waits until it says that the driver is ready.
func start(t *testing.T, root, machine string, args ...string) *program {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "gpusim.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &program{log: log}
	p.cmd = exec.Command(filepath.Join(simtest.Built(t), "gpusim"), append([]string{"run", "--root", root, "--machine", machine}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end(t, os.Kill) })
	ready := filepath.Join(root, "validations/.driver-ctr-ready")
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		// A file left by a run that was killed is older than this process.
		if info, err := os.Stat(ready); err == nil && answers(root) && info.Size() > 0 {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready within a minute: %s", p.said(t))
		}
	}
}

func answers(root string) bool {
	return run(context.Background(), []string{"ctl", "--root", root, "state"}, &bytes.Buffer{}, &bytes.Buffer{}) == nil
}

// end ends gpusim with a signal; once is enough.
func (p *program) end(t *testing.T, with os.Signal) {
	t.Helper()
	if p.cmd.ProcessState != nil {
		return
	}
	if err := p.cmd.Process.Signal(with); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil && with != os.Kill {
		t.Errorf("gpusim: %v: %s", err, p.said(t))
	}
}

func smi(t *testing.T, root string, args ...string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(root, "driver/usr/bin/nvidia-smi"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func ctl(t *testing.T, root string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), append([]string{"ctl", "--root", root}, args...), &out, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestEndToEnd plays a machine with the real program, kills it, and goes on.
func TestEndToEnd(t *testing.T) {
	root := t.TempDir()
	p := start(t, root, "h100x8")
	before := smi(t, root, "-L")
	if n := strings.Count(before, "NVIDIA H100 80GB HBM3"); n != 8 {
		t.Fatalf("%d GPUs:\n%s", n, before)
	}
	smi(t, root, "-i", "2", "-mig", "1")
	smi(t, root, "mig", "-i", "2", "-cgi", "9:4", "-C")
	access := filepath.Join(root, "driver/proc/driver/nvidia/capabilities/gpu2/mig/gi2/ci0/access")
	if _, err := os.Stat(access); err != nil {
		t.Error(err)
	}
	with := smi(t, root, "-L")
	library := filepath.Join(root, "driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05")
	inode := func() uint64 {
		info, err := os.Stat(library)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	first := inode()

	p.end(t, os.Kill)
	if _, err := os.Stat(access); err != nil {
		t.Error("the files went with the program:", err)
	}
	p = start(t, root, "h100x8")
	if diff := cmp.Diff(with, smi(t, root, "-L")); diff != "" {
		t.Errorf("after a crash (-before +after):\n%s", diff)
	}
	if inode() != first {
		t.Error("a restart has replaced the library though it is the same")
	}
	ctl(t, root, "load", "590.44.01")
	if _, err := os.Stat(library); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the library of the old driver is still there: %v", err)
	}
	if got := smi(t, root, "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"); got != "590.44.01\n" {
		t.Errorf("driver version is %q", got)
	}
	ready := filepath.Join(root, "validations/.driver-ctr-ready")
	ctl(t, root, "unload")
	if _, err := os.Stat(ready); err == nil {
		t.Error("the driver is unloaded, and the ready file says it is there")
	}
	ctl(t, root, "load")
	p.end(t, syscall.SIGTERM)
	if _, err := os.Stat(ready); err == nil {
		t.Error("the ready file outlives SIGTERM")
	}
	p = start(t, root, "t4x1")
	if got := smi(t, root, "-L"); !strings.Contains(got, "Tesla T4") || strings.Contains(got, "H100") {
		t.Errorf("another machine in the same directory:\n%s", got)
	}
	if !strings.Contains(p.said(t), "starting afresh") {
		t.Errorf("it does not say that it starts afresh: %s", p.said(t))
	}
}

func TestSocketOnly(t *testing.T) {
	root := t.TempDir()
	start(t, root, "none", "--socket-only")
	entries, err := os.ReadDir(filepath.Join(root, "driver"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "run" {
		t.Errorf("driver root has %v, %v", entries, err)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "no command"},
		{[]string{"fly"}, "unknown command \"fly\""},
		{[]string{"run"}, "--machine"},
		{[]string{"run", "--machine", "dgx-b300", "--files", simtest.Built(t) + "/" + simbuild.FilesDir}, "known there"},
		{[]string{"run", "--machine", "t4x1", "--files", t.TempDir()}, "gpusim build"},
		{[]string{"ctl", "--root", t.TempDir(), "state"}, "is gpusim run with --root"},
		{[]string{"ctl"}, "takes a verb"},
		{[]string{"build"}, "directory to build into"},
	} {
		var out bytes.Buffer
		if err := run(t.Context(), c.args, &out, &out); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("gpusim %s: got error %v, want one with %q", strings.Join(c.args, " "), err, c.want)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"help"}, &out, &out); err != nil || !strings.Contains(out.String(), "gpusim ctl lose 0") {
		t.Errorf("help: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := run(t.Context(), []string{"machines"}, &out, &out); err != nil || !strings.Contains(out.String(), "gb200\n") {
		t.Errorf("machines: %v\n%s", err, out.String())
	}
}

// The library container toolkits use to describe devices takes the root for that
// of a real driver.
func TestNVCDI(t *testing.T) {
	if !simtest.Alone(t) {
		return
	}
	r := simtest.Play(t, "dgx-a100")
	nvml := gonvml.New(gonvml.WithLibraryPath(filepath.Join(r.Dir, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")))
	cdi, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(nvml), nvcdi.WithDeviceLib(device.New(nvml)),
		nvcdi.WithDriverRoot(r.Dir), nvcdi.WithDevRoot(r.Dir), nvcdi.WithNVIDIACDIHookPath("/hooks/nvidia-cdi-hook"),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		t.Fatal(err)
	}
	common, err := cdi.GetCommonEdits()
	if err != nil {
		t.Fatal(err)
	}
	var nodes, mounts []string
	for _, d := range common.DeviceNodes {
		nodes = append(nodes, d.Path)
	}
	for _, m := range common.Mounts {
		mounts = append(mounts, m.ContainerPath)
	}
	slices.Sort(nodes)
	slices.Sort(mounts)
	if r.NoNodes != "" {
		// nvcdi takes only real device nodes, which is what NoNodes warns of.
		t.Logf("no device nodes here: %s", r.NoNodes)
		if len(nodes) > 0 {
			t.Errorf("device nodes %v", nodes)
		}
	} else if diff := cmp.Diff([]string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}, nodes); diff != "" {
		t.Errorf("common device nodes (-want +got):\n%s", diff)
	}
	for _, want := range []string{
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
		"/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-imex", "/usr/bin/nvidia-imex-ctl",
		"/run/nvidia-persistenced/socket", "/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin",
	} {
		if !slices.Contains(mounts, want) {
			t.Errorf("%s is not mounted; mounted are:\n%s", want, strings.Join(mounts, "\n"))
		}
	}
	if !slices.Contains(common.Env, "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu") {
		t.Errorf("environment is %v", common.Env)
	}
	if r.NoNodes != "" {
		return
	}
	for i, b := range r.Machine.Profile().GPUs {
		specs, err := cdi.GetDeviceSpecsByID(string(b.UUID))
		if err != nil {
			t.Fatal(err)
		}
		if len(specs) == 0 || len(specs[0].ContainerEdits.DeviceNodes) != 1 || specs[0].ContainerEdits.DeviceNodes[0].Path != fmt.Sprintf("/dev/nvidia%d", b.Minor) {
			t.Errorf("GPU %d: %+v", i, specs)
		}
	}
}
