package driverroot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"nvdra/nvml/sim"
)

// A charDevice is a line of /proc/devices.
type charDevice struct {
	major uint32
	name  string
}

// proc adds what the driver and the kernel tell in /proc.
func proc(t tree, v sim.View, m majors) {
	devices := []charDevice{{1, "mem"}, {4, "tty"}, {5, "/dev/tty"}, {5, "/dev/console"}, {10, "misc"}, {136, "pts"}}
	if !v.State.Gone {
		devices = append(devices, charDevice{nvidiaMajor, "nvidia"}, charDevice{nvidiaMajor, "nvidiactl"}, charDevice{nvidiaMajor, "nvidia-modeset"},
			charDevice{m.uvm, "nvidia-uvm"}, charDevice{m.caps, "nvidia-caps"}, charDevice{m.imex, "nvidia-caps-imex-channels"})
	}
	slices.SortStableFunc(devices, func(a, b charDevice) int { return cmp.Compare(a.major, b.major) })
	var text strings.Builder
	text.WriteString("Character devices:\n")
	for _, d := range devices {
		fmt.Fprintf(&text, "%3d %s\n", d.major, d.name)
	}
	text.WriteString("\nBlock devices:\n  7 loop\n259 blkext\n")
	t.file("proc/devices", text.String())
	t.file("proc/sys/kernel/random/boot_id", v.State.BootID+"\n")
	if v.State.Gone {
		return
	}
	t.file("proc/modules", "nvidia_uvm 1789952 0 - Live 0x0000000000000000 (OE)\nnvidia_modeset 1654784 0 - Live 0x0000000000000000 (OE)\n"+
		"nvidia 104042496 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (OE)\n")
	const driver = "proc/driver/nvidia"
	t.file(driver+"/version", fmt.Sprintf("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (simulated)\nGCC version:  gcc version 12.2.0\n", v.State.Driver))
	t.file(driver+"/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nEnableGpuFirmware: 18\n")
	for _, g := range v.GPUs() {
		t.file(fmt.Sprintf("%s/gpus/%s/information", driver, g.Board.PCI), information(g, v.State.Driver))
	}
	capabilities(t, v)
}

// information is what the driver says about a GPU.
func information(g sim.GPUView, driver string) string {
	var b strings.Builder
	for _, line := range [][2]string{
		{"Model:", g.Product.Name},
		{"IRQ:", fmt.Sprint(100 + g.Index)},
		{"GPU UUID:", string(g.Board.UUID)},
		{"Bus Type:", "PCIe"},
		{"DMA Size:", "52 bits"},
		{"DMA Mask:", "0xfffffffffffff"},
		{"Bus Location:", g.Board.PCI},
		{"Device Minor:", fmt.Sprint(g.Minor)},
		{"GPU Firmware:", driver},
		{"GPU Excluded:", "No"},
	} {
		fmt.Fprintf(&b, "%-16s %s\n", line[0], line[1])
	}
	return b.String()
}

// capabilities adds the files that tell which device node guards what. Those of
// instances come and go with the instances.
func capabilities(t tree, v sim.View) {
	const caps = "proc/driver/nvidia/capabilities"
	access := func(path string, minor, mode int) {
		t.file(caps+"/"+path, fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode))
	}
	const readRoot, readAll = 0o400, 0o444
	t.dir(caps)
	if hasFabric(v) {
		access("fabric-imex-mgmt", sim.CapFabricIMEX, readRoot)
	}
	t.file("proc/driver/nvidia-caps/mig-minors", migMinors)
	t.file("proc/driver/nvidia-caps/sys-minors", fmt.Sprintf("fabric-imex-mgmt %d\n", sim.CapFabricIMEX))
	access("mig/config", sim.CapConfig, readRoot)
	access("mig/monitor", sim.CapMonitor, readAll)
	for _, g := range v.GPUs() {
		gpu := fmt.Sprintf("gpu%d", g.Minor)
		if g.Product.MIG == nil {
			continue
		}
		t.dir(caps + "/" + gpu + "/mig")
		for _, gi := range g.Instances {
			access(fmt.Sprintf("%s/mig/gi%d/access", gpu, gi.ID), sim.GICap(g.Minor, gi.ID), readAll)
			for _, ci := range gi.Compute {
				access(fmt.Sprintf("%s/mig/gi%d/ci%d/access", gpu, gi.ID, ci.ID), sim.CICap(g.Minor, gi.ID, ci.ID), readAll)
			}
		}
	}
}

// migMinors is the driver's table of all the numbers there are.
var migMinors = func() string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %d\nmonitor %d\n", sim.CapConfig, sim.CapMonitor)
	for gpu := range sim.GPUsWithMinors {
		for gi := range sim.GIsPerGPU {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", gpu, gi, sim.GICap(gpu, gi))
			for ci := range sim.CIsPerGI {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", gpu, gi, ci, sim.CICap(gpu, gi, ci))
			}
		}
	}
	return b.String()
}()
