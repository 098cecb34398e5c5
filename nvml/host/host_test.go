package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// machine makes a root from files and links: "name" → content, or
// "name" → "-> target" for a symbolic link.
func machine(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		put(t, root, name, content)
	}
	return At(root)
}

func put(t *testing.T, root, name, content string) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if target, ok := strings.CutPrefix(content, "-> "); ok {
		err = os.Symlink(target, file)
	} else {
		err = os.WriteFile(file, []byte(content), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks that an error says all of the parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

func TestResolveStaysInside(t *testing.T) {
	h := machine(t, map[string]string{
		"usr/lib64/libnvidia-ml.so.580":   "x",
		"usr/lib64/libnvidia-ml.so.1":     "-> libnvidia-ml.so.580",
		"lib64":                           "-> usr/lib64",
		"opt/abs":                         "-> /usr/lib64/libnvidia-ml.so.1",
		"opt/out":                         "-> ../../../../../../etc/hostname",
		"opt/loop":                        "-> /opt/loop",
		"usr/lib64/up":                    "-> ..",
		"usr/lib64/libnvidia-ml.so.1.bak": "-> /nowhere",
	})
	for name, want := range map[string]string{
		"/usr/lib64/libnvidia-ml.so.1":                  "usr/lib64/libnvidia-ml.so.580",
		"lib64/libnvidia-ml.so.1":                       "usr/lib64/libnvidia-ml.so.580",
		"/opt/abs":                                      "usr/lib64/libnvidia-ml.so.580",
		"/lib64/up/lib64/libnvidia-ml.so.1":             "usr/lib64/libnvidia-ml.so.580",
		"/../../usr/lib64/./../lib64/libnvidia-ml.so.1": "usr/lib64/libnvidia-ml.so.580",
		"/": "",
	} {
		got, err := h.Resolve(name)
		if want = filepath.Join(h.Root(), want); err != nil || got != want {
			t.Errorf("Resolve(%q) = %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := h.Resolve("/opt/out"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("link out of the root: %v, want that the file does not exist inside", err)
	}
	if _, err := h.Resolve("/opt/loop"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("loop: %v", err)
	}
	if _, err := h.Resolve("/usr/lib64/libnvidia-ml.so.1.bak"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("dangling link: %v", err)
	}
}

func TestReadRefusesHugeFile(t *testing.T) {
	h := machine(t, map[string]string{"proc/devices": strings.Repeat("x", maxFile+1)})
	_, err := h.CharMajors()
	wantError(t, err, "proc/devices", "longer than")
}

const procDevices = `Character devices:
  1 mem
  5 /dev/tty
195 nvidia
195 nvidiactl
234 nvidia-nvswitch
235 nvidia-caps-imex-channels
236 nvidia-caps
510 nvidia-uvm

Block devices:
  7 loop
236 nvidia-block
`

func TestCharMajor(t *testing.T) {
	h := machine(t, map[string]string{"proc/devices": procDevices})
	for name, want := range map[string]int{"nvidia": 195, "nvidia-caps": 236, "nvidia-uvm": 510, "/dev/tty": 5} {
		if got, err := h.CharMajor(name); err != nil || got != want {
			t.Errorf("CharMajor(%q) = %d, %v, want %d", name, got, err, want)
		}
	}
	for _, name := range []string{"nvidia-cap", "loop", "nvidia-block"} {
		_, err := h.CharMajor(name)
		wantError(t, err, name, "proc/devices", "is the NVIDIA driver loaded?")
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("CharMajor(%q): %v does not wrap ErrNotExist", name, err)
		}
	}
	_, err := At(t.TempDir()).CharMajor("nvidia")
	wantError(t, err, "read ", "proc/devices: ", "no such file")
}

func TestParseDevicesRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "no section",
		"Block devices:\n 7 loop\n":              "no section",
		"Character devices:\nnvidia\n":           "line 2",
		"Character devices:\n195\n":              "line 2",
		"Character devices:\n1 mem\n4096 big\n":  "line 3",
		"Character devices:\n1 mem\n-1 small\n":  "line 3",
		"Character devices:\n1 mem\n0x1 small\n": "line 3",
	} {
		_, err := parseDevices("/r/proc/devices", []byte(text))
		wantError(t, err, "/r/proc/devices", want)
	}
}

func FuzzDevices(f *testing.F) {
	f.Add([]byte(procDevices))
	f.Add([]byte("Character devices:\n 195 nvidia"))
	f.Add([]byte("Character devices:\r\n 195 a b c\r\n"))
	f.Add([]byte("Character devices:\n\x00\xff 1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		majors, err := parseDevices("f", data)
		if err != nil {
			return
		}
		for name, major := range majors {
			if major < 0 || major > maxMajor || name == "" || strings.ContainsAny(name, "\n") {
				t.Errorf("accepted major %d named %q", major, name)
			}
		}
	})
}

func TestMIGCapabilities(t *testing.T) {
	h := machine(t, map[string]string{
		"proc/driver/nvidia/capabilities/gpu2/mig/gi3/access":     "DeviceFileMinor: 300\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
		"proc/driver/nvidia/capabilities/gpu2/mig/gi3/ci0/access": "DeviceFileMinor: 301\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
	})
	gi, ci, err := h.MIGCapabilities(2, 3, 0)
	if err != nil || gi != (Capability{300, 0o444}) || ci != (Capability{301, 0o400}) {
		t.Errorf("got %v, %v, %v", gi, ci, err)
	}
	if gi.Node() != "/dev/nvidia-caps/nvidia-cap300" {
		t.Errorf("node %s", gi.Node())
	}
	for _, at := range [][3]int{{1, 3, 0}, {2, 4, 0}, {2, 3, 1}} {
		_, _, err := h.MIGCapabilities(at[0], at[1], at[2])
		wantError(t, err, "capabilities/gpu", "/access")
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: %v does not wrap ErrNotExist", at, err)
		}
	}
}

func TestParseCapabilityRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "no line DeviceFileMinor",
		"DeviceFileMinor: 3\n":         "no line DeviceFileMode",
		"DeviceFileMinor: x\n":         "line 1",
		"DeviceFileMinor: -1\n":        "line 1",
		"DeviceFileMinor: 1048576\n":   "line 1",
		"\nDeviceFileMinor: 3\nwhat\n": "line 3",
		"DeviceFileMinor: 3\nDeviceFileMinor: 3\nDeviceFileMode: 1\n": "twice",
		"DeviceFileMinor: 3\nDeviceFileMode: 4096\n":                  "permission",
	} {
		_, err := parseCapability("/r/access", []byte(text))
		wantError(t, err, "/r/access", want)
	}
}

func FuzzCapability(f *testing.F) {
	f.Add([]byte("DeviceFileMinor: 300\nDeviceFileMode: 292\nDeviceFileModify: 1\n"))
	f.Add([]byte("DeviceFileMinor:1\nDeviceFileMode:0"))
	f.Add([]byte("DeviceFileMinor: 99999999999999999999\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCapability("f", data)
		if err == nil && (c.Minor < 0 || c.Minor > maxMinor || c.Mode&^fs.ModePerm != 0) {
			t.Errorf("accepted %+v", c)
		}
	})
}

// sysfs has a GPU behind two bridges, one in another domain on a board where
// a platform device stands above the root complex, and one with nothing known.
func sysfs(t *testing.T) Host {
	const a = "sys/devices/pci0000:64/0000:64:01.0/0000:65:00.0"
	const b = "sys/devices/platform/host/pci0008:00/0008:00:00.0/0008:01:00.0"
	const c = "sys/devices/virtual/0000:0a:00.0"
	return machine(t, map[string]string{
		"sys/bus/pci/devices/0000:65:00.0":               "-> ../../../devices/pci0000:64/0000:64:01.0/0000:65:00.0",
		a + "/numa_node":                                 "1\n",
		a + "/iommu_group":                               "-> ../../../../kernel/iommu_groups/27",
		"sys/kernel/iommu_groups/27/type":                "DMA\n",
		"sys/bus/pci/devices/0008:01:00.0":               "-> ../../../devices/platform/host/pci0008:00/0008:00:00.0/0008:01:00.0",
		b + "/numa_node":                                 "-1\n",
		"sys/bus/pci/devices/0000:0a:00.0":               "-> ../../../devices/virtual/0000:0a:00.0",
		c + "/vendor":                                    "0x10de\n",
		"sys/bus/pci/devices/0000:0b:00.0/numa_node":     "none\n",
		"sys/bus/pci/devices/0000:0b:00.0/iommu_group/x": "",
	})
}

