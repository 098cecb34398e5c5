package cdi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// ErrNotReady is wrapped while the driver, or a device node of it, is not
// there or does not answer. The same call may succeed later; nothing that was
// found incomplete is remembered.
var ErrNotReady = errors.New("NVIDIA driver is not ready")

// hidden stops a legacy NVIDIA runtime from adding, on top of the claim's
// devices, all GPUs that the image's variables ask for.
const hidden = "NVIDIA_VISIBLE_DEVICES=void"

// forgetAfter bounds how long a change that fingerprint does not see, say one
// more configuration file of the driver, can stay unnoticed.
const forgetAfter = 5 * time.Minute

// Config says where the driver is, as this process sees it and as the
// container runtime on the host sees it.
type Config struct {
	// ContainerRoot is the driver root as this process sees it: a directory
	// that has the driver's libraries and programs in it or below usr.
	ContainerRoot string

	// HostRoot is the same directory on the host: / where the driver is
	// installed on the host, /run/nvidia/driver for a driver container.
	HostRoot string

	// DevRoot is the directory with the dev directory of the driver's device
	// nodes, as this process sees it, and HostDevRoot is the same on the host.
	// Usually both are empty; then the driver root is taken if it has a dev
	// directory, otherwise the / of this process, which stands for that of
	// the host.
	DevRoot     string
	HostDevRoot string

	// HookPath is the hook program on the host; see [InstallHook].
	HookPath string

	// MachineRoot is where the kernel's proc is found. It is / when empty, and
	// another directory for a simulated machine.
	MachineRoot string
}

// A Driver knows which files and device nodes of the installed NVIDIA driver a
// container needs. It looks again whenever the driver has been replaced. Its
// methods may be called from several goroutines; what several need at once is
// found out once.
type Driver struct {
	config Config

	asking   sync.Mutex         // held while nvcdi is at work
	mu       sync.Mutex         // guards known
	known    map[string]finding // by UUID of a GPU; "" for what is common to all
	lastSeen sync.Map           // UUID of a GPU → its name below /proc/driver/nvidia/gpus the last time
}

// A finding is what nvcdi said and under which circumstances.
type finding struct {
	edits       specs.ContainerEdits
	fingerprint string
	until       time.Time
}

// NewDriver checks the configuration. It does not look for the driver, which
// may be installed later.
func NewDriver(c Config) (*Driver, error) {
	for _, p := range []struct{ name, value string }{
		{"driver root", c.ContainerRoot}, {"driver root on the host", c.HostRoot}, {"hook program", c.HookPath},
	} {
		if !filepath.IsAbs(p.value) {
			return nil, fmt.Errorf("configure CDI: %w %s %q: want an absolute path", ErrInvalid, p.name, p.value)
		}
	}
	if (c.DevRoot == "") != (c.HostDevRoot == "") {
		return nil, fmt.Errorf("configure CDI: %w dev root: it is %q here and %q on the host; set both or none", ErrInvalid, c.DevRoot, c.HostDevRoot)
	}
	if c.DevRoot != "" && (!filepath.IsAbs(c.DevRoot) || !filepath.IsAbs(c.HostDevRoot)) {
		return nil, fmt.Errorf("configure CDI: %w dev root %q or %q: want absolute paths", ErrInvalid, c.DevRoot, c.HostDevRoot)
	}
	c.ContainerRoot, c.HostRoot = filepath.Clean(c.ContainerRoot), filepath.Clean(c.HostRoot)
	if c.ContainerRoot == "/" && c.HostRoot != "/" {
		return nil, fmt.Errorf("configure CDI: %w driver root: the host's %s cannot be / here, where device nodes and our own files are; mount it somewhere below", ErrInvalid, c.HostRoot)
	}
	if c.MachineRoot == "" {
		c.MachineRoot = "/"
	}
	return &Driver{config: c, known: map[string]finding{}}, nil
}

