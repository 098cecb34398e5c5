package box

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// become turns this process, the first one in fresh namespaces, into the first
// process of a box. It returns only when that is not possible.
func become(spec Spec) error {
	mounts := mounter{}
	root := spec.Root
	at := func(path string) string { return filepath.Join(root, path) }

	// What is mounted here must not appear on the machine, nor the other way round.
	mounts.do("make mounts private", "none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	mounts.do("mount root", root, root, "", unix.MS_BIND, "")
	for _, name := range shown {
		if st, err := os.Lstat("/" + name); err == nil && st.IsDir() {
			mounts.bind("/"+name, at(name), true)
		}
	}
	mounts.bind(at(".local"), at("usr/local"), false) // /usr/local is the box's own, and writable
	mounts.do("mount /proc", "proc", at("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	mounts.do("mount /sys", "sysfs", at("sys"), "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	mounts.do("mount cgroups", "/sys/fs/cgroup", at("sys/fs/cgroup"), "", unix.MS_BIND|unix.MS_REC, "")
	mounts.do("mount /run", "tmpfs", at("run"), "tmpfs", unix.MS_NOSUID, "mode=755")
	for _, dir := range spec.TmpfsDirs {
		mounts.do("mount "+dir, "tmpfs", at(dir), "tmpfs", 0, "mode=711")
	}
	mounts.devices(at("dev"))
	for _, b := range spec.Binds {
		mounts.bind(b.From, at(b.To), true)
	}
	if mounts.err != nil {
		return mounts.err
	}
	if err := unix.PivotRoot(root, at(".old")); err != nil {
		return fmt.Errorf("change root to %s: %w", root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("change directory: %w", err)
	}
	if err := unix.Unmount("/.old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	// As systemd does, so that pods may propagate mounts in both directions.
	mounts.do("make mounts shared", "none", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	if mounts.err != nil {
		return mounts.err
	}
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("enable forwarding in the box: %w", err)
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	for fd := range 3 {
		if err := unix.Dup2(int(null.Fd()), fd); err != nil {
			return fmt.Errorf("redirect to /dev/null: %w", err)
		}
	}
	err = unix.Exec(spec.Init, []string{spec.Init}, os.Environ())
	return fmt.Errorf("run %s: %w", spec.Init, err)
}

// A mounter mounts until something goes wrong, and remembers what.
type mounter struct{ err error }

func (m *mounter) do(what, from, to, fstype string, flags uintptr, data string) {
	if m.err != nil {
		return
	}
	if err := unix.Mount(from, to, fstype, flags, data); err != nil {
		m.err = fmt.Errorf("%s (%s on %s): %w", what, from, to, err)
	}
}

// bind shows a file or directory at another place, which is created.
func (m *mounter) bind(from, to string, readOnly bool) {
	if m.err != nil {
		return
	}
	if err := mountPoint(from, to); err != nil {
		m.err = err
		return
	}
	m.do("show "+from, from, to, "", unix.MS_BIND|unix.MS_REC, "")
	if !readOnly || m.err != nil {
		return
	}
	var st unix.Statfs_t
	if err := unix.Statfs(to, &st); err != nil {
		m.err = fmt.Errorf("stat file system of %s: %w", to, err)
		return
	}
	// A remount must repeat the flags that the mount already has.
	keep := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME)
	m.do("protect "+to, "none", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|keep, "")
}

func mountPoint(from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("show %s in the box: %w", from, err)
	}
	if st.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else {
		if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
			var f *os.File
			if f, err = os.OpenFile(to, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
				err = f.Close()
			}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create mount point: %w", err)
	}
	return nil
}

// devices makes a /dev of the box's own: the nodes every program expects, and
// none of the machine's hardware.
func (m *mounter) devices(dev string) {
	m.do("mount /dev", "tmpfs", dev, "tmpfs", unix.MS_NOSUID|unix.MS_STRICTATIME, "mode=755")
	if m.err != nil {
		return
	}
	nodes := []struct {
		name         string
		major, minor uint32
		mode         uint32
	}{
		{"null", 1, 3, 0o666}, {"zero", 1, 5, 0o666}, {"full", 1, 7, 0o666}, {"random", 1, 8, 0o666}, {"urandom", 1, 9, 0o666},
		{"kmsg", 1, 11, 0o644}, {"tty", 5, 0, 0o666},
	}
	for _, n := range nodes {
		path := filepath.Join(dev, n.name)
		err := unix.Mknod(path, unix.S_IFCHR|n.mode, int(unix.Mkdev(n.major, n.minor)))
		if err == nil {
			err = os.Chmod(path, os.FileMode(n.mode)) // the umask took its part
		}
		if err != nil {
			m.err = fmt.Errorf("make device %s: %w", n.name, err)
			return
		}
	}
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			m.err = fmt.Errorf("make device %s: %w", name, err)
			return
		}
	}
	for _, dir := range []string{"pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dev, dir), 0o755); err != nil {
			m.err = fmt.Errorf("make /dev: %w", err)
			return
		}
	}
	m.do("mount /dev/pts", "devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
	m.do("mount /dev/shm", "tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	m.do("mount /dev/mqueue", "mqueue", filepath.Join(dev, "mqueue"), "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}
