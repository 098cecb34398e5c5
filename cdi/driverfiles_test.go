package cdi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

// containerDriver is a machine with a driver container, and the driver on it.
func containerDriver(t *testing.T) (root string, d *Driver) {
	t.Helper()
	root, machine := t.TempDir(), t.TempDir()
	putDriver(t, root, "usr/lib64", "usr/bin", version)
	putNodes(t, root, allNodes...)
	putProc(t, machine)
	return root, openDriver(t, Config{ContainerRoot: root, HostRoot: "/run/nvidia/driver", HookPath: "/hook", MachineRoot: machine})
}

func openDriver(t *testing.T, c Config) *Driver {
	t.Helper()
	d, err := NewDriver(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func hasMount(e *specs.ContainerEdits, hostPath string) bool {
	for _, m := range e.Mounts {
		if m.HostPath == hostPath {
			return true
		}
	}
	return false
}

// A node that is missing is an error that names it, nothing incomplete is
// remembered, and once it is there the next call succeeds: R102.
func TestMissingNode(t *testing.T) {
	root, d := containerDriver(t)
	ctx := t.Context()
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0"} {
		ask := d.Common
		if name == "nvidia0" {
			ask = func(ctx context.Context) (*specs.ContainerEdits, error) { return d.GPU(ctx, gpus[0].uuid, 0) }
		}
		node := filepath.Join(root, "dev", name)
		for _, wrong := range []func() error{
			func() error { return nil },
			func() error { return os.WriteFile(node, nil, 0o600) },
			func() error { return os.Mkdir(node, 0o700) },
		} {
			if err := errors.Join(os.RemoveAll(node), wrong()); err != nil {
				t.Fatal(err)
			}
			_, err := ask(ctx)
			if !errors.Is(err, ErrNotReady) || !strings.Contains(fmt.Sprint(err), node) || !strings.Contains(fmt.Sprint(err), "/run/nvidia/driver/dev/"+name) {
				t.Errorf("without %s: got %v, want ErrNotReady that names it here and on the host", name, err)
			}
		}
		if err := os.RemoveAll(node); err != nil {
			t.Fatal(err)
		}
		putNodes(t, root, name)
		edits, err := ask(ctx)
		if err != nil {
			t.Fatalf("with %s: %v", name, err)
		}
		found := false
		for _, n := range edits.DeviceNodes {
			found = found || n.Path == "/dev/"+name && n.HostPath == "/run/nvidia/driver/dev/"+name
		}
		if !found {
			t.Errorf("%s is not in the edits", name)
		}
	}
	// nvidia-modeset is for displays and may be missing.
	if err := os.Remove(filepath.Join(root, "dev/nvidia-modeset")); err != nil {
		t.Fatal(err)
	}
	edits, err := d.Common(ctx)
	if err != nil {
		t.Fatalf("without nvidia-modeset: %v", err)
	}
	for _, n := range edits.DeviceNodes {
		if n.Path == "/dev/nvidia-modeset" {
			t.Error("nvidia-modeset is remembered though it is gone")
		}
	}
}

// The minor number of a GPU comes from the driver now: R005.
func TestGPUMinor(t *testing.T) {
	root, d := containerDriver(t)
	ctx := t.Context()
	for _, g := range gpus {
		edits, err := d.GPU(ctx, g.uuid, g.minor)
		if err != nil {
			t.Fatal(err)
		}
		node := fmt.Sprintf("/dev/nvidia%d", g.minor)
		want := &specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{
			Path: node, HostPath: "/run/nvidia/driver" + node, Major: 195, Minor: int64(g.minor), FileMode: modeOf(0o666), Permissions: "rwm",
		}}}
		if diff := cmp.Diff(want, numbered(edits)); diff != "" {
			t.Errorf("%s:\n%s", g.uuid, diff)
		}
	}
	// The two GPUs have changed places, and the caller knows.
	for i, g := range gpus {
		putFile(t, filepath.Join(d.config.MachineRoot, "proc/driver/nvidia/gpus", g.pci, "information"),
			"GPU UUID: \t "+gpus[1-i].uuid+"\nDevice Minor: \t "+str(int64(g.minor))+"\n", 0o600)
	}
	edits, err := d.GPU(ctx, gpus[0].uuid, gpus[1].minor)
	if err != nil || edits.DeviceNodes[0].Path != "/dev/nvidia3" {
		t.Errorf("after the change: %v, %v", edits, err)
	}
	// The caller does not know.
	_, err = d.GPU(ctx, gpus[0].uuid, gpus[0].minor)
	if !errors.Is(err, ErrNotReady) || !strings.Contains(fmt.Sprint(err), "is now GPU "+gpus[1].uuid) {
		t.Errorf("with the old minor number: got %v", err)
	}
	putNodes(t, root, "nvidia7")
	_, err = d.GPU(ctx, gpus[0].uuid, 7)
	if !errors.Is(err, ErrNotReady) || !strings.Contains(fmt.Sprint(err), "no GPU with minor number 7 but with [0 3]") {
		t.Errorf("with a minor number nobody has: got %v", err)
	}
	for _, bad := range []struct {
		uuid  string
		minor int
	}{{"", 0}, {gpus[0].uuid, -1}} {
		if _, err := d.GPU(ctx, bad.uuid, bad.minor); !errors.Is(err, ErrInvalid) {
			t.Errorf("GPU(%q, %d): got %v, want ErrInvalid", bad.uuid, bad.minor, err)
		}
	}
	// Without these files in proc a GPU has its node all the same.
	if err := os.RemoveAll(filepath.Join(d.config.MachineRoot, "proc")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.GPU(ctx, gpus[0].uuid, 0); err != nil {
		t.Errorf("without proc: %v", err)
	}
}

