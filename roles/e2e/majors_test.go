package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// withoutMajors replaces the numbers that this kernel has left over for the
// simulated drivers by the drivers' names.
func (w *world) withoutMajors(text string) (string, error) {
	data, err := os.ReadFile(filepath.Join(w.machineRoot(), "proc/devices"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] != "195" && strings.HasPrefix(f[1], "nvidia-") { // that one has always been the driver's
			text = strings.ReplaceAll(text, fmt.Sprintf("major: %s\n", f[0]), fmt.Sprintf("major: %s\n", strings.ToUpper(f[1])))
			text = strings.ReplaceAll(text, fmt.Sprintf(" %s:", f[0]), fmt.Sprintf(" %s:", strings.ToUpper(f[1])))
		}
	}
	return text, nil
}
