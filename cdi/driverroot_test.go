package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

const version = "580.95.05"

// gpus are the GPUs of the machine of the tests.
var gpus = []struct {
	uuid  string
	minor int
	pci   string
}{
	{"GPU-1b6c4f0e-52a4-4f2c-9a0e-6c1f8d0b7a01", 0, "0000:fe:1d.6"},
	{"GPU-1b6c4f0e-52a4-4f2c-9a0e-6c1f8d0b7a02", 3, "0000:fe:1e.7"},
}

// putFile makes a file with everything above it.
func putFile(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// link makes a symbolic link with everything above it.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// putDriver makes a driver root as an installer would: libs and bin are the
// directories of libraries and programs below it.
func putDriver(t *testing.T, root, libs, bin, version string) {
	t.Helper()
	t.Setenv("PATH", "/usr/bin:/bin") // nvcdi looks for programs there, too
	t.Setenv("XDG_DATA_DIRS", "")
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-allocator.so", "libnvidia-nvvm.so"} {
		putFile(t, filepath.Join(root, libs, name+"."+version), "not a library", 0o755)
		soname := filepath.Join(root, libs, name+".1")
		if err := os.RemoveAll(soname); err != nil {
			t.Fatal(err)
		}
		link(t, name+"."+version, soname)
	}
	putFile(t, filepath.Join(root, libs, "vdpau/libvdpau_nvidia.so."+version), "not a library", 0o755)
	for _, name := range []string{"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl"} {
		putFile(t, filepath.Join(root, bin, name), "not a program", 0o755)
	}
	putFile(t, filepath.Join(root, "lib/firmware/nvidia", version, "gsp_ga10x.bin"), "", 0o644)
	putFile(t, filepath.Join(root, "run/nvidia-persistenced/socket"), "", 0o644)
	putFile(t, filepath.Join(root, "usr/share/vulkan/icd.d/nvidia_icd.json"), "{}", 0o644)
}

// majors and minors are the numbers of the driver's device nodes.
var nodeNumbers = map[string][2]uint32{
	"nvidia-modeset": {195, 254}, "nvidiactl": {195, 255}, "nvidia-uvm": {511, 0}, "nvidia-uvm-tools": {511, 1},
	"nvidia0": {195, 0}, "nvidia3": {195, 3}, "nvidia7": {195, 7},
}

// putNodes makes device nodes. Where that is not allowed it makes nodes with
// the number 0:0, which everybody may; see numbered.
func putNodes(t *testing.T, devRoot string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(devRoot, "dev", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		n := nodeNumbers[name]
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(n[0], n[1])))
		if errors.Is(err, unix.EPERM) {
			err = unix.Mknod(path, unix.S_IFCHR|0o666, 0)
		}
		if err == nil {
			err = os.Chmod(path, 0o666)
		}
		if err != nil {
			t.Fatalf("make device node: %v", err)
		}
	}
}

// numbered gives nodes that putNodes could not number their number.
func numbered(edits *specs.ContainerEdits) *specs.ContainerEdits {
	for _, d := range edits.DeviceNodes {
		if n, ok := nodeNumbers[filepath.Base(d.Path)]; ok && d.Major == 0 && d.Minor == 0 {
			d.Major, d.Minor = int64(n[0]), int64(n[1])
		}
	}
	return edits
}

var allNodes = []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia0", "nvidia3"}

// putProc makes what the kernel module says about the GPUs.
func putProc(t *testing.T, machineRoot string) {
	t.Helper()
	for _, g := range gpus {
		putFile(t, filepath.Join(machineRoot, "proc/driver/nvidia/gpus", g.pci, "information"),
			"Model: \t\t NVIDIA H100\nIRQ:   \t\t 11\nGPU UUID: \t "+g.uuid+"\nBus Location: \t "+g.pci+"\nDevice Minor: \t "+str(int64(g.minor))+"\nGPU Excluded:\t No\n", 0o444)
	}
}
