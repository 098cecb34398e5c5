package host

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Fingerprint is a digest of what the kernel shows of the driver: its
// version, which GPUs it has and which of them answer on the bus, which GPU
// instances and compute instances exist. Two that are equal mean that nothing
// changed that the kernel shows.
//
// /proc tells nobody when it changes, so whoever wants to notice compares
// fingerprints every few seconds: that takes about a millisecond on the
// largest machines, wakes no GPU and opens no device file. What it cannot see: MIG mode switched
// while there are no instances, and a MIG device replaced between two looks
// by one with the same numbers.
//
// No driver is a state like any other, not an error.
func (h Host) Fingerprint() (string, error) {
	sum := sha256.New()
	// Only names and the version are looked at, so links are left to the
	// kernel: resolving them inside the root would cost more than the rest.
	version, err := os.ReadFile(h.Path(versionFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("fingerprint the driver: %w", readError(h.Path(versionFile), err))
	}
	fmt.Fprintf(sum, "version %q\n", version) // a hash never refuses a write
	for _, t := range trees {
		err := tree(sum, h.Path(t.name), t.deep)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("fingerprint the driver: %w", readError(h.Path(t.name), err))
		}
	}
	for _, pci := range h.offBus() {
		fmt.Fprintf(sum, "off bus %s\n", pci)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]), nil
}

// trees are the directories whose names matter, and how far down: gpus/<pci>
// and capabilities/gpu<N>/mig/gi<G>/ci<C>.
var trees = []struct {
	name string
	deep int
}{
	{"/proc/driver/nvidia/gpus", 1},
	{"/proc/driver/nvidia/capabilities", 4},
}

// offBus lists the driver's GPUs that do not answer on the bus any more. The
// driver keeps such a GPU in its list; what shows it is that every read of its
// configuration space gives ones (PCI Express Base Specification, completion of
// an unsupported request). A GPU whose configuration space cannot be read here
// is not said to be off the bus: that may be a matter of mounts.
func (h Host) offBus() []string {
	entries, err := os.ReadDir(h.Path("/proc/driver/nvidia/gpus"))
	if err != nil {
		return nil
	}
	var off []string
	for _, e := range entries {
		dir, err := pciDir(strings.ToLower(e.Name()))
		if err == nil && allOnes(h.Path(dir+"/config")) {
			off = append(off, e.Name())
		}
	}
	return off
}

// allOnes says whether the vendor and device numbers, the first four bytes of a
// configuration space, are ones.
func allOnes(file string) bool {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	var id [4]byte
	n, err := unix.Pread(fd, id[:], 0)
	return err == nil && n == len(id) && id == [4]byte{0xff, 0xff, 0xff, 0xff}
}

// tree adds the names below a directory to the digest. It goes into a
// directory only where instances can be, since every look costs, and into no
// link. What disappears while it is being read is simply not there.
func tree(sum hash.Hash, dir string, deep int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fmt.Fprintf(sum, "%d %s\n", deep, e.Name())
		if deep == 1 || !e.IsDir() || !hasInstances(e.Name()) {
			continue
		}
		if err := tree(sum, dir+"/"+e.Name(), deep-1); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// hasInstances says whether names that matter are below a directory of this
// name: gpu<N>, mig, gi<G>.
func hasInstances(name string) bool {
	for _, prefix := range []string{"gpu", "gi"} {
		if n, ok := strings.CutPrefix(name, prefix); ok && n != "" && strings.Trim(n, "0123456789") == "" {
			return true
		}
	}
	return name == "mig"
}
