package box

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFindCgroups(t *testing.T) {
	v1 := `tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0
`
	for _, c := range []struct {
		name, mounts string
		want         Cgroups
	}{
		{"version 2", "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n", Cgroups{V2: "/sys/fs/cgroup"}},
		{"version 1", v1, Cgroups{V1: []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/pids"}}},
		{"both", v1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n", Cgroups{V1: []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"}}},
		{"elsewhere too", "cgroup2 /run/x cgroup2 rw 0 0\n" + v1, Cgroups{V1: []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/pids"}}},
	} {
		got, err := FindCgroups(strings.NewReader(c.mounts))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
	if _, err := FindCgroups(strings.NewReader("proc /proc proc rw 0 0\n")); err == nil {
		t.Error("a machine without cgroups: accepted")
	}
}

func FuzzFindCgroups(f *testing.F) {
	f.Add("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
	f.Add("cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n\n x")
	f.Fuzz(func(t *testing.T, mounts string) {
		c, err := FindCgroups(strings.NewReader(mounts))
		if err == nil && (c.V2 == "") == (len(c.V1) == 0) {
			t.Errorf("%q: got %+v, want exactly one version", mounts, c)
		}
	})
}

// The trees below are ordinary directories: what is tested is what is written where.

func file(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCreateVersion1(t *testing.T) {
	dir := t.TempDir()
	file(t, dir+"/cpuset/cpuset.cpus", "0-3\n")
	file(t, dir+"/cpuset/cpuset.mems", "0\n")
	// The kernel makes these files with the group; here they are made before it.
	file(t, dir+"/cpuset/x/cpuset.cpus", "\n")
	file(t, dir+"/cpuset/x/cpuset.mems", "\n")
	g := Group{Cgroups: Cgroups{V1: []string{dir + "/cpuset", dir + "/pids"}}, Path: "/x/node-1"}
	if err := os.MkdirAll(dir+"/pids", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := g.Create(true); err != nil {
		t.Fatal(err)
	}
	for _, tree := range []string{"cpuset", "pids"} {
		if st, err := os.Stat(filepath.Join(dir, tree, "x/node-1")); err != nil || !st.IsDir() {
			t.Errorf("%s: group is missing: %v", tree, err)
		}
	}
	if raw, err := os.ReadFile(dir + "/cpuset/x/cpuset.cpus"); err != nil || string(raw) != "0-3\n" {
		t.Errorf("cpuset.cpus is %q, %v; want what the group above has", raw, err)
	}
	if err := g.Create(true); err != nil {
		t.Errorf("create again: %v", err)
	}
}

func TestCreateVersion2(t *testing.T) {
	dir := t.TempDir()
	for _, at := range []string{"", "/x", "/x/node-1"} {
		file(t, dir+at+"/cgroup.controllers", "cpu memory pids misc\n")
		file(t, dir+at+"/cgroup.subtree_control", "")
	}
	g := Group{Cgroups: Cgroups{V2: dir}, Path: "/x/node-1"}
	if err := g.Create(true); err != nil {
		t.Fatal(err)
	}
	if err := g.Child("system").Create(false); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"", "/x", "/x/node-1"} {
		// The last word written: an ordinary file keeps only that.
		if raw, err := os.ReadFile(dir + at + "/cgroup.subtree_control"); err != nil || string(raw) != "+pids" {
			t.Errorf("%s: subtree_control got %q, %v; want +pids last", at, raw, err)
		}
	}
	if _, err := os.Stat(dir + "/x/node-1/system"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/x/node-1/system/cgroup.subtree_control"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a group for processes hands controllers down, so it could hold none: %v", err)
	}
}

func TestProcessesAndKill(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	dir := t.TempDir()
	g := Group{Cgroups: Cgroups{V1: []string{dir + "/memory", dir + "/pids"}}, Path: "/x"}
	file(t, dir+"/pids/x/cgroup.procs", "")
	procs := dir + "/pids/x/node-1/cgroup.procs"
	file(t, procs, strconv.Itoa(pid)+"\n")
	file(t, dir+"/memory/x/cgroup.procs", "1\n") // not a tree in which we look
	got, err := g.Processes()
	if err != nil || !slices.Equal(got, []int{pid}) {
		t.Fatalf("processes are %v, %v; want %d", got, err, pid)
	}
	go func() {
		_ = cmd.Wait()
		_ = os.WriteFile(procs, nil, 0o644) // as the kernel does
	}()
	if err := g.Kill(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	file(t, procs, "1\n")
	if err := g.Kill(time.Second); err == nil || !strings.Contains(err.Error(), "not ours") {
		t.Errorf("kill with process 1 in the group: %v", err)
	}
	gone := Group{Cgroups: g.Cgroups, Path: "/never"}
	if got, err := gone.Processes(); err != nil || len(got) != 0 {
		t.Errorf("a group that is not there: %v, %v", got, err)
	}
	if err := errors.Join(gone.Kill(0), gone.Remove()); err != nil {
		t.Errorf("a group that is not there: %v", err)
	}
}

func TestRemoveRefusesTheRoot(t *testing.T) {
	for _, path := range []string{"", "/"} {
		if err := (Group{Cgroups: Cgroups{V1: []string{t.TempDir()}}, Path: path}).Remove(); err == nil {
			t.Errorf("path %q: removed", path)
		}
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"/pids/x/a/b", "/cpu/x", "/pids/other"} {
		if err := os.MkdirAll(dir+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g := Group{Cgroups: Cgroups{V1: []string{dir + "/pids", dir + "/cpu"}}, Path: "/x"}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"/pids/x", "/cpu/x"} {
		if _, err := os.Stat(dir + d); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there", d)
		}
	}
	if _, err := os.Stat(dir + "/pids/other"); err != nil {
		t.Errorf("another group is gone: %v", err)
	}
}
