package host

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// A Capability is the device node through which the driver lets a process use
// a GPU instance or a compute instance: /dev/nvidia-caps/nvidia-cap<Minor>.
type Capability struct {
	Minor int
	Mode  fs.FileMode // permission bits the driver asks for
}

// Node is the path of the capability's device node. The driver does not
// always make it; its numbers are right all the same.
func (c Capability) Node() string {
	return fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", c.Minor)
}

// maxMinor is the largest minor number a Linux device can have (20 bits).
const maxMinor = 1<<20 - 1

// MIGCapabilities are the two device nodes a container needs for a MIG
// device: the one of its GPU instance and the one of its compute instance.
// gpu is the minor number of the parent GPU. While the MIG device does not
// exist, the error wraps [io/fs.ErrNotExist].
func (h Host) MIGCapabilities(gpu, gi, ci int) (gpuInstance, computeInstance Capability, err error) {
	base := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", gpu, gi)
	gpuInstance, err = h.capability(base + "/access")
	if err != nil {
		return Capability{}, Capability{}, err
	}
	computeInstance, err = h.capability(fmt.Sprintf("%s/ci%d/access", base, ci))
	if err != nil {
		return Capability{}, Capability{}, err
	}
	return gpuInstance, computeInstance, nil
}

func (h Host) capability(name string) (Capability, error) {
	data, err := h.read(name)
	if err != nil {
		return Capability{}, err
	}
	return parseCapability(h.Path(name), data)
}

// parseCapability reads an access file: lines of "Key: number". Keys it does
// not know are passed over, because newer drivers may add some.
func parseCapability(file string, data []byte) (Capability, error) {
	var c Capability
	found := map[string]bool{}
	err := lines(file, data, func(line string) error {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			if strings.TrimSpace(line) == "" {
				return nil
			}
			return fmt.Errorf("%q is not \"key: value\"", line)
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if key != "DeviceFileMinor" && key != "DeviceFileMode" {
			return nil
		}
		if found[key] {
			return fmt.Errorf("%s is there twice", key)
		}
		found[key] = true
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("%s is %q, not a number", key, value)
		}
		if key == "DeviceFileMinor" {
			if n < 0 || n > maxMinor {
				return fmt.Errorf("%s is %d, not a minor number", key, n)
			}
			c.Minor = n
			return nil
		}
		if n < 0 || n > int(fs.ModePerm) {
			return fmt.Errorf("%s is %d, not permission bits", key, n)
		}
		c.Mode = fs.FileMode(n)
		return nil
	})
	if err != nil {
		return Capability{}, err
	}
	for _, key := range []string{"DeviceFileMinor", "DeviceFileMode"} {
		if !found[key] {
			return Capability{}, fmt.Errorf("read %s: no line %s", file, key)
		}
	}
	return c, nil
}