// What was found is used again until the driver changes: R103.
func TestDriverSwap(t *testing.T) {
	root, d := containerDriver(t)
	ctx := t.Context()
	host := "/run/nvidia/driver/usr/lib64/libcuda.so."
	for _, v := range []string{version, "590.10", version} {
		if err := os.RemoveAll(filepath.Join(root, "usr")); err != nil {
			t.Fatal(err)
		}
		_, err := d.Common(ctx)
		if !errors.Is(err, ErrNotReady) || !strings.Contains(fmt.Sprint(err), "libnvidia-ml.so.1 is not in any of") || !strings.Contains(fmt.Sprint(err), "/run/nvidia/driver on the host") {
			t.Errorf("without driver: got %v", err)
		}
		putDriver(t, root, "usr/lib64", "usr/bin", v)
		edits, err := d.Common(ctx)
		if err != nil {
			t.Fatalf("with driver %s: %v", v, err)
		}
		if !hasMount(edits, host+v) {
			t.Errorf("with driver %s: its libcuda is missing in %v", v, edits.Mounts)
		}
	}
	// Files an upgrade has left behind are not taken for the driver in use.
	putDriver(t, root, "usr/lib64", "usr/bin", "590.10")
	edits, err := d.Common(ctx)
	if err != nil || !hasMount(edits, host+"590.10") || hasMount(edits, host+version) {
		t.Errorf("with two versions side by side: %v", err)
	}
	// A daemon of the driver that starts later is noticed, too.
	putFile(t, filepath.Join(root, "run/nvidia-fabricmanager/socket"), "", 0o600)
	edits, err = d.Common(ctx)
	if err != nil || !hasMount(edits, "/run/nvidia/driver/run/nvidia-fabricmanager/socket") {
		t.Errorf("the socket of the fabric manager is missing: %v", err)
	}
}

