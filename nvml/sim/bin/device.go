package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nvdra/nvml/sim"
	"nvdra/nvml/sim/wire"
)

// A driver is the simulated driver as this process may see it.
type driver struct {
	*wire.Client
	root string
	gpus []gpu
}

// A gpu is one the process can open.
type gpu struct {
	index int
	uuid  string
	pci   string // "00000000:65:00.0"; empty when the GPU does not answer
	lost  error
}

// A migDevice is one the process can open.
type migDevice struct {
	uuid string
	name string // "1g.10gb"
}

// open connects and looks which GPUs there are.
func open(root string) (*driver, error) {
	c, err := connect(root)
	if err != nil {
		return nil, err
	}
	d := &driver{Client: c, root: root}
	list, err := c.Call("DeviceGetCount")
	if err != nil {
		c.Close()
		return nil, err
	}
	for i := 0; i+1 < len(list); i += 2 {
		if !d.visible("dev/nvidia" + list[i+1]) {
			continue
		}
		g := gpu{index: len(d.gpus), uuid: list[i]}
		g.pci, g.lost = d.busID(g.uuid)
		d.gpus = append(d.gpus, g)
	}
	return d, nil
}

// visible says whether a device node can be opened; libnvml/src/visible.c has the
// same rule and says why.
func (d *driver) visible(node string) bool {
	path := filepath.Join(d.root, node)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err == nil {
		f.Close()
		return true
	}
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EROFS) {
		return true
	}
	var fs unix.Statfs_t
	return errors.Is(err, unix.EACCES) && unix.Statfs(path, &fs) == nil && fs.Flags&unix.ST_NODEV != 0
}

func (d *driver) capVisible(minor string) bool {
	return d.visible("dev/nvidia-caps/nvidia-cap" + minor)
}

// mayChangeMIG says whether this process may create and destroy instances.
func (d *driver) mayChangeMIG() error {
	if d.capVisible(strconv.Itoa(sim.CapConfig)) {
		return nil
	}
	return sim.NoPermission
}

// busID is the PCI address as NVML writes it.
func (d *driver) busID(uuid string) (string, error) {
	f, err := d.Call("DeviceGetPciInfo", uuid)
	if err != nil {
		return "", err
	}
	var n [3]uint64
	for i := range n {
		if n[i], err = strconv.ParseUint(f[i], 10, 32); err != nil {
			return "", fmt.Errorf("read PCI address: %w", err)
		}
	}
	return fmt.Sprintf("%08X:%02X:%02X.0", n[0], n[1], n[2]), nil
}

// one asks for the first field of an answer.
func (d *driver) one(call string, args ...string) (string, error) {
	f, err := d.Call(call, args...)
	if err != nil {
		return "", err
	}
	if len(f) == 0 {
		return "", fmt.Errorf("nvml%s: the answer is empty", call)
	}
	return f[0], nil
}

// mig lists the MIG devices of a GPU that the process can open.
func (d *driver) mig(uuid string) ([]migDevice, error) {
	list, err := d.Call("DeviceGetMigDeviceHandleByIndex", uuid)
	if errors.Is(err, sim.NotSupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []migDevice
	for i := 0; i+2 < len(list); i += 3 {
		if !d.capVisible(list[i+1]) || !d.capVisible(list[i+2]) {
			continue
		}
		name, err := d.one("DeviceGetName", list[i])
		if err != nil {
			return nil, err
		}
		_, short, _ := strings.Cut(name, " MIG ")
		found = append(found, migDevice{list[i], short})
	}
	return found, nil
}

// choose picks the GPUs that -i names: indexes, UUIDs or PCI addresses with
// commas between; all when it names none.
func (d *driver) choose(ids string) ([]gpu, error) {
	if ids == "" {
		if len(d.gpus) == 0 {
			return nil, failf(exitNoDevices, "No devices were found")
		}
		return d.gpus, nil
	}
	var chosen []gpu
	for _, id := range strings.Split(ids, ",") {
		found := false
		for _, g := range d.gpus {
			if strconv.Itoa(g.index) == id || g.uuid == id || samePCI(g.pci, id) {
				chosen = append(chosen, g)
				found = true
				break
			}
		}
		if !found {
			return nil, failf(exitNoDevices, "No devices were found with ID %s", id)
		}
	}
	return chosen, nil
}

// samePCI compares the forms people write a PCI address in.
func samePCI(full, id string) bool {
	return full != "" && strings.Contains(id, ":") && strings.HasSuffix(strings.ToUpper(full), strings.ToUpper(id)) &&
		strings.Trim(strings.TrimSuffix(strings.ToUpper(full), strings.ToUpper(id)), "0:") == ""
}
