// Package nvml says what the GPUs of one machine are, in the project's own
// types. It imports nothing but the standard library, so that the roles that
// reason about GPUs need neither a driver nor cgo.
//
// [Node] is the interface to a machine. Three things implement it: package
// driver (the real driver through NVML), package sim (a simulated machine,
// in process), and package driver again on top of the simulator's C library.
// Package nvmltest is the contract all of them pass.
//
//	node, err := driver.Open(driverRoot)
//	scan, err := node.Scan(ctx)
//	for _, gpu := range scan.GPUs { … }
package nvml

import (
	"context"
	"errors"
	"fmt"
)

// A UUID names a GPU ("GPU-…") or a MIG device ("MIG-…") for its whole life,
// across reboots and changes of minor number.
type UUID string

// A Node is the driver's view of the GPUs of one machine.
//
// All methods may be called from several goroutines. An implementation keeps
// its session with the driver only as long as it is useful, and opens a new
// one by itself when the driver has been restarted or replaced in between;
// callers never see a stale session, only [ErrDriver] while there is no
// driver.
//
// A call returns soon after its context has ended, with an error that wraps
// the context's, even while the driver hangs. What it was to change may have
// been changed then, or may still be.
type Node interface {
	// Scan reads every GPU of the machine and its MIG devices. A GPU that
	// cannot be read is reported in Scan.Broken and does not spoil the others.
	// The error is not nil only when nothing could be read at all: it wraps
	// [ErrDriver] when the driver is missing or does not answer. No GPUs is
	// not an error.
	Scan(ctx context.Context) (Scan, error)

	// GPU reads one GPU. It returns [ErrNotFound] for a GPU the driver does
	// not know and [ErrLost] for one that fell off the bus.
	GPU(ctx context.Context, gpu UUID) (GPU, error)

	// MIGProfiles lists what the GPU could be divided into, in order of
	// ProfileID: only profiles whose compute instance spans the whole GPU
	// instance. A GPU without MIG answers an empty list.
	MIGProfiles(ctx context.Context, gpu UUID) ([]MIGProfile, error)

	// SetMIGMode switches MIG mode. It returns the mode found afterwards: on
	// GPUs that need a reset first (Ampere) Enabled is unchanged and Pending
	// is what was asked for; so it is where something uses the GPU. It returns
	// [ErrInUse] while MIG devices exist and the mode is to be switched off, and
	// [ErrUnsupported] for a GPU that has no MIG mode.
	SetMIGMode(ctx context.Context, gpu UUID, enable bool) (MIGMode, error)

	// CreateMIG makes a GPU instance at the placement and one compute instance
	// that fills it. When the second half fails the first is taken back before
	// CreateMIG returns. It returns [ErrInUse] when the placement overlaps an
	// instance that exists, and [ErrUnsupported] while MIG mode is off.
	//
	// When ctx ends in the middle, or the process does, a GPU instance may be
	// left; once the driver has it, it shows in GPU.BrokenMIG until CreateMIG
	// with the same placement finishes it.
	CreateMIG(ctx context.Context, p Placement) (MIGDevice, error)

	// DestroyMIG removes the MIG device: its compute instance, then its GPU
	// instance. It returns [ErrNotFound] when no MIG device has that UUID and
	// [ErrInUse] while a process uses it.
	DestroyMIG(ctx context.Context, mig UUID) error

	// Close ends the session with the driver. The Node may be used again
	// afterwards; it then opens a new session.
	Close() error
}

// The kinds of failure a caller can act on. Test with [errors.Is].
var (
	// ErrDriver means that the driver is missing, being replaced, or does not
	// answer: nothing can be said about any GPU now.
	ErrDriver = errors.New("the NVIDIA driver does not answer")
	// ErrNotFound means that the driver knows no such GPU or MIG device.
	ErrNotFound = errors.New("not found")
	// ErrLost means that the GPU has fallen off the bus or is otherwise
	// inaccessible (NVML_ERROR_GPU_IS_LOST).
	ErrLost = errors.New("the GPU is lost")
	// ErrInUse means that something else occupies what was asked for.
	ErrInUse = errors.New("in use")
	// ErrUnsupported means that this GPU or driver cannot do what was asked.
	ErrUnsupported = errors.New("not supported")
)

