package gpuplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"nvdra/nvml"
)

// A names file remembers which number each PCI address has in device names.
//
// Device names carry the GPU's minor number ("gpu-3"), and an allocated claim
// knows its device by that name alone. Minor numbers are given out anew at
// every boot, and shift when a card is removed; a claim that outlives the boot
// would then be prepared on another card. So a slot that was once called gpu-3
// stays gpu-3, whatever its minor number becomes.
//
// The file is advice, not a record: losing it means that names follow the
// minor numbers again, as they do on a new node.
type names struct {
	path    string
	numbers map[string]int
}

// namesFile is the file's content.
type namesFile struct {
	Version int            `json:"version"` // 1
	Numbers map[string]int `json:"numbers"` // PCI address to number
}

// loadNames reads the names file. A missing file is an empty one; a damaged
// one is an error, together with names that can be used all the same.
func loadNames(path string) (*names, error) {
	n := &names{path: path, numbers: map[string]int{}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return n, fmt.Errorf("read device names: %w", err)
	}
	f, err := decodeNames(raw)
	if err != nil {
		return n, fmt.Errorf("read device names %s: %w; starting from the minor numbers", path, err)
	}
	n.numbers = f.Numbers
	return n, nil
}

// decodeNames parses and checks a names file.
func decodeNames(raw []byte) (namesFile, error) {
	var f namesFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return namesFile{}, err
	}
	if f.Version != 1 {
		return namesFile{}, fmt.Errorf("version %d is not known here", f.Version)
	}
	owner := map[int]string{}
	for pci, n := range f.Numbers {
		if other, taken := owner[n]; taken || n < 0 {
			return namesFile{}, fmt.Errorf("number %d is given to %s and %s", n, pci, other)
		}
		owner[n] = pci
	}
	if f.Numbers == nil {
		f.Numbers = map[string]int{}
	}
	return f, nil
}

// update gives every GPU a number, writes the file when a number is new, and
// returns the numbers. The numbers are valid even when writing failed.
func (n *names) update(gpus []nvml.GPU) (map[string]int, error) {
	next, changed := assignNumbers(n.numbers, gpus)
	n.numbers = next
	if !changed {
		return next, nil
	}
	raw, err := json.Marshal(namesFile{Version: 1, Numbers: next})
	if err != nil {
		return next, fmt.Errorf("write device names: %w", err)
	}
	if err := replaceFile(n.path, append(raw, '\n')); err != nil {
		return next, fmt.Errorf("write device names: %w", err)
	}
	return next, nil
}

// assignNumbers keeps every number ever given, and gives a GPU seen for the
// first time its minor number, or, when that belongs to another slot, the
// lowest number that belongs to none.
func assignNumbers(known map[string]int, gpus []nvml.GPU) (numbers map[string]int, changed bool) {
	numbers = make(map[string]int, len(known)+len(gpus))
	taken := map[int]bool{}
	for pci, n := range known {
		numbers[pci] = n
		taken[n] = true
	}
	// Two rounds, so that a GPU whose minor number is free gets it even if an
	// earlier one in the list is looking for any number.
	var homeless []nvml.GPU
	for _, g := range gpus {
		if _, ok := numbers[g.PCI]; ok {
			continue
		}
		changed = true
		if g.Minor < 0 || taken[g.Minor] {
			homeless = append(homeless, g)
			continue
		}
		numbers[g.PCI] = g.Minor
		taken[g.Minor] = true
	}
	next := 0
	for _, g := range homeless {
		for taken[next] {
			next++
		}
		numbers[g.PCI] = next
		taken[next] = true
	}
	return numbers, changed
}

// replaceFile puts content at path in one step: a reader, or a reboot, sees
// the old content or the new. What a writer that is killed leaves behind is
// overwritten by the next one.
func replaceFile(path string, content []byte) error {
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
