package cdi

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

var update = flag.Bool("update", false, "rewrite testdata/golden/cdi")

const (
	goldenDir = "../testdata/golden/cdi"
	badDir    = "../testdata/bad/cdi"
)

// built is where the tests put the programs they build.
var built string

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if built, err = os.MkdirTemp("", "cdi-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	if err := os.RemoveAll(built); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// buildJudge builds the program in the directory judge once.
var buildJudge = sync.OnceValues(func() (string, error) {
	path := filepath.Join(built, "judge")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = "judge"
	if out, err := build.CombinedOutput(); err != nil {
		return "", errorWith(err, out)
	}
	return path, nil
})

// judge asks all three judges about a spec: the CDI library that we use, the
// CDI schema, and an old library. It returns what they say against it.
func judge(t *testing.T, path string) string {
	t.Helper()
	var verdict strings.Builder
	if _, err := cdi.ReadSpec(path, 0); err != nil {
		fmt.Fprintf(&verdict, "library: %v\n", err)
	}
	program, err := buildJudge()
	if err != nil {
		t.Fatalf("build judge: %v", err)
	}
	out, err := exec.Command(program, path).CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatalf("run judge: %v", err)
	}
	verdict.Write(out)
	return verdict.String()
}

// TestGolden compares whole spec files, as the runtime reads them.
func TestGolden(t *testing.T) {
	type layout struct {
		libs, bin string // below the driver root
		host      string // the driver root on the host
		devInside bool   // whether the device nodes are below the driver root
	}
	var (
		container = layout{"usr/lib64", "usr/bin", "/run/nvidia/driver", true}
		onHost    = layout{"usr/lib/x86_64-linux-gnu", "usr/bin", "/", true}
		gke       = layout{"lib64", "bin", "/home/kubernetes/bin/nvidia", false}
	)
	for name, c := range map[string]struct {
		layout  layout
		devices func(*testing.T, *Driver) []specs.Device
	}{
		"one-gpu":         {container, wholeGPUs(gpus[0].uuid)},
		"two-gpus":        {container, wholeGPUs(gpus[0].uuid, gpus[1].uuid)},
		"mig-devices":     {container, migDevices},
		"driver-on-host":  {onHost, wholeGPUs(gpus[1].uuid)},
		"driver-gke-root": {gke, wholeGPUs(gpus[0].uuid)},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := buildJudge(); err != nil { // before putDriver changes PATH
				t.Fatalf("build judge: %v", err)
			}
			root, machine := t.TempDir(), t.TempDir()
			config := Config{ContainerRoot: root, HostRoot: c.layout.host, HookPath: "/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook", MachineRoot: machine}
			putDriver(t, root, c.layout.libs, c.layout.bin, version)
			putProc(t, machine)
			if c.layout.devInside {
				putNodes(t, root, allNodes...)
			} else {
				putNodes(t, machine, allNodes...)
				config.DevRoot, config.HostDevRoot = machine, "/"
			}
			d := openDriver(t, config)
			common, err := d.Common(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s := openStore(t, t.TempDir())
			if err := s.Write(uid, c.devices(t, d), *numbered(common)); err != nil {
				t.Fatal(err)
			}
			path, err := s.Path(uid)
			if err != nil {
				t.Fatal(err)
			}
			if verdict := judge(t, path); verdict != "" {
				t.Errorf("refused: %s", verdict)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, inside := range []string{root, machine} {
				if bytes.Contains(got, []byte(inside)) {
					t.Errorf("the spec names %s, which is not on the host", inside)
				}
			}
			golden := filepath.Join(goldenDir, name+".yaml")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v; make it with -update", err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-update rewrites it):\n%s", golden, diff)
			}
		})
	}
}

// wholeGPUs makes the devices of a claim for GPUs.
func wholeGPUs(uuids ...string) func(*testing.T, *Driver) []specs.Device {
	return func(t *testing.T, d *Driver) []specs.Device {
		var devices []specs.Device
		for _, g := range gpus {
			for _, uuid := range uuids {
				if g.uuid == uuid {
					devices = append(devices, specs.Device{Name: DeviceName(uid, "gpu-"+str(int64(g.minor))), ContainerEdits: *gpuEdits(t, d, uuid, g.minor)})
				}
			}
		}
		return devices
	}
}

// migDevices makes the devices of a claim for two MIG devices of one GPU.
func migDevices(t *testing.T, d *Driver) []specs.Device {
	parent := gpuEdits(t, d, gpus[0].uuid, gpus[0].minor)
	var devices []specs.Device
	for name, minor := range map[string]int64{"gpu-0-mig-1g10gb-19-0": 66, "gpu-0-mig-1g10gb-19-1": 75} {
		nodes, err := MIGNodes(CapNode{Major: 236, Minor: minor, Mode: 0o444}, CapNode{Major: 236, Minor: minor + 1, Mode: 0o444})
		if err != nil {
			t.Fatal(err)
		}
		devices = append(devices, specs.Device{Name: DeviceName(uid, name), ContainerEdits: Merge(*parent, *nodes)})
	}
	if devices[0].Name > devices[1].Name {
		devices[0], devices[1] = devices[1], devices[0]
	}
	return devices
}

func gpuEdits(t *testing.T, d *Driver, uuid string, minor int) *specs.ContainerEdits {
	t.Helper()
	edits, err := d.GPU(t.Context(), uuid, minor)
	if err != nil {
		t.Fatal(err)
	}
	return numbered(edits)
}

// Every file in testdata/golden/cdi is accepted, every file in
// testdata/bad/cdi is refused. The first line of a bad file is a comment that
// says which judge must refuse it, and a word the reason must have.
func TestJudges(t *testing.T) {
	for _, path := range yamlFiles(t, goldenDir) {
		if verdict := judge(t, path); verdict != "" {
			t.Errorf("%s is refused: %s", path, verdict)
		}
	}
	for _, path := range yamlFiles(t, badDir) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(data), "\n")
		by, reason, ok := strings.Cut(strings.TrimPrefix(first, "# "), ": ")
		verdict := judge(t, path)
		if !ok || !strings.Contains(verdict, by+": ") || !strings.Contains(verdict, reason) {
			t.Errorf("%s: got %q, want a refusal by the %s with %q", path, verdict, by, reason)
		}
	}
}

func yamlFiles(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	return paths
}

// Whatever edits come out of a spec file, Write takes them or refuses them; it
// never writes what a runtime would refuse.
func FuzzWrite(f *testing.F) {
	for _, dir := range []string{goldenDir, badDir} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := cdi.ParseSpec(data)
		if err != nil || spec == nil {
			return
		}
		s := openStore(t, t.TempDir())
		for i := range spec.Devices {
			spec.Devices[i].ContainerEdits = Merge(spec.Devices[i].ContainerEdits)
		}
		if err := s.Write(uid, spec.Devices, spec.ContainerEdits); err != nil {
			return
		}
		if err := s.Check(uid, nil); err != nil {
			t.Error(err)
		}
	})
}
