package box

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroups is where the kernel's control groups are mounted on this machine.
// Exactly one of the two fields is used: version 2 has one tree, version 1 has
// one per controller. A machine with both keeps its controllers in version 1;
// then the other tree is one more in that list, because runc makes groups in it.
type Cgroups struct {
	V2 string
	V1 []string
}

// tracked are the version 1 trees in which our processes are kept together; in
// the others (memory above all) they stay where the launcher was.
var tracked = []string{"pids", "systemd"}

// wanted are the version 2 controllers a kubelet needs below its root.
var wanted = []string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"}

// FindCgroups reads a mount table such as /proc/self/mounts.
func FindCgroups(mounts io.Reader) (Cgroups, error) {
	var c Cgroups
	var v2 string
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 3 || !strings.HasPrefix(f[1], "/sys/fs/cgroup") {
			continue
		}
		switch f[2] {
		case "cgroup":
			c.V1 = append(c.V1, f[1])
		case "cgroup2":
			v2 = f[1]
		}
	}
	if err := lines.Err(); err != nil {
		return Cgroups{}, fmt.Errorf("read mount table: %w", err)
	}
	if len(c.V1) > 0 {
		if v2 != "" {
			c.V1 = append(c.V1, v2)
		}
		return c, nil
	}
	if v2 == "" {
		return Cgroups{}, errors.New("find cgroups: nothing of type cgroup or cgroup2 is mounted below /sys/fs/cgroup; mount it first")
	}
	return Cgroups{V2: v2}, nil
}

// A Group is one control group: in every tree of version 1, or in the one of version 2.
type Group struct {
	Cgroups Cgroups `json:"cgroups"`
	Path    string  `json:"path"` // from the root of the tree, e.g. /nvdra-ci/node-1/system
}

// Child is a group below g.
func (g Group) Child(name string) Group {
	return Group{Cgroups: g.Cgroups, Path: g.Path + "/" + name}
}

func (g Group) trees() []string {
	if g.Cgroups.V2 != "" {
		return []string{g.Cgroups.V2}
	}
	return g.Cgroups.V1
}

// trackers are the trees in which every process of the group can be found.
func (g Group) trackers() []string {
	if g.Cgroups.V2 != "" {
		return []string{g.Cgroups.V2}
	}
	var out []string
	for _, t := range g.Cgroups.V1 {
		if slices.Contains(tracked, filepath.Base(t)) {
			out = append(out, t)
		}
	}
	if len(out) == 0 {
		return g.Cgroups.V1[:1]
	}
	return out
}

// Create makes the group and those above it. A group that will have groups below
// it hands its controllers down; with version 2 it can then hold no processes.
func (g Group) Create(parent bool) error {
	for _, tree := range g.trees() {
		dir := tree
		parts := strings.Split(strings.Trim(g.Path, "/"), "/")
		for i, part := range parts {
			if g.Cgroups.V2 != "" {
				if err := handDown(dir); err != nil {
					return err
				}
			}
			up := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("create cgroup: %w", err)
			}
			if g.Cgroups.V2 == "" {
				if err := copyCPUSet(up, dir); err != nil {
					return err
				}
			}
			if parent && i == len(parts)-1 && g.Cgroups.V2 != "" {
				if err := handDown(dir); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// handDown enables the controllers of a version 2 group for the groups below it.
func handDown(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read cgroup: %w", err)
	}
	file := filepath.Join(dir, "cgroup.subtree_control")
	on, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read cgroup: %w", err)
	}
	for _, c := range wanted {
		if !slices.Contains(strings.Fields(string(have)), c) || slices.Contains(strings.Fields(string(on)), c) {
			continue
		}
		if err := os.WriteFile(file, []byte("+"+c), 0o644); err != nil {
			if errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("enable controller %s in %s: %w: processes sit in that group itself; move them into a group below it first", c, dir, err)
			}
			return fmt.Errorf("enable controller %s in %s: %w", c, dir, err)
		}
	}
	return nil
}

// copyCPUSet fills a new version 1 cpuset, which is born without processors.
func copyCPUSet(from, to string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		now, err := os.ReadFile(filepath.Join(to, name))
		if err != nil || strings.TrimSpace(string(now)) != "" {
			continue // not a cpuset tree, or filled already
		}
		value, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("read cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(to, name), value, 0o644); err != nil {
			return fmt.Errorf("fill cpuset: %w", err)
		}
	}
	return nil
}

// enter prepares a command, on the thread that will start it, to be born in the
// group. The function it returns is to be called after the start.
func (g Group) enter(cmd *exec.Cmd) (func(), error) {
	if g.Path == "" {
		return func() {}, nil
	}
	if g.Cgroups.V2 == "" {
		// With version 1 a single thread can be in a group, and what it starts is
		// born there.
		for _, tree := range g.trackers() {
			file := filepath.Join(tree, g.Path, "tasks")
			if err := os.WriteFile(file, []byte(strconv.Itoa(unix.Gettid())), 0o644); err != nil {
				return nil, fmt.Errorf("enter cgroup: %w", err)
			}
		}
		return func() {}, nil
	}
	fd, err := unix.Open(filepath.Join(g.Cgroups.V2, g.Path), unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", g.Path, err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
	return func() { unix.Close(fd) }, nil
}

// Processes are the numbers of all processes in the group and below it.
func (g Group) Processes() ([]int, error) {
	var pids []int
	for _, tree := range g.trackers() {
		err := filepath.WalkDir(filepath.Join(tree, g.Path), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // groups go away while we look
			}
			if err != nil || !d.IsDir() {
				return err
			}
			raw, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, f := range strings.Fields(string(raw)) {
				pid, err := strconv.Atoi(f)
				if err != nil {
					return fmt.Errorf("parse %s/cgroup.procs: %w", path, err)
				}
				pids = append(pids, pid)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list cgroup %s: %w", g.Path, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Kill ends every process in the group and below it, and waits until they are gone.
func (g Group) Kill(limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		pids, err := g.Processes()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("empty cgroup %s: processes %v are still there after %v", g.Path, pids, limit)
		}
		for _, pid := range pids {
			if pid <= 1 || pid == os.Getpid() {
				return fmt.Errorf("empty cgroup %s: process %d is not ours to kill", g.Path, pid)
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
}

// Remove removes the group and all below it from every tree.
func (g Group) Remove() error {
	if strings.Trim(g.Path, "/") == "" {
		return errors.New("remove cgroup: the root is not ours")
	}
	var errs []error
	for _, tree := range g.trees() {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(tree, g.Path), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		errs = append(errs, err)
		for _, dir := range slices.Backward(dirs) {
			errs = append(errs, rmdirPatiently(dir))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", g.Path, err)
	}
	return nil
}

// rmdirPatiently removes one group; the kernel says busy for a moment after the
// last process has ended.
func rmdirPatiently(dir string) error {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("rmdir %s: %w", dir, err)
		}
	}
}
