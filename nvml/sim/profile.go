package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/txtar"

	"nvdra/nvml"
)

// A Profile is a machine on file: what gpusim needs to play it. It is read from
// a txtar archive whose member machine.json is this type; other members
// (proc/…, sys/…, etc/…) are put into the driver root as they are, and win over
// the files the simulator would write by itself.
type Profile struct {
	// Name is the file name without its extension.
	Name string `json:"-"`
	// Files are the members of the archive other than machine.json.
	Files map[string][]byte `json:"-"`

	Driver   string             `json:"driver"` // "580.95.05"
	CUDA     string             `json:"cuda"`   // "13.0"
	Products map[string]Product `json:"products,omitempty"`
	GPUs     []Board            `json:"gpus"` // in order of PCI address, which is NVML's order
}

// A Board is one GPU of a machine.
type Board struct {
	Product string    `json:"product"` // key in Profile.Products
	UUID    nvml.UUID `json:"uuid"`
	Minor   int       `json:"minor"` // N of /dev/nvidiaN
	PCI     string    `json:"pci"`   // "0000:65:00.0"
	// Parent is the path of the bridge above the GPU below sys/devices:
	// "pci0000:64/0000:64:01.0".
	Parent string  `json:"parent"`
	NUMA   int     `json:"numa"` // -1 when the machine does not say
	IOMMU  int     `json:"iommu"`
	Serial string  `json:"serial,omitempty"`
	Module int     `json:"module"` // GPU module id, 1 to 8 on an HGX board
	Fabric *Fabric `json:"fabric,omitempty"`
	// MIG is the MIG mode the machine starts with.
	MIG bool `json:"mig,omitempty"`
	// Devices are the MIG devices the machine starts with.
	Devices []BoardMIG `json:"devices,omitempty"`
}

// A BoardMIG is a MIG device that exists when the machine starts.
type BoardMIG struct {
	Profile string    `json:"profile"` // "3g.40gb"
	Start   int       `json:"start"`
	UUID    nvml.UUID `json:"uuid"`
}

// A Fabric is a GPU's place in an NVLink fabric.
type Fabric struct {
	Cluster string `json:"cluster"` // UUID of the cluster
	Clique  uint32 `json:"clique"`
	State   string `json:"state"` // "not started", "in progress" or "completed"
}

var (
	gpuUUIDForm  = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	migUUIDForm  = regexp.MustCompile(`^MIG-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	plainUUID    = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	pciForm      = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.0$`)
	parentForm   = regexp.MustCompile(`^pci[0-9a-f]{4}:[0-9a-f]{2}(/[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])*$`)
	versionForm  = regexp.MustCompile(`^[0-9]{3,4}\.[0-9]{1,4}(\.[0-9]{1,4})?$`)
	cudaForm     = regexp.MustCompile(`^([0-9]{1,2})\.([0-9])$`)
	fabricStates = map[string]int{"not started": 1, "in progress": 2, "completed": 3}
)

// ParseProfile reads a machine profile. The error lists everything that is wrong.
func ParseProfile(name string, data []byte) (*Profile, error) {
	archive := txtar.Parse(data)
	p := &Profile{Name: name, Files: map[string][]byte{}}
	found := false
	for _, f := range archive.Files {
		if f.Name == "machine.json" {
			if found {
				return nil, fmt.Errorf("read machine profile %s: it has two members machine.json; keep one", name)
			}
			found = true
			dec := json.NewDecoder(bytes.NewReader(f.Data))
			dec.DisallowUnknownFields()
			if err := dec.Decode(p); err != nil {
				return nil, fmt.Errorf("read machine profile %s: machine.json: %w", name, err)
			}
			continue
		}
		if !fs.ValidPath(f.Name) || path.Clean(f.Name) == "." {
			return nil, fmt.Errorf("read machine profile %s: member %q: the name must be a relative path such as proc/devices", name, f.Name)
		}
		p.Files[f.Name] = f.Data
	}
	if !found {
		return nil, fmt.Errorf("read machine profile %s: it has no member machine.json", name)
	}
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("read machine profile %s: %w", name, err)
	}
	return p, nil
}