// Common returns the edits every container with a GPU needs: the driver's
// libraries, programs and sockets, its control nodes, and the hooks that make
// them work. The error wraps [ErrNotReady] when the driver or one of the
// control nodes is missing. The caller owns the result.
func (d *Driver) Common(ctx context.Context) (*specs.ContainerEdits, error) {
	edits, err := d.find(ctx, question{
		nodes: []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"},
		ask: func(cdi nvcdi.Interface) (specs.ContainerEdits, error) {
			edits, err := cdi.GetCommonEdits()
			if err != nil {
				return specs.ContainerEdits{}, err
			}
			return Merge(*edits.ContainerEdits, specs.ContainerEdits{Env: []string{hidden}}), nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("find driver files for containers: %w", err)
	}
	return edits, nil
}

// GPU returns the edits that give a container the GPU with this UUID. The
// minor number is that of the GPU now, just read from the driver and not from
// a record: it changes when GPUs are taken away and come back. A GPU whose node
// is missing, or has another number by now, is an [ErrNotReady]. The caller
// owns the result.
func (d *Driver) GPU(ctx context.Context, uuid string, minor int) (*specs.ContainerEdits, error) {
	if uuid == "" || minor < 0 {
		return nil, fmt.Errorf("find device nodes of GPU %q with minor number %d: %w", uuid, minor, ErrInvalid)
	}
	edits, err := d.find(ctx, question{
		uuid:  uuid,
		minor: minor,
		nodes: []string{fmt.Sprintf("/dev/nvidia%d", minor)},
		ask: func(cdi nvcdi.Interface) (specs.ContainerEdits, error) {
			devices, err := cdi.GetDeviceSpecsByID(uuid)
			if err != nil {
				return specs.ContainerEdits{}, err
			}
			if len(devices) == 0 {
				return specs.ContainerEdits{}, errors.New("the driver does not know it")
			}
			return Merge(devices[0].ContainerEdits), nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("find device nodes of GPU %s: %w", uuid, err)
	}
	return edits, nil
}

// A question is something nvcdi is asked.
type question struct {
	uuid  string   // of the GPU it is about, or empty
	minor int      // of that GPU
	nodes []string // device nodes that the answer must have
	ask   func(nvcdi.Interface) (specs.ContainerEdits, error)
}

// find answers a question, from memory if the driver is still the same.
func (d *Driver) find(ctx context.Context, q question) (*specs.ContainerEdits, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	// The look is most of the work, and claims prepared at the same time look at
	// the same time.
	before, err := d.look(q)
	if err != nil {
		return nil, err
	}
	if edits, ok := d.remembered(q, before); ok {
		return edits, nil
	}
	d.asking.Lock()
	defer d.asking.Unlock()
	if before, err = d.look(q); err != nil {
		return nil, err
	}
	if edits, ok := d.remembered(q, before); ok {
		return edits, nil // whoever had the lock has asked
	}
	edits, err := d.ask(q, before)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	after, err := d.look(q)
	if err != nil {
		return nil, err
	}
	if after.fingerprint != before.fingerprint {
		return nil, fmt.Errorf("%w: it is being replaced; its files changed while they were read", ErrNotReady)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[q.uuid] = finding{edits: Clone(edits), fingerprint: before.fingerprint, until: time.Now().Add(forgetAfter)}
	return &edits, nil
}

// remembered is the answer to a question if it was given in the same surroundings,
// not too long ago. Another one is forgotten.
func (d *Driver) remembered(q question, in surroundings) (*specs.ContainerEdits, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.known[q.uuid]
	if !ok || f.fingerprint != in.fingerprint || !time.Now().Before(f.until) {
		delete(d.known, q.uuid)
		return nil, false
	}
	edits := Clone(f.edits)
	return &edits, true
}

// ask has nvcdi answer a question and makes sure the answer is complete.
func (d *Driver) ask(q question, in surroundings) (edits specs.ContainerEdits, err error) {
	defer func() {
		// See facts: a newer nvcdi could ask more of NVML than it is told here.
		if p := recover(); p != nil {
			err = fmt.Errorf("ask nvcdi: it needs a fact about the driver that it is not given: %v", p)
		}
	}()
	// nvcdi remembers the driver's version and directories itself, so a new
	// driver needs a new one.
	cdi, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithLogger(silent{}),
		nvcdi.WithNvmlLib(facts{version: in.version, gpu: gpuFacts{uuid: q.uuid, minor: q.minor, pci: in.pci}}),
		nvcdi.WithDriverRoot(in.driver.inside),
		nvcdi.WithDevRoot(in.dev.inside),
		nvcdi.WithNVIDIACDIHookPath(d.config.HookPath),
		nvcdi.WithVendor(ClaimVendor),
		nvcdi.WithClass(ClaimClass),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		// This hook loads NVML, which the statically linked hook program
		// cannot do on a host with another C library.
		nvcdi.WithDisabledHooks("apply-cuda-memory-limits"),
	)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	edits, err = q.ask(cdi)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	// nvcdi only warns of a node that it does not find.
	for _, path := range q.nodes {
		if !slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == path }) {
			return specs.ContainerEdits{}, fmt.Errorf("device node %s has just gone", path)
		}
	}
	toHost(&edits, in.driver, in.dev)
	return edits, nil
}

// silent is the log of nvcdi: its warnings are either checked for here, and
// then are errors, or say that an optional file is not there.
type silent struct{}

func (silent) Debugf(string, ...any)   {}
func (silent) Errorf(string, ...any)   {}
func (silent) Infof(string, ...any)    {}
func (silent) Tracef(string, ...any)   {}
func (silent) Warningf(string, ...any) {}
