package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A need is something of this machine that a cluster uses.
type need struct {
	what    string
	debian  string // the package that brings it
	present func() bool
}

func needs() []need {
	program := func(name string) func() bool {
		return func() bool {
			_, err := findProgram(name)
			return err == nil
		}
	}
	return []need{
		{"ip", "iproute2", program("ip")},
		{"iptables", "iptables", program("iptables")},
		{"conntrack", "conntrack", program("conntrack")},
		{"modprobe", "kmod", program("modprobe")},
		{"mount", "mount", program("mount")},
		{"gcc", "gcc", program("gcc")},
		{"the C library's development files", "libc6-dev", cLibrary},
		{"pkg-config", "pkg-config", program("pkg-config")},
		{"libseccomp's development files", "libseccomp-dev", func() bool { return exec.Command("pkg-config", "--exists", "libseccomp").Run() == nil }},
		{"static busybox", "busybox-static", func() bool { _, err := busybox(); return err == nil }},
		{"CNI plugins bridge, host-local, portmap and loopback", "containernetworking-plugins", func() bool { _, err := cniPlugins(); return err == nil }},
	}
}

func cLibrary() bool {
	out, err := exec.Command("gcc", "-print-file-name=libc.a").Output()
	return err == nil && filepath.IsAbs(strings.TrimSpace(string(out)))
}

// findProgram looks also where a plain user's search path does not.
func findProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("find program %s: %w", name, exec.ErrNotFound)
}

func busybox() (string, error) {
	for _, path := range []string{"/usr/bin/busybox", "/bin/busybox", "/usr/sbin/busybox", "/sbin/busybox.static", "/usr/sbin/busybox.static"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.New("find busybox: it is not installed")
}

func cniPlugins() (string, error) {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} {
		if !slices.ContainsFunc([]string{"bridge", "host-local", "portmap", "loopback"}, func(name string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err != nil
		}) {
			return dir, nil
		}
	}
	return "", errors.New("find CNI plugins: they are not installed")
}

// errMachine is the kind of error of a machine that cannot carry a cluster as it is.
var errMachine = errors.New("this machine cannot run a cluster yet")

// checkMachine sees to it that the machine has all a cluster needs.
func checkMachine(ctx context.Context, w io.Writer) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: namespaces and networks need root; run it with sudo --preserve-env=HOME,PATH", errMachine)
	}
	return checkPrograms(ctx, w)
}

// checkPrograms sees to it that the programs and files are there that building
// and running need. Only for installing them it wants to be root.
func checkPrograms(ctx context.Context, w io.Writer) error {
	missing := lacking()
	if len(missing) == 0 {
		return nil
	}
	var packages, things []string
	for _, n := range missing {
		packages, things = append(packages, n.debian), append(things, n.what)
	}
	line := "apt-get install -y --no-install-recommends " + strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%w: it lacks %s; as root on Debian that is: %s", errMachine, strings.Join(things, ", "), line)
	}
	began := time.Now()
	for _, cmd := range []string{"apt-get update", line} {
		f := strings.Fields(cmd)
		c := exec.CommandContext(ctx, f[0], f[1:]...)
		c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if words, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: it lacks %s, and %q ended with: %w\n%s", errMachine, strings.Join(things, ", "), cmd, err, tail(string(words), 5))
		}
	}
	fmt.Fprintf(w, "%-28s installed in %s\n", strings.Join(packages, ", "), time.Since(began).Round(time.Second))
	if missing = lacking(); len(missing) > 0 {
		return fmt.Errorf("%w: it still lacks %s after %s", errMachine, missing[0].what, line)
	}
	return nil
}

func lacking() []need {
	return slices.DeleteFunc(needs(), func(n need) bool { return n.present() })
}

// mayRaiseOOM says whether processes here may be made harder to kill than their parents.
func mayRaiseOOM() (bool, error) {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	return hasCapability(string(raw), 24) // CAP_SYS_RESOURCE
}

// hasCapability looks into /proc/PID/status for one effective capability.
func hasCapability(status string, bit uint) (bool, error) {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				return false, fmt.Errorf("parse capabilities: %w", err)
			}
			return caps&(1<<bit) != 0, nil
		}
	}
	return false, errors.New("parse capabilities: there is no line CapEff")
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
