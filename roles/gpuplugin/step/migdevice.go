package step

import (
	"context"
	"encoding/json"
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/cdi"
	"nvdra/nvml"
	"nvdra/nvml/host"
	"nvdra/roles/gpuplugin/device"
	"nvdra/roles/internal/claims"
)

// capsDriver is what /proc/devices calls the driver's capability devices.
const capsDriver = "nvidia-caps"

// migDevice gives a container a MIG device that exists. It never makes or
// removes one: whoever made it decides.
type migDevice struct{ Deps }

// wantMIGDevice is the identity of a MIG device. A new one at the same place
// has another UUID.
type wantMIGDevice struct {
	UUID   nvml.UUID `json:"uuid"`
	Parent nvml.UUID `json:"parent"`
}

// MIGDevice is the step for a MIG device that was allocated.
func MIGDevice(d device.MIG) (claims.Step, error) {
	return newStep(KindMIGDevice, string(d.UUID()), d.Name(), wantMIGDevice{UUID: d.UUID(), Parent: d.Parent().UUID})
}

// Passive: the MIG device is handed over as it is.
func (migDevice) Passive() bool { return true }

// Do checks that the MIG device is there.
func (h migDevice) Do(ctx context.Context, s claims.Step) (json.RawMessage, error) {
	_, err := h.find(ctx, s)
	return nil, err
}

// Undo has nothing to undo.
func (migDevice) Undo(context.Context, claims.Step) error { return nil }

// Edits are the parent's device nodes and the two capability nodes of the MIG
// device. The latter are described by their numbers, since the driver makes
// the nodes themselves only when somebody asks.
func (h migDevice) Edits(ctx context.Context, s claims.Step) (*cdispec.ContainerEdits, error) {
	d, err := h.find(ctx, s)
	if err != nil {
		return nil, err
	}
	parent, m := d.Parent(), d.Device()
	nodes, err := h.Files.GPU(ctx, string(parent.UUID), parent.Minor)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", claims.ErrRetry, err)
	}
	major, err := h.Host.CharMajor(capsDriver)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", claims.ErrRetry, err)
	}
	gi, ci, err := h.Host.MIGCapabilities(parent.Minor, m.GPUInst, m.CompInst)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", claims.ErrRetry, err)
	}
	caps, err := cdi.MIGNodes(capNode(major, gi), capNode(major, ci))
	if err != nil {
		return nil, err
	}
	edits := cdi.Merge(*nodes, *caps)
	return &edits, nil
}

func capNode(major int, c host.Capability) cdi.CapNode {
	return cdi.CapNode{Major: int64(major), Minor: int64(c.Minor), Mode: c.Mode}
}

func (h migDevice) find(ctx context.Context, s claims.Step) (device.MIG, error) {
	want, err := decode[wantMIGDevice](s)
	if err != nil {
		return device.MIG{}, err
	}
	d, err := h.Machine.Device(ctx, want.UUID)
	if err != nil {
		return device.MIG{}, err
	}
	m, ok := d.(device.MIG)
	if !ok {
		return device.MIG{}, fmt.Errorf("find %s: %w: it is a %s, not a MIG device", want.UUID, claims.ErrPermanent, d.Kind())
	}
	return m, nil
}
