package step

import (
	"context"
	"encoding/json"
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/nvml"
	"nvdra/roles/gpuplugin/device"
	"nvdra/roles/internal/claims"
)

// gpu gives a container a whole GPU.
type gpu struct{ Deps }

// wantGPU is the identity of a GPU. Its minor number is not part of it: that
// may be another one after a reboot.
type wantGPU struct {
	UUID nvml.UUID `json:"uuid"`
	PCI  string    `json:"pci"`
}

// GPU is the step for a GPU that was allocated.
func GPU(d device.GPU) (claims.Step, error) {
	return newStep(KindGPU, string(d.UUID()), d.Name(), wantGPU{UUID: d.UUID(), PCI: d.Parent().PCI})
}

// Passive: a GPU is handed over as it is.
func (gpu) Passive() bool { return true }

// Do checks that the GPU is there.
func (h gpu) Do(ctx context.Context, s claims.Step) (json.RawMessage, error) {
	_, err := h.find(ctx, s)
	return nil, err
}

// Undo has nothing to undo.
func (gpu) Undo(context.Context, claims.Step) error { return nil }

// Edits are the GPU's device nodes as they are now.
func (h gpu) Edits(ctx context.Context, s claims.Step) (*cdispec.ContainerEdits, error) {
	g, err := h.find(ctx, s)
	if err != nil {
		return nil, err
	}
	edits, err := h.Files.GPU(ctx, string(g.UUID), g.Minor)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", claims.ErrRetry, err)
	}
	return edits, nil
}

func (h gpu) find(ctx context.Context, s claims.Step) (nvml.GPU, error) {
	want, err := decode[wantGPU](s)
	if err != nil {
		return nvml.GPU{}, err
	}
	d, err := h.Machine.Device(ctx, want.UUID)
	if err != nil {
		return nvml.GPU{}, err
	}
	g := d.Parent()
	if g.PCI != want.PCI {
		return nvml.GPU{}, fmt.Errorf("find %s: %w: it is at %s now and was at %s when the claim was allocated", want.UUID, claims.ErrPermanent, g.PCI, want.PCI)
	}
	return g, nil
}