// LoadProfile reads a machine profile by file name, or by name from the
// directories in dirs.
func LoadProfile(nameOrFile string, dirs ...string) (*Profile, error) {
	file := nameOrFile
	if !strings.HasSuffix(nameOrFile, ".txtar") {
		file = ""
		for _, dir := range dirs {
			if f := filepath.Join(dir, nameOrFile+".txtar"); exists(f) {
				file = f
				break
			}
		}
		if file == "" {
			return nil, fmt.Errorf("find machine %q: there is no %s.txtar in %s; known there: %s",
				nameOrFile, nameOrFile, strings.Join(dirs, ", "), strings.Join(ListProfiles(dirs...), ", "))
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read machine profile: %w", err)
	}
	return ParseProfile(strings.TrimSuffix(filepath.Base(file), ".txtar"), data)
}

// ListProfiles names the machines found in the directories.
func ListProfiles(dirs ...string) []string {
	var names []string
	for _, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(dir, "*.txtar")) // the pattern is well formed
		for _, f := range files {
			names = append(names, strings.TrimSuffix(filepath.Base(f), ".txtar"))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// validate reports everything that is wrong with the profile.
func (p *Profile) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !versionForm.MatchString(p.Driver) {
		bad("driver %q must look like 580.95.05", p.Driver)
	}
	if !cudaForm.MatchString(p.CUDA) {
		bad("cuda %q must look like 13.0", p.CUDA)
	}
	for _, key := range sortedKeys(p.Products) {
		product := p.Products[key]
		if err := product.validate(key); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	seen := map[string]int{}
	for i := range p.GPUs {
		b := &p.GPUs[i]
		if err := p.validateBoard(b); err != nil {
			errs = append(errs, fmt.Errorf("gpu %d: %w", i, err))
		}
		unique := []string{"uuid " + string(b.UUID), fmt.Sprint("minor ", b.Minor), "pci " + b.PCI}
		for _, d := range b.Devices {
			unique = append(unique, "uuid "+string(d.UUID))
		}
		for _, u := range unique {
			if first, taken := seen[u]; taken {
				bad("gpu %d: %s is taken by gpu %d", i, u, first)
			}
			seen[u] = i
		}
		if i > 0 && p.GPUs[i-1].PCI >= b.PCI {
			bad("gpu %d: %s is listed after %s; list GPUs in order of PCI address", i, b.PCI, p.GPUs[i-1].PCI)
		}
	}
	return errors.Join(errs...)
}

func (p *Profile) validateBoard(b *Board) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	product, ok := p.Products[b.Product]
	if !ok {
		return fmt.Errorf("unknown product %q; it must be a key of products", b.Product)
	}
	if !gpuUUIDForm.MatchString(string(b.UUID)) {
		bad("uuid %q must look like GPU-01234567-89ab-cdef-0123-456789abcdef", b.UUID)
	}
	if b.Minor < 0 || b.Minor >= GPUsWithMinors {
		bad("minor %d must be 0 to %d", b.Minor, GPUsWithMinors-1)
	}
	if !pciForm.MatchString(b.PCI) {
		bad("pci %q must look like 0000:65:00.0", b.PCI)
	}
	if !parentForm.MatchString(b.Parent) {
		bad("parent %q must look like pci0000:64/0000:64:01.0", b.Parent)
	}
	if b.NUMA < -1 || b.NUMA > 1023 || b.IOMMU < 0 || b.IOMMU > 1<<20 || b.Module < 0 || b.Module > 64 {
		bad("numa %d, iommu %d or module %d out of range", b.NUMA, b.IOMMU, b.Module)
	}
	if strings.ContainsFunc(b.Serial, notPrintable) || len(b.Serial) > 29 {
		bad("serial %q must have at most 29 printable characters", b.Serial)
	}
	if f := b.Fabric; f != nil {
		if _, ok := fabricStates[f.State]; !ok {
			bad("fabric state %q must be \"not started\", \"in progress\" or \"completed\"", f.State)
		}
		if !plainUUID.MatchString(f.Cluster) {
			bad("fabric cluster %q must be a UUID", f.Cluster)
		}
	}
	if b.MIG && product.MIG == nil {
		bad("MIG mode is on but product %q has no mig table", b.Product)
		return errors.Join(errs...)
	}
	if len(b.Devices) > 0 && !b.MIG {
		bad("has MIG devices but MIG mode is off")
		return errors.Join(errs...)
	}
	occupied := newGPUState(b)
	for _, d := range b.Devices {
		if !migUUIDForm.MatchString(string(d.UUID)) {
			bad("MIG device %s: uuid %q must look like MIG-01234567-89ab-cdef-0123-456789abcdef", d.Profile, d.UUID)
		}
		if _, err := addDevice(&occupied, product.MIG, d); err != nil {
			bad("MIG device %s at slice %d: %w", d.Profile, d.Start, err)
		}
	}
	return errors.Join(errs...)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// cudaNumber is the CUDA version as NVML counts it: 13.0 is 13000.
func (p *Profile) cudaNumber() int {
	m := cudaForm.FindStringSubmatch(p.CUDA)
	if m == nil {
		return 0
	}
	major, minor := 0, 0
	fmt.Sscan(m[1], &major) // both are digits
	fmt.Sscan(m[2], &minor)
	return major*1000 + minor*10
}
