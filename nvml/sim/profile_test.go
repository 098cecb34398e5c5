package sim

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const machines = "../../testdata/machines"

// load is a machine from testdata.
func load(t testing.TB, name string) *Machine {
	t.Helper()
	p, err := LoadProfile(name, machines)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEveryMachineLoads(t *testing.T) {
	want := []string{"a30a100", "b200x8", "dgx-a100", "gb200", "h100x8", "h200x8", "l40sx4", "mixed", "none", "t4x1"}
	if diff := cmp.Diff(want, ListProfiles(machines)); diff != "" {
		t.Fatalf("machines (-want +got):\n%s", diff)
	}
	for _, name := range want {
		m := load(t, name)
		s := m.View().State
		if err := s.fits(m.Profile()); err != nil {
			t.Errorf("%s: the state it starts with: %v", name, err)
		}
	}
}

// The names of MIG profiles follow from memory by the rule the ecosystem uses,
// so a wrong number of MiB shows here.
func TestMIGNamesFollowFromMemory(t *testing.T) {
	seen := map[string]Product{}
	for _, name := range ListProfiles(machines) {
		for key, p := range load(t, name).Profile().Products {
			if old, ok := seen[key]; ok {
				if diff := cmp.Diff(old, p); diff != "" {
					t.Errorf("%s: product %s differs from another machine's:\n%s", name, key, diff)
				}
			}
			seen[key] = p
			if p.MIG == nil {
				continue
			}
			total := float64(p.MemoryMiB)
			for _, f := range p.MIG.Profiles {
				eighths := math.Ceil(float64(f.MemoryMiB) / total * 8)
				gb := int(math.Round(eighths / 8 * math.Ceil(total/1024)))
				if want := fmt.Sprintf("%dg.%dgb", f.Slices, gb); want != strings.TrimSuffix(f.Name, "+me") {
					t.Errorf("%s %s: its memory makes it %s", key, f.Name, want)
				}
			}
		}
	}
}

func TestBadProfilesAreRefused(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(machines, "dgx-a100.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"driver": "580.95.05"`, `"driver": "new"`, "driver"},
		{`"driver": "580.95.05"`, `"drver": "580.95.05"`, "unknown field"},
		{"machine.json", "machine.yaml", "no member machine.json"},
		{"-- machine.json --", "-- ../etc/passwd --\n-- machine.json --", "relative path"},
		{`"minor": 3`, `"minor": 2`, "taken by gpu 0"},
		{`"start": 1`, `"start": 0`, "Insufficient Resources"},
		{`"profile": "3g.40gb", "start": 4`, `"profile": "3g.40gb", "start": 2`, "Invalid Argument"},
		{`"profile": "3g.40gb", "start": 4`, `"profile": "3g.41gb", "start": 4`, "no such MIG profile"},
		{`0000:07:00.0`, `0000:ff:00.0`, "order of PCI"},
		{`"product": "a100-80"`, `"product": "a100"`, "unknown product"},
		{`"size": 8`, `"size": 3`, "no profile spans"},
	} {
		if !strings.Contains(string(good), c.from) {
			t.Fatalf("the profile has no %q", c.from)
		}
		_, err := ParseProfile("bad", []byte(strings.Replace(string(good), c.from, c.to, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s → %s: got error %v, want one with %q", c.from, c.to, err, c.want)
		}
	}
	if _, err := LoadProfile("dgx-b300", machines); err == nil || !strings.Contains(err.Error(), "known there") {
		t.Errorf("unknown machine: %v", err)
	}
}

func FuzzProfile(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(machines, "*.txtar"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no machines: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("-- machine.json --\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParseProfile("fuzz", data)
		if err != nil {
			return
		}
		m, err := New(p)
		if err != nil {
			t.Fatalf("accepted, but makes no machine: %v", err)
		}
		if _, err := m.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzState(f *testing.F) {
	p, err := LoadProfile("dgx-a100", machines)
	if err != nil {
		f.Fatal(err)
	}
	m, err := New(p)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encodeState(f, m))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseState(p, data)
		if err != nil {
			return
		}
		if _, err := Restore(p, s).Scan(t.Context()); err != nil && !s.Gone && len(s.Faults) == 0 {
			t.Fatal(err)
		}
	})
}
