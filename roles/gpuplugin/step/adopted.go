package step

import (
	"context"
	"encoding/json"
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/roles/internal/claims"
)

// adopted gives a container what the program that prepared its claim before us
// had given it, where no step of ours could work it out: the pipe of an MPS
// daemon, a VFIO group. It changes nothing on the node, and undoes nothing of
// what the other program changed.
type adopted struct{}

// wantAdopted are the container edits that the other program had written. What
// they name was set up for this claim and stays until it ends, within one boot.
type wantAdopted struct {
	What  string                  `json:"what"`            // in words, for people
	Edits *cdispec.ContainerEdits `json:"edits,omitempty"` // nil if they were gone already
}

// Adopted is the step for something that another program set up for a claim.
// With a device the edits are those of the device, without they are common.
func Adopted(claimUID, deviceName, what string, edits *cdispec.ContainerEdits) (claims.Step, error) {
	return newStep(KindAdopted, claimUID+"/"+deviceName, deviceName, wantAdopted{What: what, Edits: edits})
}

// Passive: everything was done by somebody else.
func (adopted) Passive() bool { return true }

// Do has nothing to do.
func (adopted) Do(context.Context, claims.Step) (json.RawMessage, error) { return nil, nil }

// Undo has nothing to undo.
func (adopted) Undo(context.Context, claims.Step) error { return nil }

// Edits are those of the other program.
func (adopted) Edits(_ context.Context, s claims.Step) (*cdispec.ContainerEdits, error) {
	want, err := decode[wantAdopted](s)
	if err != nil {
		return nil, err
	}
	if want.Edits == nil {
		return nil, fmt.Errorf("give %s: %w: the claim was prepared by another driver, and its CDI spec was gone when this one took over; delete the pod and the claim to have a new one prepared", want.What, claims.ErrPermanent)
	}
	return want.Edits, nil
}
