package gpuplugin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvdra/nvml"
)

func gpusAt(minorOf map[string]int) []nvml.GPU {
	var all []nvml.GPU
	for _, pci := range []string{"0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0", "0000:0d:00.0"} {
		if m, ok := minorOf[pci]; ok {
			all = append(all, nvml.GPU{PCI: pci, Minor: m})
		}
	}
	return all
}

// Reports R007 and R008: minors shift when a card goes and are permuted by a
// reboot; a name keeps its slot.
func TestNumbersStayWithTheirSlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.json")
	n, err := loadNames(path)
	if err != nil {
		t.Fatal(err)
	}
	first, err := n.update(gpusAt(map[string]int{"0000:0a:00.0": 0, "0000:0b:00.0": 1, "0000:0c:00.0": 2}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"0000:0a:00.0": 0, "0000:0b:00.0": 1, "0000:0c:00.0": 2}
	if d := cmp.Diff(want, first); d != "" {
		t.Fatal(d)
	}
	for name, minors := range map[string]map[string]int{
		"first card removed": {"0000:0b:00.0": 0, "0000:0c:00.0": 1},
		"minors permuted":    {"0000:0a:00.0": 2, "0000:0b:00.0": 0, "0000:0c:00.0": 1},
	} {
		n, err := loadNames(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := n.update(gpusAt(minors))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	// A card in a new slot whose minor belongs to an absent one gets a number of its own.
	n, _ = loadNames(path)
	got, err := n.update(gpusAt(map[string]int{"0000:0b:00.0": 1, "0000:0d:00.0": 0}))
	if err != nil {
		t.Fatal(err)
	}
	if got["0000:0d:00.0"] != 3 {
		t.Errorf("new card has number %d, want 3", got["0000:0d:00.0"])
	}
}

func TestDamagedNamesAreReportedAndReplaced(t *testing.T) {
	for _, content := range []string{"{", `{"version":2}`, `{"version":1,"numbers":{"a":1,"b":1}}`, `{"version":1,"numbers":{"a":-1}}`} {
		path := filepath.Join(t.TempDir(), "names.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := loadNames(path)
		if err == nil {
			t.Errorf("%s: no error", content)
		}
		if _, err := n.update(gpusAt(map[string]int{"0000:0a:00.0": 5})); err != nil {
			t.Fatal(err)
		}
		again, err := loadNames(path)
		if err != nil || again.numbers["0000:0a:00.0"] != 5 {
			t.Errorf("%s: after an update: %v, %v", content, again.numbers, err)
		}
	}
}

// A writer that was killed leaves half a file beside the names. It is never read,
// and the next writer takes its place.
func TestHalfWrittenNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names.json")
	if err := os.WriteFile(path+".tmp", []byte(`{"version":1,"num`), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := loadNames(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.update(gpusAt(map[string]int{"0000:0a:00.0": 5})); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 || left[0].Name() != "names.json" {
		t.Errorf("left: %v, %v", left, err)
	}
}

func FuzzNames(f *testing.F) {
	f.Add([]byte(`{"version":1,"numbers":{"0000:0a:00.0":0}}`))
	f.Add([]byte(`{"version":1,"numbers":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		file, err := decodeNames(raw)
		if err != nil {
			return
		}
		numbers, _ := assignNumbers(file.Numbers, gpusAt(map[string]int{"0000:0a:00.0": 0, "0000:0b:00.0": 0}))
		seen := map[int]bool{}
		for _, n := range numbers {
			if seen[n] {
				t.Fatalf("two slots have number %d: %v", n, numbers)
			}
			seen[n] = true
		}
	})
}
