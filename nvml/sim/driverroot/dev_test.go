package driverroot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChooseMajors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	kernel := write("kernel", "Character devices:\n  1 mem\n384 something\n390 other\n\nBlock devices:\n385 disk\n")
	m, err := chooseMajors(kernel, filepath.Join(dir, "none"))
	if err != nil || m != (majors{caps: 385, imex: 386, uvm: 387}) {
		t.Errorf("fresh: %+v, %v", m, err)
	}
	m, err = chooseMajors(kernel, write("earlier", "Character devices:\n400 nvidia-caps\n390 nvidia-uvm\n"))
	if err != nil || m != (majors{caps: 400, imex: 385, uvm: 386}) {
		t.Errorf("with an earlier run: %+v, %v", m, err)
	}
	m, err = chooseMajors(write("real", "Character devices:\n195 nvidia\n"), kernel)
	if err != nil || !m.realDriver {
		t.Errorf("with a real driver: %+v, %v", m, err)
	}
	m, err = majors{caps: 400, uvm: 401}.prescribed("Character devices:\n235 nvidia-caps\n", kernel)
	if err != nil || m != (majors{caps: 235, uvm: 401}) {
		t.Errorf("prescribed by the machine: %+v, %v", m, err)
	}
	if _, err := (majors{}).prescribed("Character devices:\n390 nvidia-caps\n", kernel); err == nil {
		t.Error("a machine could take the major of a real driver")
	}
	if _, err := chooseMajors(filepath.Join(dir, "none"), kernel); err == nil {
		t.Error("no error without /proc/devices")
	}
}

func FuzzParseMajors(f *testing.F) {
	f.Add("Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n259 blkext\n")
	f.Add("99999999999999999999 x\n")
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseMajors(strings.NewReader(text))
		if err == nil && found == nil {
			t.Fatal("neither devices nor an error")
		}
	})
}
