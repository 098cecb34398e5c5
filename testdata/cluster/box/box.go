// Package box makes small machines out of Linux namespaces.
//
// A box has its own processes, network, mounts, host name and root directory;
// the machine's programs (/usr) are visible in it, read-only, and everything
// else it writes stays below one directory. Its first process does nothing but
// bury orphans. When that process is killed, the kernel removes whatever was
// in the box: processes, network devices, mounts. So nothing needs to be
// undone by hand, also after the launcher itself was killed.
//
//	p, err := box.Start(box.Spec{Hostname: "node-1", Root: dir, Init: pause}, cg)
//	b := box.Box{Init: p, Cgroup: cg}
//	err = b.Start(&exec.Cmd{Args: []string{"ip", "link", "set", "lo", "up"}}, box.All)
//
// The main function of a program that uses Start must call Main first.
package box

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Path is where programs are looked up in a box. The last of it is where the
// simulated driver has its programs.
const Path = "/opt/nvdra/kubernetes:/opt/nvdra/containerd:/opt/nvdra/runc:/opt/nvdra/etcd:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/nvidia/driver/usr/bin"

// initArg is the first argument of the process that becomes the first one of a box.
const initArg = "box-init"

// A Spec says what a box is made of.
type Spec struct {
	Hostname string `json:"hostname"`
	Root     string `json:"root"`  // the directory that becomes /
	Init     string `json:"init"`  // a static program, below Root, that buries orphans
	Binds    []Bind `json:"binds"` // more files and directories of the machine to show
	// TmpfsDirs are directories that must not lie on Root's file system,
	// because it cannot carry overlays.
	TmpfsDirs []string `json:"tmpfsDirs,omitempty"`
}

// A Bind shows a file or directory of the machine, read-only, in a box.
type Bind struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// A Box is a running box.
type Box struct {
	Init   Process // its first process
	Cgroup Group   // where its processes are born
}

// Namespaces says which of a box's namespaces a command enters.
type Namespaces int

const (
	// All makes a command an ordinary process of the box.
	All Namespaces = iota
	// Net makes a command of this machine see the box's network only.
	Net
)

// Start makes a box and returns its first process. The root directory must have
// been prepared with Prepare.
func Start(spec Spec, group Group) (Process, error) {
	raw, err := json.Marshal(spec)
	if err != nil {
		return Process{}, fmt.Errorf("encode box %s: %w", spec.Hostname, err)
	}
	in, inW, err := os.Pipe()
	if err != nil {
		return Process{}, fmt.Errorf("create pipe: %w", err)
	}
	defer in.Close()
	out, outW, err := os.Pipe()
	if err != nil {
		inW.Close()
		return Process{}, fmt.Errorf("create pipe: %w", err)
	}
	defer out.Close()
	cmd := &exec.Cmd{
		Path:       "/proc/self/exe",
		Args:       []string{"nvdra-box", initArg},
		Env:        []string{"PATH=" + Path},
		ExtraFiles: []*os.File{in, outW},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
			Setsid:     true,
		},
	}
	err = onThread(func() error {
		leave, err := group.enter(cmd)
		if err != nil {
			return err
		}
		defer leave()
		return cmd.Start()
	})
	outW.Close()
	if err != nil {
		inW.Close()
		return Process{}, fmt.Errorf("start box %s: %w", spec.Hostname, err)
	}
	_, werr := inW.Write(raw)
	inW.Close()
	// The other end closes without a word when the box's first program runs.
	complaint, rerr := io.ReadAll(out)
	p, ierr := Identify(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // its end is noticed by whoever asks Alive
	if len(complaint) > 0 {
		return Process{}, fmt.Errorf("start box %s: %s", spec.Hostname, complaint)
	}
	if err := errors.Join(werr, rerr, ierr); err != nil {
		_ = cmd.Process.Kill()
		return Process{}, fmt.Errorf("start box %s: %w", spec.Hostname, err)
	}
	return p, nil
}

// Main takes over when this process was started to become a box, and returns
// otherwise.
func Main() {
	if len(os.Args) != 2 || os.Args[0] != "nvdra-box" || os.Args[1] != initArg {
		return
	}
	runtime.LockOSThread()
	out := os.NewFile(4, "answer")
	unix.CloseOnExec(4)
	raw, err := io.ReadAll(os.NewFile(3, "spec"))
	if err == nil {
		unix.CloseOnExec(3)
		var spec Spec
		if err = json.Unmarshal(raw, &spec); err == nil {
			err = become(spec)
		}
	}
	fmt.Fprint(out, err)
	os.Exit(1)
}

// Start starts a command in the box. Its program is looked up in the box, its
// files are those given; it inherits no terminal unless cmd says so.
func (b Box) Start(cmd *exec.Cmd, ns Namespaces) error {
	return onThread(func() error {
		leave, err := b.Cgroup.enter(cmd)
		if err != nil {
			return err
		}
		defer leave()
		if err := enter(b.Init, ns); err != nil {
			return err
		}
		if ns == All {
			path, err := lookPath(cmd.Args[0])
			if err != nil {
				return err
			}
			cmd.Path = path
			if cmd.Dir == "" {
				cmd.Dir = "/"
			}
		}
		return cmd.Start()
	})
}

// Run starts a command in the box and waits for it. What it wrote to its
// standard error is part of the error.
func (b Box) Run(cmd *exec.Cmd, ns Namespaces) error {
	var words strings.Builder
	if cmd.Stderr == nil {
		cmd.Stderr = &words
	}
	err := b.Start(cmd, ns)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return nil
	}
	if s := strings.TrimSpace(words.String()); s != "" {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, s)
	}
	return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
}

// File is the path under which this machine reaches a path of the box.
func (b Box) File(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", b.Init.PID, path)
}

// onThread runs f on an operating system thread of its own, which ends with it:
// namespaces and cgroups are properties of threads.
func onThread(f func() error) error {
	// The standard library probes once for a kernel feature by starting a
	// process; that must not happen in a box.
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		done <- f()
	}()
	return <-done
}

// enter moves the calling thread into the namespaces of a process.
func enter(p Process, ns Namespaces) error {
	if !p.Alive() {
		return fmt.Errorf("enter box of process %d: it has ended", p.PID)
	}
	kinds := []struct {
		file string
		flag int
	}{{"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"ipc", unix.CLONE_NEWIPC}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}
	if ns == Net {
		kinds = kinds[:1]
	}
	fds := make([]int, len(kinds))
	for i, k := range kinds {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", p.PID, k.file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s namespace of process %d: %w", k.file, p.PID, err)
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	if ns == All {
		// A thread may change its mounts only when it shares no working directory.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare working directory: %w", err)
		}
	}
	for i, k := range kinds {
		if err := unix.Setns(fds[i], k.flag); err != nil {
			return fmt.Errorf("enter %s namespace of process %d: %w", k.file, p.PID, err)
		}
	}
	return nil
}

// lookPath finds a program as the calling thread sees the file system.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for dir := range strings.SplitSeq(Path, ":") {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("find program %s in the box: %w", name, exec.ErrNotFound)
}
