package cdi

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const nvmlLibrary = "libnvidia-ml.so.1"

// libraryDirs is where the driver's libraries may be below a driver root, in
// the order they are looked for.
var libraryDirs = []string{
	"/", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current",
	"/lib64", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
}

// contentDirs is what else changes when a driver is installed or replaced.
var contentDirs = []string{"/usr/bin", "/bin", "/lib/firmware/nvidia"}

// sockets come and go with the daemons of the driver; containers get them.
var sockets = []string{
	"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket",
	"/var/run/nvidia-persistenced/socket", "/var/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps",
}

// surroundings is what a look at the driver root shows.
type surroundings struct {
	driver      root
	dev         root
	version     string // of the driver, "" when its library does not say
	pci         string // address of the GPU asked about, "" when the kernel does not say
	fingerprint string // changes when the driver or one of the nodes does
}

// look looks at the driver and at the device nodes a question is about. It
// returns an [ErrNotReady] that says what is missing and where.
func (d *Driver) look(q question) (surroundings, error) {
	var in surroundings
	// nvcdi compares resolved paths with the root, so the root must be one.
	inside, err := filepath.EvalSymlinks(d.config.ContainerRoot)
	if err != nil {
		return in, fmt.Errorf("%w: driver root %s: %w", ErrNotReady, d.config.ContainerRoot, err)
	}
	in.driver = root{inside: inside, host: d.config.HostRoot}
	in.dev = d.devRoot(in.driver)
	library, err := d.findLibrary(inside)
	if err != nil {
		return in, err
	}
	in.version = libraryVersion(library)
	var print strings.Builder
	fmt.Fprintln(&print, in.driver, in.dev)
	libraries := filepath.Dir(library)
	// A driver is installed by making and renaming files, which shows in the
	// directory itself; reading all its names, thousands on many hosts, would
	// tell nothing more.
	for _, path := range []string{library, filepath.Join(libraries, "libcuda.so."+in.version), libraries} {
		describeContent(&print, path)
	}
	for _, path := range contentDirs {
		describeContent(&print, filepath.Join(inside, path))
	}
	for _, path := range sockets {
		describe(&print, filepath.Join(inside, path))
	}
	for _, node := range q.nodes {
		if err := d.checkNode(&print, in.dev, node); err != nil {
			return in, err
		}
	}
	describe(&print, filepath.Join(in.dev.inside, "/dev/nvidia-modeset")) // only for displays; not every driver has it
	if q.uuid != "" {
		if in.pci, err = d.pciAddress(q.uuid, q.minor); err != nil {
			return in, fmt.Errorf("%w: %w", ErrNotReady, err)
		}
		fmt.Fprintln(&print, q.uuid, q.minor, in.pci)
	}
	in.fingerprint = print.String()
	return in, nil
}

// devRoot decides where the device nodes are.
func (d *Driver) devRoot(driver root) root {
	if d.config.DevRoot != "" {
		return root{inside: filepath.Clean(d.config.DevRoot), host: filepath.Clean(d.config.HostDevRoot)}
	}
	if info, err := os.Stat(filepath.Join(driver.inside, "dev")); err == nil && info.IsDir() {
		return driver
	}
	return root{inside: "/", host: "/"}
}

// findLibrary finds libnvidia-ml below the driver root and resolves its links.
func (d *Driver) findLibrary(inside string) (string, error) {
	for _, dir := range libraryDirs {
		path, err := filepath.EvalSymlinks(filepath.Join(inside, dir, nvmlLibrary))
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s is not in any of %s below %s (%s on the host); install the driver, or set the driver root to the directory on the host that it is in",
		ErrNotReady, nvmlLibrary, strings.Join(libraryDirs, ", "), d.config.ContainerRoot, d.config.HostRoot)
}

// libraryVersion returns what follows libnvidia-ml.so in the name of the file
// that the link of that name leads to. This is the version in use, even where
// files of an older driver have been left in the same directory.
func libraryVersion(path string) string {
	version, _ := strings.CutPrefix(filepath.Base(path), "libnvidia-ml.so.")
	if !strings.Contains(version, ".") {
		return ""
	}
	return version
}

// checkNode makes sure that a device node exists and describes it.
func (d *Driver) checkNode(print *strings.Builder, dev root, node string) error {
	path := filepath.Join(dev.inside, node)
	info, err := os.Lstat(path) // as nvcdi does: a link would not be taken for a node
	if err != nil {
		return fmt.Errorf("%w: device node %s (%s on the host): %w; loading the driver's kernel modules makes it, nvidia-modprobe or nvidia-smi too",
			ErrNotReady, path, dev.toHost(path), err)
	}
	if info.Mode()&fs.ModeCharDevice == 0 {
		return fmt.Errorf("%w: %s (%s on the host) is not a device node but %s; remove it and let the driver make it",
			ErrNotReady, path, dev.toHost(path), kind(info.Mode()))
	}
	describe(print, path)
	return nil
}

// describe adds to a fingerprint which file is at path, if any, and returns it.
// The times and sizes of sockets and device nodes say nothing, so they are left
// out.
func describe(print *strings.Builder, path string) fs.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		fmt.Fprintln(print, path, "-")
		return nil
	}
	var inode, device uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode, device = st.Ino, uint64(st.Rdev)
	}
	fmt.Fprintln(print, path, info.Mode(), inode, device)
	return info
}

// describeContent is describe for what may be changed in place.
func describeContent(print *strings.Builder, path string) {
	if info := describe(print, path); info != nil {
		fmt.Fprintln(print, info.Size(), info.ModTime().UnixNano())
	}
}

// kind says in words what a file that should be a device node is.
func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m.IsRegular():
		return "a file"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	default:
		return "something else"
	}
}
