package host

import (
	"fmt"
	"regexp"
	"strings"
)

var bootID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// BootID is a name for the time since the machine was started; it changes
// with every boot. Where the root has none, the error wraps
// [io/fs.ErrNotExist]; there is no falling back to the machine this runs on,
// which in a container with another root may be a different answer.
func (h Host) BootID() (string, error) {
	const name = "/proc/sys/kernel/random/boot_id"
	data, err := h.read(name)
	if err != nil {
		return "", err
	}
	id := strings.ToLower(strings.TrimSpace(string(data)))
	if !bootID.MatchString(id) {
		return "", fmt.Errorf("read %s: %q is not a boot id", h.Path(name), shorten(id))
	}
	return id, nil
}
