package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

const uid = "6f0c3a52-7d2e-4c1f-9a54-0c4f1f8a2b11"

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := OpenStore(dir, ClaimVendor, ClaimClass)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func gpuDevice(claimUID string) specs.Device {
	return specs.Device{
		Name:           DeviceName(claimUID, "gpu-0"),
		ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia0"}}},
	}
}

func TestStoreLife(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	file := filepath.Join(dir, "k8s.gpu.nvidia.com-claim_"+uid+".yaml")

	if err := s.Check(uid, nil); !errors.Is(err, ErrStale) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check before Write: got %v, want ErrStale for a missing file", err)
	}
	common := specs.ContainerEdits{Env: []string{hidden}}
	if err := s.Write(uid, []specs.Device{gpuDevice(uid)}, common); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o644 {
		t.Errorf("mode is %v, want 0644", info.Mode())
	}
	if got, want := s.DeviceID(DeviceName(uid, "gpu-0")), "k8s.gpu.nvidia.com/claim="+uid+"-gpu-0"; got != want {
		t.Errorf("DeviceID: got %s, want %s", got, want)
	}
	// What counts is that the runtime's own cache finds the device.
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if d := cache.GetDevice(s.DeviceID(DeviceName(uid, "gpu-0"))); d == nil {
		t.Errorf("the CDI library does not find the device; it knows %v", cache.ListDevices())
	}
	if err := s.Check(uid, []string{DeviceName(uid, "gpu-0")}); err != nil {
		t.Errorf("Check: %v", err)
	}
	if err := s.Check(uid, []string{DeviceName(uid, "gpu-1")}); !errors.Is(err, ErrStale) {
		t.Errorf("Check of a device that is not there: got %v, want ErrStale", err)
	}

	// Neighbours in the same directory are none of our business.
	for _, name := range []string{"k8s.gpu.nvidia.com-claim_../x.yaml", "nvidia.com-gpu.yaml", "k8s.gpu.nvidia.com-claim_x.json", "k8s.gpu.nvidia.com-claim_.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, "/", "_")), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "k8s.gpu.nvidia.com-claim_dir.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	uids, err := s.List()
	if err != nil || !slices.Equal(uids, []string{uid}) {
		t.Errorf("List: got %v, %v", uids, err)
	}

	for range 2 {
		if err := s.Remove(uid); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Remove the file is still there: %v", err)
	}
}

// A damaged file and a file of another kind are found out.
func TestStoreCheckDamaged(t *testing.T) {
	s := openStore(t, t.TempDir())
	path, err := s.Path(uid)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty":      "",
		"cut off":    "cdiVersion: 0.5.0\nkind: k8s.gpu.nvidia.com/claim\ndevices:\n- name: \"6f0c",
		"other kind": "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: a\n  containerEdits: {env: [A=b]}\n",
		"no devices": "cdiVersion: 0.5.0\nkind: k8s.gpu.nvidia.com/claim\ndevices: []\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(uid, nil); !errors.Is(err, ErrStale) {
			t.Errorf("%s: got %v, want ErrStale", name, err)
		}
	}
}

