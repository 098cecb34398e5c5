package box

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPrepare(t *testing.T) {
	dir := t.TempDir()
	init := filepath.Join(dir, "pause")
	if err := os.WriteFile(init, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // preparing again changes nothing
		if err := Prepare(dir+"/a", "node-1", init); err != nil {
			t.Fatal(err)
		}
	}
	if err := Prepare(dir+"/b", "node-1", init); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		raw, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Error(err)
		}
		return string(raw)
	}
	if got := read("a/etc/hostname"); got != "node-1\n" {
		t.Errorf("host name is %q", got)
	}
	if a, b := read("a/etc/machine-id"), read("b/etc/machine-id"); a == b || len(a) != 33 {
		t.Errorf("machine ids are %q and %q, want two different ones of 32 digits", a, b)
	}
	if st, err := os.Stat(dir + "/a/opt/nvdra/init"); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("first process: %v, %v", st, err)
	}
	if st, err := os.Stat(dir + "/a/tmp"); err != nil || st.Mode()&os.ModeSticky == 0 {
		t.Errorf("/tmp: %v, %v", st, err)
	}
	for _, secret := range []string{"shadow", "ssh", "sudoers"} {
		if _, err := os.Lstat(dir + "/a/etc/" + secret); err == nil {
			t.Errorf("/etc/%s was taken from the machine", secret)
		}
	}
	if err := Prepare(dir+"/c", "node-1", dir+"/nobody"); err == nil {
		t.Error("a first process that is not there: accepted")
	}
}