func TestPCIERoot(t *testing.T) {
	h := sysfs(t)
	for pci, want := range map[string]string{"0000:65:00.0": "pci0000:64", "0008:01:00.0": "pci0008:00"} {
		if got, err := h.PCIERoot(pci); err != nil || got != want {
			t.Errorf("PCIERoot(%s) = %q, %v, want %q", pci, got, err, want)
		}
	}
	_, err := h.PCIERoot("0000:0a:00.0")
	wantError(t, err, "0000:0a:00.0", "no root complex")
	_, err = h.PCIERoot("0000:66:00.0")
	wantError(t, err, "0000:66:00.0", "no such file")
	for _, bad := range []string{"", "../../../etc", "0000:65:00", "0000:65:00.9", "0000:65:00.0/..", "0000:65:00.0\n"} {
		_, err := h.PCIERoot(bad)
		wantError(t, err, "not an address")
	}
}

func TestNUMANode(t *testing.T) {
	h := sysfs(t)
	for pci, want := range map[string]int{"0000:65:00.0": 1, "0008:01:00.0": -1, "0000:0a:00.0": -1} {
		got, ok, err := h.NUMANode(pci)
		if err != nil || ok != (want >= 0) || ok && got != want {
			t.Errorf("NUMANode(%s) = %d, %v, %v, want %d", pci, got, ok, err, want)
		}
	}
	_, _, err := h.NUMANode("0000:0b:00.0")
	wantError(t, err, "numa_node", `"none" is not a number`)
}

func TestIOMMUGroup(t *testing.T) {
	h := sysfs(t)
	if got, ok, err := h.IOMMUGroup("0000:65:00.0"); got != 27 || !ok || err != nil {
		t.Errorf("got %d, %v, %v", got, ok, err)
	}
	if _, ok, err := h.IOMMUGroup("0008:01:00.0"); ok || err != nil {
		t.Errorf("without a group: %v, %v", ok, err)
	}
	_, _, err := h.IOMMUGroup("0000:0b:00.0")
	wantError(t, err, "iommu_group", "not the number of a group")
}

func FuzzPCIPath(f *testing.F) {
	f.Add("0000:65:00.0", "sys/devices/pci0000:64/0000:64:01.0/0000:65:00.0", []byte("0\n"))
	f.Add("../../etc/passwd", "pci", []byte("-1"))
	f.Add("0000:65:00.0", "pci0000:6g/pcipci0000:00", []byte("1e3"))
	f.Fuzz(func(t *testing.T, pci, sysfs string, numa []byte) {
		if dir, err := pciDir(pci); err == nil && (strings.Contains(dir, "..") || strings.Count(dir, "/") != 5) {
			t.Errorf("address %q leads to %q", pci, dir)
		}
		if root, err := findRoot(sysfs); err == nil && !strings.Contains(sysfs, root) {
			t.Errorf("root %q is not in %q", root, sysfs)
		}
		_, _ = parseNUMA("f", numa) // must not panic; every number is an answer
	})
}

func TestBootID(t *testing.T) {
	const name = "proc/sys/kernel/random/boot_id"
	const id = "5f3b7a4e-6b0e-4f0e-9a54-0d4f2b7f6c11"
	if got, err := machine(t, map[string]string{name: id + "\n"}).BootID(); got != id || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, err := machine(t, map[string]string{name: "today\n"}).BootID()
	wantError(t, err, name, `"today" is not a boot id`)
	_, err = At(t.TempDir()).BootID()
	wantError(t, err, name)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if id, err := At("/").BootID(); err != nil || id == "" {
		t.Errorf("this machine: %q, %v", id, err)
	}
}

func TestDriverVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@h)\nGCC version:  gcc version 12.2.0\n": "580.95.05",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug 19 01:15:15 UTC 2023\n":                                         "535.104",
	} {
		h := machine(t, map[string]string{"proc/driver/nvidia/version": text})
		if got, err := h.DriverVersion(); got != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	_, err := machine(t, map[string]string{"proc/driver/nvidia/version": "GCC version: 12.2.0\n"}).DriverVersion()
	wantError(t, err, "nvidia/version", "NVRM version")
	_, err = machine(t, map[string]string{"proc/driver/nvidia/version": "\nNVRM version: soon\n"}).DriverVersion()
	wantError(t, err, "nvidia/version", "line 2")
}

func FuzzDriverVersion(f *testing.F) {
	f.Add([]byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug 19\n"))
	f.Add([]byte("NVRM version: 1.\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if v, err := parseDriverVersion("f", data); err == nil && !versionNumber.MatchString(v) {
			t.Errorf("accepted %q", v)
		}
	})
}

func TestFingerprint(t *testing.T) {
	h := machine(t, map[string]string{
		"proc/driver/nvidia/version":                          "NVRM version: 580.95.05\n",
		"proc/driver/nvidia/gpus/0000:65:00.0/information":    "Model: x\n",
		"proc/driver/nvidia/capabilities/gpu0/mig/gi1/access": "a",
		"proc/driver/nvidia/capabilities/mig/config":          "a",
		"sys/bus/pci/devices/0000:65:00.0/config":             "\xde\x10\x30\x23",
	})
	last := fingerprint(t, h)
	if again := fingerprint(t, h); again != last {
		t.Errorf("two fingerprints of the same machine differ: %s, %s", last, again)
	}
	changes := []struct {
		what string
		do   func()
	}{
		{"GPU off the bus", func() { put(t, h.Root(), "sys/bus/pci/devices/0000:65:00.0/config", "\xff\xff\xff\xff") }},
		{"GPU back on the bus", func() { put(t, h.Root(), "sys/bus/pci/devices/0000:65:00.0/config", "\xde\x10\x30\x23") }},
		{"compute instance", func() { put(t, h.Root(), "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "a") }},
		{"GPU instance", func() { put(t, h.Root(), "proc/driver/nvidia/capabilities/gpu0/mig/gi2/access", "a") }},
		{"instance gone", func() { remove(t, h, "proc/driver/nvidia/capabilities/gpu0/mig/gi1") }},
		{"GPU", func() { put(t, h.Root(), "proc/driver/nvidia/gpus/0000:66:00.0/information", "") }},
		{"version", func() { put(t, h.Root(), "proc/driver/nvidia/version", "NVRM version: 590.1\n") }},
		{"driver gone", func() { remove(t, h, "proc/driver") }},
	}
	for _, c := range changes {
		c.do()
		now := fingerprint(t, h)
		if now == last {
			t.Errorf("%s: the fingerprint did not change", c.what)
		}
		last = now
	}
	put(t, h.Root(), "proc/driver/nvidia/version/x", "a directory where the file should be")
	_, err := h.Fingerprint()
	wantError(t, err, "nvidia/version")
}

func fingerprint(t *testing.T, h Host) string {
	t.Helper()
	sum, err := h.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func remove(t *testing.T, h Host, name string) {
	t.Helper()
	if err := os.RemoveAll(h.Path(name)); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkFingerprint is of eight GPUs with seven MIG devices each.
func BenchmarkFingerprint(b *testing.B) {
	root := b.TempDir()
	for _, gpu := range "01234567" {
		for _, gi := range "1234567" {
			dir := filepath.Join(root, "proc/driver/nvidia/capabilities/gpu"+string(gpu), "mig/gi"+string(gi), "ci0")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		if _, err := At(root).Fingerprint(); err != nil {
			b.Fatal(err)
		}
	}
}