// A Scan is what one reading of the machine found.
type Scan struct {
	Driver Driver
	GPUs   []GPU // in order of PCI address
	Broken []Broken
}

// A Driver is the version of the NVIDIA driver, as it reports itself.
type Driver struct {
	Version     string // "580.95.05"
	CUDAVersion int    // 13000 is CUDA 13.0 (nvmlSystemGetCudaDriverVersion_v2)
}

// A Broken GPU is one that exists but could not be read.
type Broken struct {
	Index int    // NVML index during this scan; means nothing later
	UUID  UUID   // "" when not even that could be read
	PCI   string // "" when unknown
	Err   error
}

// A GPU is one physical GPU. Only UUID, Minor and PCI are always known; every
// other field may be empty because an older driver or a special board does
// not report it.
type GPU struct {
	UUID         UUID
	Minor        int    // N of /dev/nvidiaN; stable within one boot only
	PCI          string // "0000:65:00.0": lower case, domain of at least 4 digits
	Product      string // "NVIDIA H100 80GB HBM3"
	Brand        string // "Nvidia", "Tesla", …
	Architecture string // "Hopper", "Ada Lovelace", …
	// ComputeMajor and ComputeMinor are the CUDA compute capability; both are
	// 0 when unknown.
	ComputeMajor, ComputeMinor int
	MemoryBytes                uint64 // 0 when the board does not report it
	AddressingMode             string // "HMM", "ATS", "None"; "" when not reported
	MIG                        MIGMode
	MIGDevices                 []MIGDevice // in order of placement; with their errors left out, see BrokenMIG
	// BrokenMIG holds an error for each MIG device of this GPU that exists but
	// could not be read or described: a GPU instance without compute instance,
	// a compute instance that does not fill its GPU instance.
	BrokenMIG []error
}

// A MIGMode is whether a GPU is divided.
type MIGMode struct {
	Capable bool // the GPU can be divided at all
	Enabled bool // it is in MIG mode now
	Pending bool // the mode it will have after the next reset
}

// A MIGProfile is one size of MIG device on one GPU, and where it fits.
type MIGProfile struct {
	Name       string // "1g.10gb", "1g.10gb+me"
	ProfileID  int    // as `nvidia-smi mig -lgip` lists it: 19 is 1g, 9 is 3g
	Slices     int    // compute slices
	Resources  MIGResources
	Placements []int // possible start memory slices, ascending
	Size       int   // memory slices occupied
}

// MIGResources is what a MIG device has of its GPU.
type MIGResources struct {
	MemoryMiB       uint64
	Multiprocessors int
	CopyEngines     int
	Decoders        int
	Encoders        int
	JPEGEngines     int
	OFAEngines      int
}

// A MIGDevice is a MIG device that exists: a GPU instance with a compute
// instance that fills it.
type MIGDevice struct {
	UUID      UUID
	Parent    UUID
	GPUInst   int // GPU instance id
	CompInst  int // compute instance id
	Profile   string
	ProfileID int
	Start     int // first memory slice
	Size      int // memory slices
	Resources MIGResources
	ParentMin int    // minor number of the parent, the N of gpuN below /proc/driver/nvidia/capabilities
	ParentPCI string // PCI address of the parent
}

// A Placement is a place on one GPU where a MIG device could be made.
type Placement struct {
	GPU       UUID
	ProfileID int
	Start     int
}

// String is the placement as messages show it.
func (p Placement) String() string {
	return fmt.Sprintf("MIG profile %d at slice %d of %s", p.ProfileID, p.Start, p.GPU)
}
