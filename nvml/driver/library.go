package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"nvdra/nvml"
	"nvdra/nvml/host"
)

// libraryName is the name under which every driver installs NVML.
const libraryName = "libnvidia-ml.so.1"

// libraryDirs is where drivers put it, in the order in which they are tried.
var libraryDirs = []string{
	"/",
	"/usr/lib64",
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/lib64",
	"/lib/x86_64-linux-gnu",
	"/lib/aarch64-linux-gnu",
}

// A library is where NVML is to be found.
type library struct {
	root    host.Host
	path    string // below the root; "" means the usual places
	setting string
}

func newLibrary(root string) library {
	return library{root: host.At(root), setting: "--driver-root or DRIVER_ROOT"}
}

// A libraryFile is one NVML library that was found: where, and which file
// that is, so that a replaced one is noticed though its name is the same. Two
// that are equal can share a session.
type libraryFile struct {
	path string
	id   fileID
	// gpus are the GPUs the kernel module has now. NVML looks for GPUs only
	// when a session begins, so one that was added or removed since needs a
	// new session to be seen.
	gpus string
}

type fileID struct {
	dev, inode   uint64
	size, change int64 // of the content, in case the file was written in place
}

// find looks for the library. Links are followed inside the root, since in
// the root of a driver container an absolute link means a file of that
// container. Only a regular file counts: a directory in its place is what a
// container runtime makes when it mounts a library that is not there yet.
func (l library) find() (libraryFile, error) {
	if l.path != "" {
		f, err := l.look(l.path)
		if err != nil {
			return libraryFile{}, fmt.Errorf("%w: load NVML library %s: %w; install the driver there or correct the path",
				nvml.ErrDriver, l.root.Path(l.path), reason(err))
		}
		return f, nil
	}
	// What went wrong with a file that is there says more than that the
	// others are not there.
	var found error
	for _, dir := range libraryDirs {
		f, err := l.look(path.Join(dir, libraryName))
		if err == nil {
			return f, nil
		}
		if found == nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			found = fmt.Errorf("%s: %w", l.root.Path(path.Join(dir, libraryName)), reason(err))
		}
	}
	if found != nil {
		return libraryFile{}, fmt.Errorf("%w: load NVML library %w", nvml.ErrDriver, found)
	}
	return libraryFile{}, fmt.Errorf("%w: find %s below the driver root %s (looked in %s): %w; install the driver there, or set %s to where it is installed",
		nvml.ErrDriver, libraryName, l.root.Root(), strings.Join(libraryDirs, ", "), fs.ErrNotExist, l.setting)
}

// look is the file a name leads to, if it is a regular file.
func (l library) look(name string) (libraryFile, error) {
	real, err := l.root.Resolve(name)
	if err != nil {
		return libraryFile{}, err
	}
	info, err := os.Stat(real)
	if err != nil {
		return libraryFile{}, err
	}
	if !info.Mode().IsRegular() {
		return libraryFile{}, errors.New("not a regular file")
	}
	f := libraryFile{path: real, id: fileID{size: info.Size(), change: info.ModTime().UnixNano()}}
	f.gpus = strings.Join(l.kernelGPUs(), " ")
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.id.dev, f.id.inode = st.Dev, st.Ino
	}
	return f, nil
}

// kernelGPUs are the PCI addresses of the GPUs that the kernel module has, as
// far as it says: the list only has to change when the GPUs do. A driver that
// runs in a container shows it there as well as here.
func (l library) kernelGPUs() []string {
	for _, root := range []host.Host{l.root, host.At("/")} {
		entries, err := os.ReadDir(root.Path("/proc/driver/nvidia/gpus"))
		if err != nil {
			continue
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	return nil
}

// reason is the cause in an error of a file operation, without the path that
// our own message has already.
func reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
