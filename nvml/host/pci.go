package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	pciRoot    = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)
)

// PCIERoot is the root complex that a PCI device hangs below, "pci0000:64".
// Devices with the same root reach each other without crossing the CPU's
// interconnect.
func (h Host) PCIERoot(pci string) (string, error) {
	dir, err := pciDir(pci)
	if err != nil {
		return "", err
	}
	inside, err := h.resolve(dir)
	if err != nil {
		return "", readError(h.Path(dir), err)
	}
	root, err := findRoot(inside)
	if err != nil {
		return "", fmt.Errorf("find PCIe root of %s: %w", pci, err)
	}
	return root, nil
}

// findRoot is the first part of a sysfs path that names a root complex.
// Bridges and switches below it are named like devices; what may stand above
// it (a platform device on some ARM boards) looks like nothing of PCI.
func findRoot(sysfs string) (string, error) {
	for part := range strings.SplitSeq(sysfs, "/") {
		if pciRoot.MatchString(part) {
			return part, nil
		}
	}
	return "", fmt.Errorf("/%s names no root complex such as pci0000:00", sysfs)
}

// NUMANode is the memory node a PCI device is next to. ok is false where the
// kernel does not know one: it has no such file, or says a negative number.
func (h Host) NUMANode(pci string) (node int, ok bool, err error) {
	dir, err := pciDir(pci)
	if err != nil {
		return 0, false, err
	}
	name := path.Join(dir, "numa_node")
	data, err := h.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	node, err = parseNUMA(h.Path(name), data)
	if err != nil || node < 0 {
		return 0, false, err
	}
	return node, true, nil
}

func parseNUMA(file string, data []byte) (int, error) {
	text := strings.TrimSpace(string(data))
	node, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read %s: %q is not a number", file, shorten(text))
	}
	return int(node), nil
}

// IOMMUGroup is the number of the IOMMU group of a PCI device: what must be
// handed to a virtual machine as a whole. ok is false without an IOMMU.
func (h Host) IOMMUGroup(pci string) (group int, ok bool, err error) {
	dir, err := pciDir(pci)
	if err != nil {
		return 0, false, err
	}
	name := path.Join(dir, "iommu_group")
	inside, err := h.resolve(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, readError(h.Path(name), err)
	}
	group, err = strconv.Atoi(path.Base(inside))
	if err != nil || group < 0 {
		return 0, false, fmt.Errorf("read %s: it leads to %q, which is not the number of a group", h.Path(name), path.Base(inside))
	}
	return group, true, nil
}

// pciDir is the directory of a device in /sys. The address is checked first,
// because it becomes part of a path.
func pciDir(pci string) (string, error) {
	if !pciAddress.MatchString(pci) {
		return "", fmt.Errorf("find PCI device %q: not an address such as 0000:65:00.0", shorten(pci))
	}
	return "/sys/bus/pci/devices/" + pci, nil
}

// shorten keeps a message readable when what was found is not text at all.
func shorten(s string) string {
	const enough = 40
	if len(s) <= enough {
		return s
	}
	return s[:enough] + "…"
}