// The directory may be given with a slash at the end, may be missing, may be a
// link; see R107 in the list of bugs of other drivers: one of them wrote to
// ".../cdik8s.gpu…".
func TestStoreDirectory(t *testing.T) {
	base := t.TempDir()
	real := filepath.Join(base, "real")
	if err := os.Mkdir(real, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, want string }{
		{filepath.Join(base, "slash") + "/", filepath.Join(base, "slash")},
		{filepath.Join(base, "a/b/c"), filepath.Join(base, "a/b/c")},
		{link, real},
		{link + "/", real},
	} {
		s := openStore(t, c.dir)
		if err := s.Write(uid, []specs.Device{gpuDevice(uid)}, specs.ContainerEdits{}); err != nil {
			t.Errorf("%s: %v", c.dir, err)
		}
		if _, err := os.Stat(filepath.Join(c.want, "k8s.gpu.nvidia.com-claim_"+uid+".yaml")); err != nil {
			t.Errorf("%s: %v", c.dir, err)
		}
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}

	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(base, "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, vendor, class, want string }{
		{file, ClaimVendor, ClaimClass, "not a directory"},
		{filepath.Join(file, "below"), ClaimVendor, ClaimClass, "not a directory"},
		{dangling, ClaimVendor, ClaimClass, "a symbolic link to nowhere, which must be a directory"},
		{"", ClaimVendor, ClaimClass, "usually /var/run/cdi"},
		{base, "not a vendor", ClaimClass, `vendor "not a vendor"`},
		{base, ClaimVendor, "a/b", `class "a/b"`},
	} {
		_, err := OpenStore(c.dir, c.vendor, c.class)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("OpenStore(%q, %q, %q): got %v, want …%s…", c.dir, c.vendor, c.class, err, c.want)
		}
	}

	// A directory that disappears while the plugin runs is made again.
	s := openStore(t, filepath.Join(base, "again"))
	if err := os.Remove(filepath.Join(base, "again")); err != nil {
		t.Fatal(err)
	}
	if uids, err := s.List(); err != nil || len(uids) > 0 {
		t.Errorf("List without directory: %v, %v", uids, err)
	}
	if n, err := s.RemoveTemporary(0); err != nil || n > 0 {
		t.Errorf("RemoveTemporary without directory: %v, %v", n, err)
	}
	if err := s.Remove(uid); err != nil {
		t.Errorf("Remove without directory: %v", err)
	}
	if err := s.Write(uid, []specs.Device{gpuDevice(uid)}, specs.ContainerEdits{}); err != nil {
		t.Errorf("Write without directory: %v", err)
	}
}

func TestStoreReadOnly(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	err := asNobody(func() error { return s.Write(uid, []specs.Device{gpuDevice(uid)}, specs.ContainerEdits{}) })
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(fmt.Sprint(err), "mount "+dir+" read-write") {
		t.Errorf("got %v, want a permission error that says what to do", err)
	}
	if err := s.explain(&fs.PathError{Op: "open", Path: dir, Err: syscall.EROFS}); !strings.Contains(err.Error(), "read-write") {
		t.Errorf("read-only file system: got %v", err)
	}
}

