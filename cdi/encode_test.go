package cdi

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// TestEncodeInPieces compares what is put together with what would be encoded at
// once, for specs with other common edits each time and with the same.
func TestEncodeInPieces(t *testing.T) {
	var e encoder
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d golden specs, %v", len(files), err)
	}
	for round := range 2 {
		for _, file := range files {
			golden, err := cdi.ReadSpec(file, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, common := range []specs.ContainerEdits{golden.ContainerEdits, {}, golden.ContainerEdits} {
				spec := *golden.Spec
				spec.ContainerEdits = common
				want, err := yaml.Marshal(spec)
				if err != nil {
					t.Fatal(err)
				}
				got, err := e.encode(uid, &spec)
				if err != nil || string(got.text) != string(want) {
					t.Errorf("%s, round %d: %v\n%s", file, round, err, got.text)
				}
			}
		}
	}
}

// TestJudgedOnce shows that the library reads a spec of another claim only if it
// says something else, and that what it refuses is refused each time.
func TestJudgedOnce(t *testing.T) {
	s := openStore(t, t.TempDir())
	write := func(claimUID string, common specs.ContainerEdits) error {
		return s.Write(claimUID, []specs.Device{gpuDevice(claimUID)}, common)
	}
	bad := specs.ContainerEdits{Env: []string{"NOTHING"}}
	for i := range 3 {
		claim := fmt.Sprintf("claim-%d", i)
		if err := write(claim, specs.ContainerEdits{Env: []string{hidden}}); err != nil {
			t.Fatal(err)
		}
		if err := write(claim, bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("a bad spec: %v", err)
		}
		if err := s.Check(claim, []string{DeviceName(claim, "gpu-0")}); err != nil {
			t.Error(err)
		}
	}
	if n := len(s.encoder.accepted); n != 1 {
		t.Errorf("%d shapes accepted, want 1", n)
	}
	for i := range maxAccepted + 1 {
		if err := write("claim", specs.ContainerEdits{Env: []string{fmt.Sprintf("A=%d", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.encoder.accepted); n > maxAccepted {
		t.Errorf("%d shapes are remembered", n)
	}
}

// FuzzEncode puts any text where the driver, a path or a name could bring it in.
func FuzzEncode(f *testing.F) {
	for _, seed := range []string{"", "/usr/lib64/libcuda.so.1", "a: b", "- x", "\"", "yes", "1e3", "\n", "#", "\xff", "<&>"} {
		f.Add(seed, "gpu-0")
	}
	f.Fuzz(func(t *testing.T, text, device string) {
		spec := &specs.Spec{
			Version: "0.5.0", Kind: "a.b/c",
			Devices:        []specs.Device{{Name: DeviceName(uid, device), ContainerEdits: specs.ContainerEdits{Env: []string{"A=" + text}}}},
			ContainerEdits: specs.ContainerEdits{Mounts: []*specs.Mount{{HostPath: text, ContainerPath: text}}},
		}
		want, err := yaml.Marshal(spec)
		if err != nil {
			return // it cannot be encoded at once either
		}
		var e encoder
		for range 2 {
			got, err := e.encode(uid, spec)
			if err != nil || string(got.text) != string(want) {
				t.Fatalf("%v\n%s\nwant\n%s", err, got.text, want)
			}
		}
	})
}

// TestShape shows what tells two specs apart.
func TestShape(t *testing.T) {
	shape := func(claimUID string, change func(*specs.Spec)) string {
		spec := &specs.Spec{Version: "0.5.0", Kind: "a.b/c", Devices: []specs.Device{gpuDevice(claimUID)}}
		change(spec)
		s, err := shapeOf(claimUID, spec, []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(s, claimUID) {
			t.Errorf("the shape names the claim: %s", s)
		}
		return s
	}
	same := func(*specs.Spec) {}
	first := shape("first", same)
	if other := shape("second", same); other != first {
		t.Errorf("of another claim: %s, not %s", other, first)
	}
	for name, change := range map[string]func(*specs.Spec){
		"version": func(s *specs.Spec) { s.Version = "1.0.0" },
		"kind":    func(s *specs.Spec) { s.Kind = "x.y/z" },
		"name":    func(s *specs.Spec) { s.Devices[0].Name += "0" },
		"node":    func(s *specs.Spec) { s.Devices[0].ContainerEdits.DeviceNodes[0].Path = "/dev/nvidia1" },
		"more":    func(s *specs.Spec) { s.Devices = append(s.Devices, s.Devices[0]) },
	} {
		if other := shape("first", change); other == first {
			t.Errorf("another %s makes no difference", name)
		}
	}
	if _, err := shapeOf("first", &specs.Spec{Devices: []specs.Device{{Name: "gpu-0"}}}, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("a device of no claim: %v", err)
	}
}
