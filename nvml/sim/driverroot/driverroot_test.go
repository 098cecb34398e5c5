package driverroot_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvdra/nvml"
	"nvdra/nvml/sim/driverroot"
	"nvdra/nvml/sim/simtest"
)

// show puts a machine into a temporary directory, without libraries.
func show(t *testing.T, name string, options driverroot.Options) (dir string, m nodeWithControl) {
	t.Helper()
	machine := simtest.Machine(t, name)
	dir = t.TempDir()
	root, err := driverroot.Open(dir, "", options)
	if err != nil {
		t.Fatal(err)
	}
	if err := machine.OnChange(root.Show); err != nil {
		t.Fatal(err)
	}
	return dir, machine
}

type nodeWithControl interface {
	nvml.Node
	Control(args []string) ([]string, error)
}

// snapshot is every path below dir with its content, link target or kind.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			found[rel], err = os.Readlink(path)
		case info.Mode().IsRegular():
			var data []byte
			data, err = os.ReadFile(path)
			found[rel] = string(data)
		default:
			found[rel] = info.Mode().String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestFilesFollowTheMachine(t *testing.T) {
	dir, m := show(t, "a30a100", driverroot.Options{PlainNodes: true})
	start := snapshot(t, dir)
	gpus, err := m.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d, err := m.CreateMIG(t.Context(), nvml.Placement{GPU: gpus.GPUs[0].UUID, ProfileID: 5, Start: 2})
	if err != nil {
		t.Fatal(err)
	}
	const gi = "proc/driver/nvidia/capabilities/gpu0/mig/gi2"
	made := snapshot(t, dir)
	if got, want := made[gi+"/access"], "DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n"; got != want {
		t.Errorf("access of the GPU instance is %q, want %q", got, want)
	}
	if got, want := made[gi+"/ci0/access"], "DeviceFileMinor: 22\nDeviceFileMode: 292\nDeviceFileModify: 1\n"; got != want {
		t.Errorf("access of the compute instance is %q, want %q", got, want)
	}
	if err := m.DestroyMIG(t.Context(), d.UUID); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(start, snapshot(t, dir)); diff != "" {
		t.Errorf("after creating and destroying (-before +after):\n%s", diff)
	}

	for _, step := range []struct {
		verb       string
		gone, here []string
	}{
		{"remove 1", []string{"dev/nvidia1", "sys/bus/pci/devices/0000:65:00.0", "proc/driver/nvidia/gpus/0000:65:00.0/information"}, []string{"dev/nvidia0"}},
		{"add " + string(gpus.GPUs[1].UUID), nil, []string{"dev/nvidia1"}},
		{"unload", []string{"proc/driver/nvidia", "sys/module/nvidia", "sys/bus/pci/devices/0000:65:00.0/driver"}, []string{"dev/nvidia1", "proc/devices"}},
		{"load", nil, []string{"proc/driver/nvidia/version"}},
		{"reboot minors=5,7", []string{"dev/nvidia0", "dev/nvidia1"}, []string{"dev/nvidia5", "proc/driver/nvidia/capabilities/gpu7/mig"}},
	} {
		if _, err := m.Control(strings.Fields(step.verb)); err != nil {
			t.Fatal(err)
		}
		for _, path := range step.gone {
			if _, err := os.Lstat(filepath.Join(dir, path)); err == nil {
				t.Errorf("after %s: %s is still there", step.verb, path)
			}
		}
		for _, path := range step.here {
			if _, err := os.Lstat(filepath.Join(dir, path)); err != nil {
				t.Errorf("after %s: %v", step.verb, err)
			}
		}
	}
}

// A new run takes over what an earlier one has left, even of another machine.
func TestOpenTakesOver(t *testing.T) {
	dir, _ := show(t, "dgx-a100", driverroot.Options{PlainNodes: true})
	if err := os.MkdirAll(filepath.Join(dir, "dev", "shm"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := driverroot.Open(dir, "", driverroot.Options{PlainNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := simtest.Machine(t, "t4x1").OnChange(root.Show); err != nil {
		t.Fatal(err)
	}
	fresh, _ := show(t, "t4x1", driverroot.Options{PlainNodes: true})
	want, got := snapshot(t, fresh), snapshot(t, dir)
	for _, varies := range []string{".", "proc/sys/kernel/random/boot_id", "dev/shm"} {
		delete(want, varies)
		delete(got, varies)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a root taken over differs from a fresh one (-fresh +taken over):\n%s", diff)
	}
}

func TestSysfs(t *testing.T) {
	dir, _ := show(t, "gb200", driverroot.Options{PlainNodes: true})
	device := filepath.Join(dir, "sys/bus/pci/devices/0018:01:00.0")
	real, err := filepath.EvalSymlinks(device)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "sys/devices/pci0018:00/0018:00:00.0/0018:01:00.0"); real != want {
		t.Errorf("the device is %s, want %s", real, want)
	}
	for name, want := range map[string]string{"vendor": "0x10de\n", "device": "0x2941\n", "class": "0x030200\n", "numa_node": "1\n", "driver/0018:01:00.0/revision": "0xa1\n"} {
		got, err := os.ReadFile(filepath.Join(device, name))
		if err != nil || string(got) != want {
			t.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
	for link, want := range map[string]string{"driver": "nvidia", "iommu_group": "32"} {
		target, err := filepath.EvalSymlinks(filepath.Join(device, link))
		if err != nil || filepath.Base(target) != want {
			t.Errorf("%s leads to %s (%v), want %s", link, target, err, want)
		}
	}
	imex, err := os.ReadFile(filepath.Join(dir, "proc/driver/nvidia/capabilities/fabric-imex-mgmt"))
	if err != nil || !strings.HasPrefix(string(imex), "DeviceFileMinor: 4323\n") {
		t.Errorf("fabric-imex-mgmt is %q, %v", imex, err)
	}
	minors, err := os.ReadFile(filepath.Join(dir, "proc/driver/nvidia-caps/mig-minors"))
	if err != nil || !strings.HasPrefix(string(minors), "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n") || !strings.HasSuffix(string(minors), "\ngpu31/gi14/ci7/access 4322\n") {
		t.Errorf("mig-minors is wrong: %v", err)
	}
}
