package cdi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// pciName is the name of a directory below /proc/driver/nvidia/gpus.
var pciName = regexp.MustCompile(`^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)

// pciAddress asks the kernel module for the PCI address of the GPU with this
// minor number, and makes sure that it is the GPU that was meant. Where the
// module does not tell (it keeps no such files in some virtual machines) the
// address is empty, and the container gets no display nodes.
func (d *Driver) pciAddress(uuid string, minor int) (string, error) {
	gpus := filepath.Join(d.config.MachineRoot, "proc/driver/nvidia/gpus")
	if name, ok := d.lastSeen.Load(uuid); ok { // nearly always it still is where it was
		found, err := readInformation(filepath.Join(gpus, name.(string), "information"))
		if err == nil && found.minor == minor && (found.uuid == "" || found.uuid == uuid) {
			return strings.ToLower(name.(string)), nil
		}
	}
	entries, err := os.ReadDir(gpus)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("list GPUs of the kernel module: %w", err)
	}
	var others []string
	var unread []error // of other GPUs perhaps, so only told if ours is not found
	for _, e := range entries {
		if !pciName.MatchString(e.Name()) {
			continue
		}
		found, err := readInformation(filepath.Join(gpus, e.Name(), "information"))
		switch {
		case err != nil:
			unread = append(unread, err)
		case found.minor != minor:
			others = append(others, strconv.Itoa(found.minor))
		case found.uuid != "" && found.uuid != uuid:
			return "", fmt.Errorf("/dev/nvidia%d is now GPU %s; the minor numbers have changed", minor, found.uuid)
		default:
			d.lastSeen.Store(uuid, e.Name())
			return strings.ToLower(e.Name()), nil
		}
	}
	err = fmt.Errorf("%s has no GPU with minor number %d but with [%s]; it was removed, or given to another driver", gpus, minor, strings.Join(others, " "))
	return "", errors.Join(append([]error{err}, unread...)...)
}

// information is what the kernel module says about a GPU.
type information struct {
	minor int
	uuid  string // "" while the module has not read it from the GPU yet
}

func readInformation(path string) (information, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return information{}, err // names the path itself
	}
	info, err := parseInformation(data)
	if err != nil {
		return info, fmt.Errorf("read %s: %w", path, err)
	}
	return info, nil
}

// parseInformation reads the lines "Key: value" of an information file.
func parseInformation(data []byte) (information, error) {
	info := information{minor: -1}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Device Minor":
			minor, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				return info, fmt.Errorf("%w Device Minor %q: want a number", ErrInvalid, value)
			}
			info.minor = int(minor)
		case "GPU UUID":
			if !strings.Contains(value, "?") {
				info.uuid = value
			}
		}
	}
	if err := lines.Err(); err != nil {
		return info, err
	}
	if info.minor < 0 {
		return info, fmt.Errorf("%w: it has no line \"Device Minor\"", ErrInvalid)
	}
	return info, nil
}
