package sim

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Product is one model of GPU: everything two boards of the same model have
// in common.
type Product struct {
	Name            string `json:"name"`         // as NVML names it: "NVIDIA H100 80GB HBM3"
	Brand           string `json:"brand"`        // "Nvidia", "Tesla", …
	Architecture    string `json:"architecture"` // "Hopper"
	Compute         string `json:"compute"`      // CUDA compute capability, "9.0"
	MemoryMiB       uint64 `json:"memoryMiB"`    // total, as nvidia-smi shows it
	ReservedMiB     uint64 `json:"reservedMiB"`  // kept back by driver and firmware
	Multiprocessors int    `json:"multiprocessors"`
	Device          string `json:"device"`    // PCI device id, "0x2330"
	Subsystem       string `json:"subsystem"` // PCI subsystem device id
	BAR1MiB         uint64 `json:"bar1MiB"`   // size of the memory window; a power of two
	// AddressingMode is "HMM", "ATS" or "None"; empty when this board does not
	// report one.
	AddressingMode string `json:"addressingMode,omitempty"`
	// MIG is nil on a product that cannot be divided.
	MIG *MIGTable `json:"mig,omitempty"`
}

// A MIGTable is how a product can be divided.
type MIGTable struct {
	MemorySlices int `json:"memorySlices"` // 8, or 4 on A30
	MaxDevices   int `json:"maxDevices"`   // what nvmlDeviceGetMaxMigDeviceCount answers
	// ResetToToggle says that MIG mode changes only at the next reset (Ampere).
	ResetToToggle bool         `json:"resetToToggle,omitempty"`
	Profiles      []MIGProfile `json:"profiles"`
}

// A MIGProfile is one size of GPU instance.
type MIGProfile struct {
	Name      string `json:"name"`      // "1g.10gb+me"
	Index     int    `json:"index"`     // NVML_GPU_INSTANCE_PROFILE_*
	ID        int    `json:"id"`        // as nvidia-smi mig -lgip lists it
	Slices    int    `json:"slices"`    // compute slices
	Instances int    `json:"instances"` // how many fit on an empty GPU
	MemoryMiB uint64 `json:"memoryMiB"`
	SM        int    `json:"sm"`
	CE        int    `json:"ce"`
	Dec       int    `json:"dec"`
	Enc       int    `json:"enc"`
	JPEG      int    `json:"jpeg"`
	OFA       int    `json:"ofa"`
	Starts    []int  `json:"starts"` // possible first memory slices, ascending
	Size      int    `json:"size"`   // memory slices occupied
}

// giProfileCount and ciProfileCount bound the profile numbers NVML knows.
const (
	giProfileCount = 18
	ciProfileCount = 9
)

// brands and architectures are NVML's numbers for the names profiles use.
var (
	brands = map[string]int{
		"Unknown": 0, "Quadro": 1, "Tesla": 2, "NVS": 3, "GeForce": 5, "Titan": 6,
		"QuadroRTX": 12, "NvidiaRTX": 13, "Nvidia": 14, "GeForceRTX": 15, "TitanRTX": 16,
	}
	architectures = map[string]int{
		"Kepler": 2, "Maxwell": 3, "Pascal": 4, "Volta": 5, "Turing": 6, "Ampere": 7,
		"Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10, "Rubin": 13, "Unknown": 0xffffffff,
	}
	addressingModes = map[string]int{"None": 0, "HMM": 1, "ATS": 2}
)

var (
	hexID       = regexp.MustCompile(`^0x[0-9a-f]{4}$`)
	computeForm = regexp.MustCompile(`^([0-9]{1,2})\.([0-9])$`)
	migName     = regexp.MustCompile(`^([0-9]+)g\.[0-9]+gb(\+me|\+me\.all|\+gfx|-me)?$`)
)

// computeCapability splits "9.0".
func (p *Product) computeCapability() (major, minor int) {
	m := computeForm.FindStringSubmatch(p.Compute)
	if m == nil {
		return 0, 0
	}
	major, _ = strconv.Atoi(m[1])
	minor, _ = strconv.Atoi(m[2])
	return major, minor
}

// deviceID is the PCI device id as a number.
func (p *Product) deviceID() uint32 { return parseHex(p.Device) }

// subsystemID is the PCI subsystem device id as a number.
func (p *Product) subsystemID() uint32 { return parseHex(p.Subsystem) }

// parseHex reads "0x2330"; validation has seen to it that it can.
func parseHex(s string) uint32 {
	n, _ := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 32)
	return uint32(n)
}

