package host

import (
	"fmt"
	"regexp"
	"strings"
)

var versionNumber = regexp.MustCompile(`^[0-9]{1,5}(\.[0-9]{1,5}){1,3}$`)

const versionFile = "/proc/driver/nvidia/version"

// DriverVersion is the version of the NVIDIA kernel module that is loaded
// now, "580.95.05". Without the module the error wraps [io/fs.ErrNotExist].
// It differs from what NVML says while a driver is being replaced.
func (h Host) DriverVersion() (string, error) {
	data, err := h.read(versionFile)
	if err != nil {
		return "", err
	}
	return parseDriverVersion(h.Path(versionFile), data)
}

// parseDriverVersion finds the number in the line of the kernel module. The
// words around it differ between the open and the closed module and between
// releases, but it is always the first word that looks like a version.
func parseDriverVersion(file string, data []byte) (string, error) {
	version := ""
	err := lines(file, data, func(line string) error {
		text, ok := strings.CutPrefix(line, "NVRM version:")
		if !ok || version != "" {
			return nil
		}
		for word := range strings.FieldsSeq(text) {
			if versionNumber.MatchString(word) {
				version = word
				return nil
			}
		}
		return fmt.Errorf("no version number in %q", shorten(line))
	})
	if err != nil {
		return "", err
	}
	if version == "" {
		return "", fmt.Errorf("read %s: no line \"NVRM version: …\"", file)
	}
	return version, nil
}
