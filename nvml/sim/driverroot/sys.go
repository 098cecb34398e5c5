package driverroot

import (
	"encoding/binary"
	"fmt"
	"path"
	"strconv"
	"strings"

	"nvdra/nvml/sim"
)

// sys adds what the kernel tells about the PCI devices in /sys.
func sys(t tree, v sim.View) {
	const nvidia = "sys/bus/pci/drivers/nvidia"
	t.dir("sys/bus/pci/devices")
	if !v.State.Gone {
		t.dir(nvidia)
		t.file("sys/module/nvidia/version", v.State.Driver+"\n")
		for _, module := range []string{"nvidia", "nvidia_uvm", "nvidia_modeset"} {
			t.file("sys/module/"+module+"/initstate", "live\n")
			t.file("sys/module/"+module+"/refcnt", "0\n")
		}
	}
	for i, g := range v.GPUs() {
		parent := "sys/devices/" + g.Board.Parent
		dir := parent + "/" + g.Board.PCI
		bridges(t, g.Board.Parent)
		function(t, dir, g, uint64(i))
		t.link("sys/bus/pci/devices/"+g.Board.PCI, relative("sys/bus/pci/devices/x", dir))
		group := "sys/kernel/iommu_groups/" + strconv.Itoa(g.Board.IOMMU)
		t.link(group+"/devices/"+g.Board.PCI, relative(group+"/devices/x", dir))
		t.file(group+"/type", "DMA-FQ\n")
		t.link(dir+"/iommu_group", relative(dir+"/x", group))
		t.link(dir+"/subsystem", relative(dir+"/x", "sys/bus/pci"))
		if !v.State.Gone {
			t.link(dir+"/driver", relative(dir+"/x", nvidia))
			t.link(nvidia+"/"+g.Board.PCI, relative(nvidia+"/x", dir))
		}
	}
}

// bridges adds the PCI bridges between the root and a GPU.
func bridges(t tree, parent string) {
	parts := strings.Split(parent, "/")
	for i := 1; i < len(parts); i++ {
		dir := "sys/devices/" + path.Join(parts[:i+1]...)
		t.file(dir+"/vendor", "0x8086\n")
		t.file(dir+"/device", "0x352a\n")
		t.file(dir+"/class", "0x060400\n")
		t.link("sys/bus/pci/devices/"+parts[i], relative("sys/bus/pci/devices/x", dir))
	}
}

// revision is the PCI revision of every GPU here.
const revision = 0xa1

// function adds the files of a GPU's PCI function.
func function(t tree, dir string, g sim.GPUView, index uint64) {
	p := g.Product
	for name, text := range map[string]string{
		"vendor":           "0x10de",
		"device":           p.Device,
		"subsystem_vendor": "0x10de",
		"subsystem_device": p.Subsystem,
		"class":            "0x030200",
		"revision":         fmt.Sprintf("0x%02x", revision),
		"numa_node":        strconv.Itoa(g.Board.NUMA),
		"driver_override":  "(null)",
		"enable":           "1",
		"modalias": fmt.Sprintf("pci:v000010DEd0000%ssv000010DEsd0000%sbc03sc02i00",
			strings.ToUpper(strings.TrimPrefix(p.Device, "0x")), strings.ToUpper(strings.TrimPrefix(p.Subsystem, "0x"))),
	} {
		t.file(dir+"/"+name, text+"\n")
	}
	config := configSpace(p)
	if g.Lost {
		// A read that nobody on the bus answers gives ones.
		config = strings.Repeat("\xff", len(config))
	}
	t.file(dir+"/config", config)
	t.file(dir+"/resource", resource(p, index))
	t.file(dir+"/uevent", fmt.Sprintf("DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:%s\nPCI_SLOT_NAME=%s\n",
		strings.ToUpper(strings.TrimPrefix(p.Device, "0x")), g.Board.PCI))
}

// configSpace is the header of the function's PCI configuration space, without
// capabilities.
func configSpace(p *sim.Product) string {
	var c [256]byte
	hex := func(s string) uint16 {
		n, _ := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 16) // the profile has been checked
		return uint16(n)
	}
	binary.LittleEndian.PutUint16(c[0x00:], 0x10de)
	binary.LittleEndian.PutUint16(c[0x02:], hex(p.Device))
	binary.LittleEndian.PutUint16(c[0x04:], 0x0546) // memory space, bus master, errors, no INTx
	c[0x08] = revision
	c[0x0a], c[0x0b] = 0x02, 0x03 // 3D controller
	binary.LittleEndian.PutUint16(c[0x2c:], 0x10de)
	binary.LittleEndian.PutUint16(c[0x2e:], hex(p.Subsystem))
	return string(c[:])
}

// resource lists the memory windows: registers, the window onto GPU memory, and
// a third one. Flags are the kernel's: memory, prefetchable, 64 bits wide.
func resource(p *sim.Product, index uint64) string {
	const mib = 1 << 20
	const wide, narrow = 0x14220c, 0x40200
	base := 0x200000000000 + index<<40
	var b strings.Builder
	window := func(start, size, flags uint64) {
		fmt.Fprintf(&b, "0x%016x 0x%016x 0x%016x\n", start, start+size-1, flags)
	}
	none := func() { b.WriteString("0x0000000000000000 0x0000000000000000 0x0000000000000000\n") }
	window(0xa0000000+index*16*mib, 16*mib, narrow)
	window(base, p.BAR1MiB*mib, wide)
	none()
	window(base+p.BAR1MiB*mib, 32*mib, wide)
	for range 9 {
		none()
	}
	return b.String()
}
