package box

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// shown are the directories of the machine's programs; a box sees them read-only.
var shown = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// copied are the files a box takes from the machine's /etc: what programs need
// to run, and nothing about people or networks.
var copied = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "nsswitch.conf", "os-release", "debian_version",
	"protocols", "services", "ethertypes", "netconfig", "iproute2", "localtime", "gai.conf", "host.conf",
}

// Prepare fills the directory that will be the root of a box: the directories
// every machine has, a small /etc, and the first process.
func Prepare(root, hostname, init string) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("create box: %w", err)
	}
	for _, dir := range []string{
		"dev", "proc", "sys", "run", "tmp", "root", "home", "mnt", "opt/nvdra", "etc/cdi", "etc/cni/net.d", "etc/containerd", "etc/kubernetes",
		"usr", ".old", ".local", "var/cache", "var/lib/kubelet", "var/lib/containerd", "var/lib/etcd", "var/log/pods", "var/tmp",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("create box: %w", err)
		}
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		if err := os.Chmod(filepath.Join(root, dir), os.ModeSticky|0o777); err != nil {
			return fmt.Errorf("create box: %w", err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create box: %w", err)
	}
	for _, name := range shown {
		// On most distributions /bin and its like are links into /usr.
		target, err := os.Readlink("/" + name)
		switch {
		case err == nil:
			err = os.Symlink(target, filepath.Join(root, name))
		case isDir("/" + name):
			err = os.MkdirAll(filepath.Join(root, name), 0o755)
		default:
			err = nil
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("create box: %w", err)
		}
	}
	for _, name := range copied {
		if err := copyTree("/etc/"+name, filepath.Join(root, "etc", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("create box: %w", err)
		}
	}
	for name, text := range map[string]string{
		"passwd":      "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":       "root:x:0:\ntty:x:5:\nvideo:x:44:\nrender:x:104:\nnogroup:x:65534:\n",
		"hostname":    hostname + "\n",
		"machine-id":  machineID(root),
		"hosts":       "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 " + hostname + "\n",
		"resolv.conf": "# There is no name service in this cluster.\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("create box: %w", err)
		}
	}
	if err := copyFile(init, filepath.Join(root, "opt/nvdra/init"), 0o755); err != nil {
		return fmt.Errorf("create box: %w", err)
	}
	return nil
}

// machineID makes up an identity: the same for the same root, and no other machine's.
func machineID(root string) string {
	sum := sha256.Sum256([]byte(root))
	return hex.EncodeToString(sum[:16]) + "\n"
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// copyTree copies a file, a link (as a link, unless it leaves /etc's own tree by
// a relative path, which os-release does) or a directory.
func copyTree(from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return copyFile(from, to, st.Mode().Perm())
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(src)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, dst); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			continue
		}
		if err := copyTree(src, dst); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
