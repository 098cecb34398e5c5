package step

import (
	"context"
	"encoding/json"
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/roles/internal/claims"
)

// driverFiles gives every container of a claim the driver's libraries,
// programs and control nodes.
type driverFiles struct{ Deps }

// Driver is the step for a claim that has any GPU or MIG device.
func Driver() (claims.Step, error) {
	return newStep(KindDriver, "driver", "", struct{}{})
}

// Passive: files are only looked for.
func (driverFiles) Passive() bool { return true }

// Do has nothing to do: Edits, which always follows, finds out whether the
// driver is complete, and that is not worth finding out twice.
func (driverFiles) Do(context.Context, claims.Step) (json.RawMessage, error) { return nil, nil }

// Undo has nothing to undo.
func (driverFiles) Undo(context.Context, claims.Step) error { return nil }

// Edits are the driver's files as they are now.
func (h driverFiles) Edits(ctx context.Context, _ claims.Step) (*cdispec.ContainerEdits, error) {
	edits, err := h.Files.Common(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", claims.ErrRetry, err)
	}
	return edits, nil
}
