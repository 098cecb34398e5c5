package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// mounts are what the product's DaemonSet mounts, from the node to the image, and
// what every container has.
var mounts = [][2]string{
	{"/proc", "/proc"}, {"/sys", "/sys"}, {"/dev", "/dev"},
	{"/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins"},
	{"/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins_registry"},
	{"/var/run/cdi", "/var/run/cdi"},
	{"/run/nvidia/driver", "/driver-root"},
	{"/tmp", "/tmp"},
}

// runEnter becomes another program, on the node, perhaps in an image, and writes
// down when.
func runEnter(_ context.Context, args []string) error {
	f := flag.NewFlagSet("enter", flag.ContinueOnError)
	image := f.String("image", "", "directory that becomes the root")
	moment := f.String("moment", "", "file for the time of the start, in nanoseconds")
	var env []string
	f.Func("env", "NAME=VALUE for the program", func(s string) error {
		env = append(env, s)
		return nil
	})
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if f.NArg() == 0 || *moment == "" {
		return fmt.Errorf("%w: enter -moment FILE [-image DIR] [-env NAME=VALUE] -- PROGRAM ARGUMENT…", errUsage)
	}
	file, err := os.Create(*moment) // its path means nothing any more in the image
	if err != nil {
		return fmt.Errorf("note the time: %w", err)
	}
	defer file.Close()
	runtime.LockOSThread() // mounts and root belong to the thread that becomes the program
	if *image != "" {
		if err := changeRoot(*image); err != nil {
			return fmt.Errorf("enter %s: %w", *image, err)
		}
	}
	if _, err := fmt.Fprintln(file, time.Now().UnixNano()); err != nil {
		return fmt.Errorf("note the time: %w", err)
	}
	return fmt.Errorf("become %s: %w", f.Arg(0), unix.Exec(f.Arg(0), f.Args(), env))
}

// changeRoot makes a directory the root, as a container's: with mounts of its own.
func changeRoot(image string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range mounts {
		to := filepath.Join(image, m[1])
		err := errors.Join(os.MkdirAll(m[0], 0o755), os.MkdirAll(to, 0o755))
		if err == nil {
			err = unix.Mount(m[0], to, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil {
			return fmt.Errorf("mount %s on %s: %w", m[0], to, err)
		}
	}
	if err := unix.Chroot(image); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("change directory: %w", err)
	}
	return nil
}