// asNobody runs f without the rights of root, for which no directory is
// read-only.
func asNobody(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func TestStoreRefuses(t *testing.T) {
	s := openStore(t, t.TempDir())
	good := gpuDevice(uid)
	for name, c := range map[string]struct {
		uid     string
		devices []specs.Device
		common  specs.ContainerEdits
		want    string
	}{
		"path in UID":   {"../../etc/passwd", []specs.Device{good}, specs.ContainerEdits{}, "letters, digits and dashes"},
		"empty UID":     {"", []specs.Device{good}, specs.ContainerEdits{}, "letters, digits and dashes"},
		"long UID":      {strings.Repeat("a", 300), []specs.Device{good}, specs.ContainerEdits{}, "letters, digits and dashes"},
		"no devices":    {uid, nil, specs.ContainerEdits{}, "has no devices"},
		"empty edits":   {uid, []specs.Device{{Name: uid + "-gpu-0"}}, specs.ContainerEdits{}, "changes nothing in a container"},
		"twice":         {uid, []specs.Device{good, good}, specs.ContainerEdits{}, "there twice"},
		"foreign name":  {uid, []specs.Device{{Name: "gpu-0", ContainerEdits: good.ContainerEdits}}, specs.ContainerEdits{}, "must be called"},
		"bad name":      {uid, []specs.Device{{Name: uid + "-gpu 0", ContainerEdits: good.ContainerEdits}}, specs.ContainerEdits{}, "gpu 0"},
		"nil node":      {uid, []specs.Device{{Name: uid + "-x", ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{nil}}}}, specs.ContainerEdits{}, "empty entry"},
		"nil mount":     {uid, []specs.Device{good}, specs.ContainerEdits{Mounts: []*specs.Mount{nil}}, "empty entry"},
		"bad variable":  {uid, []specs.Device{good}, specs.ContainerEdits{Env: []string{"NOTHING"}}, "NOTHING"},
		"unknown hook":  {uid, []specs.Device{good}, specs.ContainerEdits{Hooks: []*specs.Hook{{HookName: "later", Path: "/x"}}}, "later"},
		"unknown node":  {uid, []specs.Device{{Name: uid + "-x", ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/x", Type: "z"}}}}}, specs.ContainerEdits{}, `"z"`},
		"mount nowhere": {uid, []specs.Device{good}, specs.ContainerEdits{Mounts: []*specs.Mount{{HostPath: "/x"}}}, "container path"},
	} {
		err := s.Write(c.uid, c.devices, c.common)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: got %v, want ErrInvalid with %q", name, err, c.want)
		}
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("refused specs left %v, %v", entries, err)
	}
}

// A writer that fails leaves the old spec; readers never see half of one.
func TestStoreAtomic(t *testing.T) {
	s := openStore(t, t.TempDir())
	path, err := s.Path(uid)
	if err != nil {
		t.Fatal(err)
	}
	write := func(mounts int) error {
		var common specs.ContainerEdits
		for i := range mounts {
			p := fmt.Sprintf("/lib/%d.so", i)
			common.Mounts = append(common.Mounts, &specs.Mount{HostPath: p, ContainerPath: p})
		}
		return s.Write(uid, []specs.Device{gpuDevice(uid)}, common)
	}
	if err := write(1); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(uid, []specs.Device{gpuDevice(uid)}, specs.ContainerEdits{Env: []string{"bad"}}); err == nil {
		t.Error("a bad spec was written")
	}
	if now, err := os.ReadFile(path); err != nil || !cmp.Equal(old, now) {
		t.Errorf("the refused spec changed the file: %v", err)
	}

	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 10 {
				if err := write(w*200 + i + 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := s.Check(uid, []string{DeviceName(uid, "gpu-0")}); err != nil {
				t.Error(err)
				return
			}
			// The library must not even try to read what is not finished.
			entries, err := os.ReadDir(s.dir)
			if err != nil {
				t.Error(err)
			}
			for _, e := range entries {
				if ext := filepath.Ext(e.Name()); ext != tempSuffix && e.Name() != filepath.Base(path) {
					t.Errorf("unexpected file %s", e.Name())
				}
			}
		}
	})
	writers.Wait()
	close(stop)
	reader.Wait()
	if entries, err := os.ReadDir(s.dir); err != nil || len(entries) != 1 {
		t.Errorf("after all writers: %v, %v", entries, err)
	}
}

func TestStoreRemoveTemporary(t *testing.T) {
	s := openStore(t, t.TempDir())
	long := time.Now().Add(-time.Hour)
	for name, when := range map[string]time.Time{
		".k8s.gpu.nvidia.com-claim_" + uid + ".yaml.1.tmp": long,
		".k8s.gpu.nvidia.com-claim_" + uid + ".yaml.2.tmp": time.Now(),
		".other-claim_x.yaml.3.tmp":                        long,
		"spec.4.tmp":                                       long,
	} {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	n, err := s.RemoveTemporary(time.Minute)
	if n != 1 || err != nil {
		t.Errorf("got %d, %v; want 1", n, err)
	}
	if entries, err := os.ReadDir(s.dir); err != nil || len(entries) != 3 {
		t.Errorf("left %v, %v", entries, err)
	}
}

// No claim UID leads out of the directory or to the name of another claim.
func FuzzClaimUID(f *testing.F) {
	for _, seed := range []string{uid, "", "..", "../x", "a/b", "a\x00b", "-a", "a_b", "ä", strings.Repeat("a", 101), ".", "a.yaml"} {
		f.Add(seed)
	}
	s := &Store{dir: "/cdi", vendor: ClaimVendor, class: ClaimClass}
	f.Fuzz(func(t *testing.T, uid string) {
		path, err := s.Path(uid)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: got %v, want ErrInvalid", uid, err)
			}
			return
		}
		back, ours := s.claimUID(filepath.Base(path))
		if filepath.Dir(path) != "/cdi" || !ours || back != uid {
			t.Errorf("%q became %q, and that %q", uid, path, back)
		}
	})
}
