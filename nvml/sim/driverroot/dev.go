package driverroot

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"nvdra/nvml/sim"
)

// nvidiaMajor is the device major NVIDIA has had since there are drivers.
const nvidiaMajor = 195

// majors are the numbers of the driver's other character devices. The kernel
// hands them out when a driver is loaded, so everybody has to look them up.
type majors struct {
	caps, imex, uvm uint32
	// realDriver says that this kernel has a real NVIDIA driver.
	realDriver bool
}

// names are the drivers the majors belong to, as /proc/devices has them.
func (m *majors) names() map[string]*uint32 {
	return map[string]*uint32{"nvidia-caps": &m.caps, "nvidia-caps-imex-channels": &m.imex, "nvidia-uvm": &m.uvm}
}

// prescribed takes the majors from the /proc/devices a machine profile brings
// along. A node must not lead to a real device, so numbers a driver of this kernel
// has are refused.
func (m majors) prescribed(text, kernel string) (majors, error) {
	want, err := parseMajors(strings.NewReader(text))
	if err != nil {
		return m, err
	}
	taken, err := readMajors(kernel)
	if err != nil {
		return m, err
	}
	for name, major := range m.names() {
		n, ok := want[name]
		if !ok {
			continue
		}
		for driver, other := range taken {
			if other == n && driver != name {
				return m, fmt.Errorf("the machine's proc/devices gives %s the major %d, which %s has on this kernel; give it another", name, n, driver)
			}
		}
		*major = n
	}
	return m, nil
}

// chooseMajors picks majors no driver of this kernel has, so that a node never
// leads to a real device; those of an earlier run if they are still free.
func chooseMajors(kernel, earlier string) (majors, error) {
	taken, err := readMajors(kernel)
	if err != nil {
		return majors{}, err
	}
	had, err := readMajors(earlier)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return majors{}, err
	}
	var m majors
	used := map[uint32]bool{}
	for _, major := range taken {
		used[major] = true
	}
	m.realDriver = used[nvidiaMajor]
	// The upper end of the kernel's second dynamic range is what it gives out last.
	next := uint32(384)
	for _, c := range []struct {
		name  string
		major *uint32
	}{{"nvidia-caps", &m.caps}, {"nvidia-caps-imex-channels", &m.imex}, {"nvidia-uvm", &m.uvm}} {
		*c.major = had[c.name]
		for *c.major < 234 || *c.major > 511 || used[*c.major] {
			if next > 511 {
				return majors{}, errors.New("no character device major from 384 to 511 is free")
			}
			*c.major = next
			next++
		}
		used[*c.major] = true
	}
	return m, nil
}

// readMajors reads the character devices of a /proc/devices.
func readMajors(file string) (map[string]uint32, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMajors(f)
}

// parseMajors reads the text of a /proc/devices. Lines of another form are not
// about character devices.
func parseMajors(r io.Reader) (map[string]uint32, error) {
	found := map[string]uint32{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Block") {
			break
		}
		fields := strings.Fields(lines.Text())
		if len(fields) != 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[0], 10, 32); err == nil {
			found[fields[1]] = uint32(n)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read character devices: %w", err)
	}
	return found, nil
}

// dev adds the device nodes. All that MIG instances may need are there from the
// beginning, with the numbers the driver gives them.
func (r *Root) dev(t tree, v sim.View) {
	node := func(path string, major, minor uint32, mode fs.FileMode) {
		if r.why != "" {
			t[path] = entry{kind: fileEntry, text: fmt.Sprintf("stand-in for device %d:%d\n", major, minor), mode: 0o666}
			return
		}
		t[path] = entry{kind: nodeEntry, major: major, minor: minor, mode: mode}
	}
	node("dev/nvidiactl", nvidiaMajor, 255, 0o666)
	node("dev/nvidia-modeset", nvidiaMajor, 254, 0o666)
	node("dev/nvidia-uvm", r.majors.uvm, 0, 0o666)
	node("dev/nvidia-uvm-tools", r.majors.uvm, 1, 0o666)
	cap := func(minor int, mode fs.FileMode) {
		node(fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", minor), r.majors.caps, uint32(minor), mode)
	}
	gpus := v.GPUs()
	if slices.ContainsFunc(gpus, func(g sim.GPUView) bool { return g.Product.MIG != nil }) {
		cap(sim.CapConfig, 0o400)
		cap(sim.CapMonitor, 0o444)
	}
	if hasFabric(v) {
		cap(sim.CapFabricIMEX, 0o400)
	}
	for _, g := range gpus {
		node(fmt.Sprintf("dev/nvidia%d", g.Minor), nvidiaMajor, uint32(g.Minor), 0o666)
		if g.Product.MIG == nil {
			continue
		}
		for gi := range sim.GIsPerGPU {
			cap(sim.GICap(g.Minor, gi), 0o444)
			for ci := range sim.CIsPerGI {
				cap(sim.CICap(g.Minor, gi, ci), 0o444)
			}
		}
	}
}

// hasFabric says that the machine is part of an NVLink fabric.
func hasFabric(v sim.View) bool {
	return slices.ContainsFunc(v.GPUs(), func(g sim.GPUView) bool { return g.Board.Fabric != nil })
}
