// Package step holds what the GPU plugin gives to claims and the reversible
// changes it makes to a node for them.
//
// There is one file per kind. To add one, copy gpu.go, say what it does and
// how it is undone, and add it to [Handlers]. Then write
// testdata/scripts/gpuplugin/<kind>.txtar and <kind>_crash.txtar;
// TestEveryStepHasAScript will remind you.
package step

import (
	"context"
	"encoding/json"
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/nvml"
	"nvdra/nvml/host"
	"nvdra/roles/gpuplugin/device"
	"nvdra/roles/internal/claims"
)

// The kinds of step.
const (
	KindDriver    = "driver"    // the driver's files and control nodes
	KindGPU       = "gpu"       // a whole GPU
	KindMIGDevice = "migdevice" // a MIG device that exists
	KindAdopted   = "adopted"   // what another program set up
)

// Files says which of the driver's files and nodes a container needs. It is
// implemented by cdi.Driver; a test can have its own.
type Files interface {
	Common(ctx context.Context) (*cdispec.ContainerEdits, error)
	GPU(ctx context.Context, uuid string, minor int) (*cdispec.ContainerEdits, error)
}

// Machine says what a UUID stands for now.
type Machine interface {
	Device(ctx context.Context, uuid nvml.UUID) (device.Device, error)
}

// Deps is what the handlers work with.
type Deps struct {
	Files   Files
	Machine Machine
	Host    host.Host
}

// Handlers is every kind of step.
func Handlers(d Deps) map[string]claims.Handler {
	return map[string]claims.Handler{
		KindDriver:    driverFiles{d},
		KindGPU:       gpu{d},
		KindMIGDevice: migDevice{d},
		KindAdopted:   adopted{},
	}
}

// newStep is a step with its want encoded.
func newStep(kind, key, deviceName string, want any) (claims.Step, error) {
	raw, err := json.Marshal(want)
	if err != nil {
		return claims.Step{}, fmt.Errorf("plan step %s: %w", kind, err)
	}
	return claims.Step{Kind: kind, Key: key, Device: deviceName, Want: raw}, nil
}

// decode reads what a recorded step wanted.
func decode[T any](s claims.Step) (T, error) {
	var want T
	if err := json.Unmarshal(s.Want, &want); err != nil {
		return want, fmt.Errorf("read step %s: %w: %w", s.Kind, claims.ErrPermanent, err)
	}
	return want, nil
}
