package host

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// maxMajor is the largest major number a Linux device can have (12 bits).
const maxMajor = 1<<12 - 1

// CharMajor is the major number of the character devices that the kernel
// lists under a name in /proc/devices: "nvidia", "nvidia-uvm", "nvidia-caps".
// The driver takes most of them dynamically, so they change from boot to boot.
// A name that is not listed wraps [io/fs.ErrNotExist].
func (h Host) CharMajor(name string) (int, error) {
	majors, err := h.CharMajors()
	if err != nil {
		return 0, err
	}
	major, ok := majors[name]
	if !ok {
		return 0, fmt.Errorf("find %q among the character devices of %s (is the NVIDIA driver loaded?): %w",
			name, h.Path("/proc/devices"), fs.ErrNotExist)
	}
	return major, nil
}

// CharMajors is every character device of /proc/devices, by name. Where the
// kernel lists a name twice, the first counts.
func (h Host) CharMajors() (map[string]int, error) {
	data, err := h.read("/proc/devices")
	if err != nil {
		return nil, err
	}
	return parseDevices(h.Path("/proc/devices"), data)
}

// parseDevices reads the character section of /proc/devices.
func parseDevices(file string, data []byte) (map[string]int, error) {
	majors := map[string]int{}
	char, seen := false, false
	err := lines(file, data, func(line string) error {
		switch text := strings.TrimSpace(line); {
		case text == "":
			return nil
		case strings.HasSuffix(text, ":"):
			char = text == "Character devices:"
			seen = seen || char
			return nil
		case !char:
			return nil
		}
		number, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		name = strings.TrimSpace(name)
		major, err := strconv.Atoi(number)
		if !ok || name == "" || err != nil || major < 0 || major > maxMajor {
			return fmt.Errorf("%q is not a major number and a name", line)
		}
		if _, twice := majors[name]; !twice {
			majors[name] = major
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !seen {
		return nil, fmt.Errorf("read %s: no section \"Character devices:\"", file)
	}
	return majors, nil
}
