package gpuplugin

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"nvdra/featuregates"
	"nvdra/k8s/api/resource/assign"
	"nvdra/k8s/api/resource/v1beta1"
	"nvdra/roles/gpuplugin/device"
	"nvdra/roles/gpuplugin/step"
	"nvdra/roles/internal/claims"
)

// A planner says what an allocated claim gets and by which steps. It looks at
// values only: the claim, the gates and the inventory of the moment.
type planner struct {
	pool      string // the node's name
	gates     featuregates.Set
	inventory func() *inventory
}

// Plan implements [claims.Planner].
func (p planner) Plan(claim *resourceapi.ResourceClaim) (claims.Plan, error) {
	inv := p.inventory()
	groups, err := assign.Assign(claim, device.DriverName, func(r resourceapi.DeviceRequestAllocationResult) (assign.DeviceKind, error) {
		return p.kindOf(inv, r)
	})
	if err != nil {
		return claims.Plan{}, fmt.Errorf("plan %w", err)
	}
	var plan claims.Plan
	for _, g := range groups {
		if err := p.permit(g); err != nil {
			return claims.Plan{}, fmt.Errorf("plan claim %s/%s: %s: %w: %w", claim.Namespace, claim.Name, g.Origin, claims.ErrPermanent, err)
		}
		for _, r := range g.Results {
			d := inv.byName[r.Device] // kindOf has found it
			s, err := use(d)
			if err != nil {
				return claims.Plan{}, err
			}
			plan.Devices = append(plan.Devices, claims.Device{
				Requests: []string{r.Request},
				Pool:     r.Pool,
				Name:     r.Device,
				ShareID:  r.ShareID,
				Type:     string(d.Kind()),
				Admin:    g.Admin,
				Occupies: d.Occupies(),
			})
			plan.Steps = append(plan.Steps, s)
		}
	}
	if len(plan.Devices) == 0 {
		return plan, nil // the claim has devices of other drivers only
	}
	driver, err := step.Driver()
	if err != nil {
		return claims.Plan{}, err
	}
	plan.Steps = append([]claims.Step{driver}, plan.Steps...)
	return plan, nil
}

// use is the step that gives the device to the claim as it is.
func use(d device.Device) (claims.Step, error) {
	switch d := d.(type) {
	case device.GPU:
		return step.GPU(d)
	case device.MIG:
		return step.MIGDevice(d)
	}
	return claims.Step{}, fmt.Errorf("plan %s: %w: nothing is known about devices of type %s", d.Name(), claims.ErrPermanent, d.Kind())
}

// kindOf finds the allocated device.
func (p planner) kindOf(inv *inventory, r resourceapi.DeviceRequestAllocationResult) (assign.DeviceKind, error) {
	if r.Pool != p.pool {
		return 0, fmt.Errorf("%w: the pool belongs to another node than %s", claims.ErrPermanent, p.pool)
	}
	d, ok := inv.byName[r.Device]
	if !ok {
		return 0, fmt.Errorf("%w: this node does not have the device now: it was removed, is lost, cannot be read, or its GPU was divided differently; delete the claim and its pod to get another one", claims.ErrRetry)
	}
	switch d.(type) {
	case device.GPU:
		return assign.GPU, nil
	case device.MIG:
		return assign.MIG, nil
	}
	return 0, fmt.Errorf("%w: nothing is known about devices of type %s", claims.ErrPermanent, d.Kind())
}

// permit refuses a configuration that this node does not carry out: because
// its feature gate is off, or because this version has no step for it.
func (p planner) permit(g assign.Group) error {
	if g.Config == nil {
		return nil // admin access
	}
	if err := v1beta1.CheckGate(g.Config, func(gate string) bool { return p.gates.Enabled(featuregates.Gate(gate)) }); err != nil {
		return err
	}
	if gate, what := v1beta1.RequiredGate(g.Config); gate != "" {
		return fmt.Errorf("%s, and feature gate %q is on, but this version of the driver cannot do it yet: remove the configuration", what, gate)
	}
	return nil
}