// validate reports everything that is wrong with the product.
func (p *Product) validate(key string) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("product %q: "+format, append([]any{key}, args...)...))
	}
	if p.Name == "" || len(p.Name) > 90 || strings.ContainsFunc(p.Name, notPrintable) {
		bad("name %q must have 1 to 90 printable characters", p.Name)
	}
	if _, ok := brands[p.Brand]; !ok {
		bad("unknown brand %q", p.Brand)
	}
	if _, ok := architectures[p.Architecture]; !ok {
		bad("unknown architecture %q", p.Architecture)
	}
	if !computeForm.MatchString(p.Compute) {
		bad("compute %q must look like 9.0", p.Compute)
	}
	if p.MemoryMiB == 0 || p.MemoryMiB > 1<<24 || p.ReservedMiB >= p.MemoryMiB {
		bad("memoryMiB %d must be positive and more than reservedMiB %d", p.MemoryMiB, p.ReservedMiB)
	}
	if p.BAR1MiB == 0 || p.BAR1MiB&(p.BAR1MiB-1) != 0 || p.BAR1MiB > 1<<24 {
		bad("bar1MiB %d must be a power of two", p.BAR1MiB)
	}
	if !hexID.MatchString(p.Device) || !hexID.MatchString(p.Subsystem) {
		bad("device %q and subsystem %q must look like 0x2330", p.Device, p.Subsystem)
	}
	if _, ok := addressingModes[p.AddressingMode]; !ok && p.AddressingMode != "" {
		bad("unknown addressingMode %q", p.AddressingMode)
	}
	if p.MIG != nil {
		if err := p.MIG.validate(p); err != nil {
			errs = append(errs, fmt.Errorf("product %q: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

// validate reports everything that is wrong with the table.
func (t *MIGTable) validate(p *Product) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("mig: "+format, args...)) }
	if t.MemorySlices < 1 || t.MemorySlices > 8 || t.MaxDevices < 1 || t.MaxDevices > 16 {
		bad("memorySlices %d must be 1 to 8 and maxDevices %d 1 to 16", t.MemorySlices, t.MaxDevices)
		return errors.Join(errs...)
	}
	whole := t.whole()
	if whole == nil {
		bad("no profile spans all %d memory slices from slice 0", t.MemorySlices)
		return errors.Join(errs...)
	}
	ids, indexes, names := map[int]bool{}, map[int]bool{}, map[string]bool{}
	for _, f := range t.Profiles {
		if ids[f.ID] || indexes[f.Index] || names[f.Name] {
			bad("profile %s: its name, id %d or index %d is taken", f.Name, f.ID, f.Index)
		}
		ids[f.ID], indexes[f.Index], names[f.Name] = true, true, true
		m := migName.FindStringSubmatch(f.Name)
		if m == nil || m[1] != strconv.Itoa(f.Slices) {
			bad("profile %q: the name must look like %dg.10gb", f.Name, f.Slices)
		}
		if f.ID < 0 || f.ID > 255 || f.Index < 0 || f.Index >= giProfileCount {
			bad("profile %s: id %d or index %d out of range", f.Name, f.ID, f.Index)
		}
		if _, ok := ciIndex[f.Slices]; !ok {
			bad("profile %s: no compute instance has %d slices", f.Name, f.Slices)
		}
		if f.Size < 1 || f.Size > t.MemorySlices || t.MemorySlices%f.Size != 0 {
			bad("profile %s: size %d does not divide %d memory slices", f.Name, f.Size, t.MemorySlices)
			continue
		}
		if len(f.Starts) == 0 || !slices.IsSorted(f.Starts) || f.Starts[0] < 0 || len(slices.Compact(slices.Clone(f.Starts))) != len(f.Starts) ||
			f.Starts[len(f.Starts)-1]+f.Size > t.MemorySlices {
			bad("profile %s: starts %v must be ascending, different and fit %d memory slices", f.Name, f.Starts, t.MemorySlices)
		}
		if slices.ContainsFunc(f.Starts, func(s int) bool { return s%f.Size != 0 }) {
			bad("profile %s: starts %v must be multiples of size %d", f.Name, f.Starts, f.Size)
		}
		if f.Instances < 1 || f.Instances > len(f.Starts) {
			bad("profile %s: instances %d must be 1 to %d, the number of starts", f.Name, f.Instances, len(f.Starts))
		}
		if f.MemoryMiB == 0 || f.MemoryMiB > p.MemoryMiB || f.MemoryMiB > whole.MemoryMiB {
			bad("profile %s: memoryMiB %d must be positive and at most that of %s", f.Name, f.MemoryMiB, whole.Name)
		}
		if f.SM < 1 || f.SM > p.Multiprocessors || f.Slices > whole.Slices || !whole.engines().covers(f.engines()) {
			bad("profile %s: has more engines or slices than %s", f.Name, whole.Name)
		}
	}
	return errors.Join(errs...)
}

// whole is the profile that takes the whole GPU.
func (t *MIGTable) whole() *MIGProfile {
	for i := range t.Profiles {
		if p := &t.Profiles[i]; p.Size == t.MemorySlices && len(p.Starts) == 1 && p.Starts[0] == 0 {
			return p
		}
	}
	return nil
}

// byID finds a profile by the number nvidia-smi lists.
func (t *MIGTable) byID(id int) *MIGProfile {
	for i := range t.Profiles {
		if t.Profiles[i].ID == id {
			return &t.Profiles[i]
		}
	}
	return nil
}

// byIndex finds a profile by NVML's enumeration.
func (t *MIGTable) byIndex(index int) *MIGProfile {
	for i := range t.Profiles {
		if t.Profiles[i].Index == index {
			return &t.Profiles[i]
		}
	}
	return nil
}

// instanceID is the number the driver gives a GPU instance: the instances form
// a binary tree over the memory slices, counted level by level. It is 0 for the
// whole GPU, 1 and 2 for its halves, 3 to 6 for quarters, 7 to 14 for eighths.
func (t *MIGTable) instanceID(start, size int) int {
	return t.MemorySlices/size - 1 + start/size
}

// engines counts what instances share out among them.
type engines struct{ sm, ce, dec, enc, jpeg, ofa int }

func (p *MIGProfile) engines() engines {
	return engines{p.SM, p.CE, p.Dec, p.Enc, p.JPEG, p.OFA}
}

func (e engines) plus(f engines) engines {
	return engines{e.sm + f.sm, e.ce + f.ce, e.dec + f.dec, e.enc + f.enc, e.jpeg + f.jpeg, e.ofa + f.ofa}
}

// covers says that f can be taken out of e.
func (e engines) covers(f engines) bool {
	return f.sm <= e.sm && f.ce <= e.ce && f.dec <= e.dec && f.enc <= e.enc && f.jpeg <= e.jpeg && f.ofa <= e.ofa
}

// notPrintable finds characters that would break a line or a field.
func notPrintable(r rune) bool { return r < 0x20 || r > 0x7e }
