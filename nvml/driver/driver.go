// Package driver is the real [nvml.Node]: the GPUs of this machine as the
// NVIDIA driver shows them through NVML.
//
//	if driver.IsChild() { // before anything else
//		return driver.ServeChild()
//	}
//
//	node := driver.Open("/run/nvidia/driver")
//	scan, err := node.Scan(ctx)
//
// # Why NVML runs in a child process
//
// The library belongs to whatever driver is installed now, and it comes and
// goes with it. Inside a long-lived process that cannot be made safe: what
// the process has once called in one libnvidia-ml.so stays bound to it for
// good (the dynamic linker never unloads a library that the main program
// refers to), so after an upgrade every call would still end in the old one;
// and a function that the installed library lacks ends the whole process.
// Therefore a [Node] starts its own program again under the name [ChildName],
// and only that child loads the library. It also means that
//
//   - an idle plugin holds no device file and no mapping of the driver: the
//     child goes away [DefaultIdle] after the last call, and the driver can be
//     reset, put into MIG mode or replaced;
//   - a call that hangs in the driver can be given up when its context ends,
//     and does not take the plugin with it;
//   - several roots can be looked at by one process.
//
// A program that calls Open must therefore ask [IsChild] before anything else;
// a test program does so in TestMain. When the parent dies, however that may
// be, the child ends at once.
//
// # What is tolerated
//
// Only UUID, minor number and PCI address of a GPU must be readable. Every
// other query may be missing from the library or not be supported by the
// board; the field then stays empty. Any other answer makes that one GPU
// broken, see [nvml.Scan], and no other.
package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nvdra/nvml"
)

// DefaultIdle is how long a session with the driver is kept after the last
// call. Long enough that the calls of one claim share a session, short enough
// that whoever wants to reset a GPU does not wait for an idle plugin.
const DefaultIdle = 5 * time.Second

// An Option changes what Open does by default.
type Option func(*Node)

// LibraryPath names the NVML library, as a path below the driver root. By
// default it is searched in the usual places.
func LibraryPath(path string) Option { return func(n *Node) { n.library.path = path } }

// Idle changes how long a session is kept after the last call.
func Idle(d time.Duration) Option { return func(n *Node) { n.idle = d } }

// Setting is how the user calls the value that was given to Open as root, for
// the error message when there is no driver. The default is
// "--driver-root or DRIVER_ROOT".
func Setting(name string) Option { return func(n *Node) { n.library.setting = name } }

// Open is the driver below root. It starts nothing and never fails: a driver
// that is not there yet may come later, and until then every method answers
// [nvml.ErrDriver].
func Open(root string, opts ...Option) *Node {
	n := &Node{library: newLibrary(root), idle: DefaultIdle, argv0: "/proc/self/exe"}
	for _, opt := range opts {
		opt(n)
	}
	return n
}

var _ nvml.Node = (*Node)(nil)

// Scan implements [nvml.Node].
func (n *Node) Scan(ctx context.Context) (nvml.Scan, error) {
	var scan wireScan
	if err := n.call(ctx, request{Op: opScan}, &scan); err != nil {
		return nvml.Scan{}, fmt.Errorf("scan GPUs: %w", err)
	}
	return scan.scan(), nil
}

// GPU implements [nvml.Node].
func (n *Node) GPU(ctx context.Context, gpu nvml.UUID) (nvml.GPU, error) {
	var g wireGPU
	if err := n.call(ctx, request{Op: opGPU, UUID: gpu}, &g); err != nil {
		return nvml.GPU{}, fmt.Errorf("read %s: %w", gpu, err)
	}
	return g.gpu(), nil
}

// MIGProfiles implements [nvml.Node].
func (n *Node) MIGProfiles(ctx context.Context, gpu nvml.UUID) ([]nvml.MIGProfile, error) {
	var profiles []nvml.MIGProfile
	if err := n.call(ctx, request{Op: opProfiles, UUID: gpu}, &profiles); err != nil {
		return nil, fmt.Errorf("list MIG profiles of %s: %w", gpu, err)
	}
	return profiles, nil
}

// SetMIGMode implements [nvml.Node].
func (n *Node) SetMIGMode(ctx context.Context, gpu nvml.UUID, enable bool) (nvml.MIGMode, error) {
	var mode nvml.MIGMode
	if err := n.call(ctx, request{Op: opMode, UUID: gpu, Enable: enable}, &mode); err != nil {
		return mode, fmt.Errorf("switch MIG mode of %s %s: %w", gpu, onOff(enable), err)
	}
	return mode, nil
}

// CreateMIG implements [nvml.Node]. A GPU instance without compute instance
// that already stands at the very placement, with the very profile, is what a
// process killed between the two halves leaves behind: it is finished instead
// of refused.
func (n *Node) CreateMIG(ctx context.Context, p nvml.Placement) (nvml.MIGDevice, error) {
	var device nvml.MIGDevice
	if err := n.call(ctx, request{Op: opCreate, Placement: p}, &device); err != nil {
		return nvml.MIGDevice{}, fmt.Errorf("create %s: %w", p, err)
	}
	return device, nil
}

// DestroyMIG implements [nvml.Node].
func (n *Node) DestroyMIG(ctx context.Context, mig nvml.UUID) error {
	if err := n.call(ctx, request{Op: opDestroy, UUID: mig}, nil); err != nil {
		return fmt.Errorf("destroy %s: %w", mig, err)
	}
	return nil
}

// Close ends the session with the driver. Calls that are running end first:
// then the session ends with the last of them, after Close has returned.
func (n *Node) Close() error {
	n.mu.Lock()
	c := n.child
	n.child = nil
	n.mu.Unlock()
	if c == nil {
		return nil
	}
	c.retire()
	if err := c.waitIfEnding(closeGrace); err != nil {
		return fmt.Errorf("close NVML session: %w", err)
	}
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// errNoChild is what a program gets that calls Open but not IsChild.
var errNoChild = errors.New("this program does not call driver.IsChild first, so it cannot be its own NVML child")