// What no fingerprint notices is noticed after a while.
func TestForget(t *testing.T) {
	root, d := containerDriver(t)
	const file = "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"
	has := func() bool {
		t.Helper()
		edits, err := d.Common(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return hasMount(edits, "/run/nvidia/driver"+file)
	}
	if has() {
		t.Error("the file is there already")
	}
	putFile(t, filepath.Join(root, file), "{}", 0o644)
	if has() {
		t.Error("found at once: nothing was remembered")
	}
	f := d.known[""]
	f.until = f.until.Add(-forgetAfter)
	d.known[""] = f
	if !has() {
		t.Error("not found after forgetAfter")
	}
}

// Eight claims at once ask once, and none can spoil the memory of the others.
func TestAskOnce(t *testing.T) {
	_, d := containerDriver(t)
	var asked atomic.Int32
	q := question{
		uuid: gpus[0].uuid, nodes: []string{"/dev/nvidia0"},
		ask: func(cdi nvcdi.Interface) (specs.ContainerEdits, error) {
			asked.Add(1)
			devices, err := cdi.GetDeviceSpecsByID(gpus[0].uuid)
			if err != nil {
				return specs.ContainerEdits{}, err
			}
			return devices[0].ContainerEdits, nil
		},
	}
	var claims sync.WaitGroup
	for range 8 {
		claims.Go(func() {
			edits, err := d.find(t.Context(), q)
			if err != nil {
				t.Error(err)
				return
			}
			if n := edits.DeviceNodes[0]; n.Path != "/dev/nvidia0" || n.HostPath != "/run/nvidia/driver/dev/nvidia0" {
				t.Errorf("got %+v", n)
			}
			edits.DeviceNodes[0].Path, edits.DeviceNodes[0].HostPath = "/dev/spoiled", "/dev/spoiled"
		})
	}
	claims.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}

	// A failure is not remembered.
	q.uuid, q.minor, q.nodes = gpus[1].uuid, 3, []string{"/dev/nvidia3"}
	q.ask = func(nvcdi.Interface) (specs.ContainerEdits, error) { return specs.ContainerEdits{}, nil }
	if _, err := d.find(t.Context(), q); !errors.Is(err, ErrNotReady) || !strings.Contains(fmt.Sprint(err), "/dev/nvidia3 has just gone") {
		t.Errorf("an answer without the node: got %v", err)
	}
	q.ask = func(nvcdi.Interface) (specs.ContainerEdits, error) {
		var f facts
		f.SystemGetNVMLVersion()
		panic("unreachable")
	}
	if _, err := d.find(t.Context(), q); !errors.Is(err, ErrNotReady) || !strings.Contains(fmt.Sprint(err), "a fact about the driver that it is not given") {
		t.Errorf("a question that facts cannot answer: got %v", err)
	}
	q.ask = func(cdi nvcdi.Interface) (specs.ContainerEdits, error) {
		devices, err := cdi.GetDeviceSpecsByID(gpus[1].uuid)
		if err != nil {
			return specs.ContainerEdits{}, err
		}
		return devices[0].ContainerEdits, nil
	}
	if _, err := d.find(t.Context(), q); err != nil {
		t.Errorf("after the failures: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Common(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

func TestNewDriverRefuses(t *testing.T) {
	good := Config{ContainerRoot: "/driver-root/", HostRoot: "/", HookPath: "/hook"}
	if d, err := NewDriver(good); err != nil || d.config.ContainerRoot != "/driver-root" {
		t.Errorf("%+v: %v", good, err)
	}
	for want, change := range map[string]func(*Config){
		`driver root ""`:                   func(c *Config) { c.ContainerRoot = "" },
		`driver root on the host "x"`:      func(c *Config) { c.HostRoot = "x" },
		`hook program ""`:                  func(c *Config) { c.HookPath = "" },
		"set both or none":                 func(c *Config) { c.DevRoot = "/" },
		"want absolute paths":              func(c *Config) { c.DevRoot, c.HostDevRoot = "a", "b" },
		"the host's /run/driver cannot be": func(c *Config) { c.ContainerRoot, c.HostRoot = "/", "/run/driver" },
	} {
		c := good
		change(&c)
		if _, err := NewDriver(c); !errors.Is(err, ErrInvalid) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want ErrInvalid with %q", err, want)
		}
	}
}

func FuzzInformation(f *testing.F) {
	for _, seed := range []string{
		"GPU UUID: \t GPU-1\nDevice Minor: \t 3\n", "GPU UUID: GPU-????????-????\nDevice Minor: 0", "Device Minor: -1", "Device Minor: 99999999999999999999",
		"", ":::\n:", "Device Minor", strings.Repeat("x", 70000) + "\nDevice Minor: 1",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := parseInformation(data)
		if err == nil && (info.minor < 0 || strings.Contains(info.uuid, "?")) {
			t.Errorf("%q became %+v", data, info)
		}
	})
}
