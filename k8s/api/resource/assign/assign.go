package assign

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"nvdra/k8s/api/resource/v1beta1"
)

// A Group is the results of a claim that have one configuration in common.
type Group struct {
	// Config is normalized and valid, and fits every result of the group. It
	// is nil exactly when Admin is set.
	Config v1beta1.Config
	// Origin says where Config was written, for the beginning of an error:
	// `config 1 (from claim)` or `the defaults`.
	Origin string
	// Admin means that the results have admin access: their devices may be in
	// use elsewhere and must not be changed.
	Admin bool
	// Results is never empty, in the order of the claim's status.
	Results []Result
}

// A Result is one device that the claim was given.
type Result struct {
	resourceapi.DeviceRequestAllocationResult
	// Kind is what kindOf said about the device.
	Kind DeviceKind
}

// Assign groups those results of an allocated claim that belong to driver by
// the configuration they get. The groups are in the order of their first
// results. kindOf is asked once for each of these results; it may refuse one,
// for example because the device is not there any more.
//
// A number in an error, as in `config 2`, counts in the claim's
// status.allocation.devices.config, from 0.
func Assign(
	claim *resourceapi.ResourceClaim,
	driver string,
	kindOf func(resourceapi.DeviceRequestAllocationResult) (DeviceKind, error),
) ([]Group, error) {
	if claim == nil {
		return nil, errors.New("assign configurations: there is no claim")
	}
	groups, err := assign(claim, driver, kindOf)
	if err != nil {
		return nil, fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return groups, nil
}

func assign(
	claim *resourceapi.ResourceClaim,
	driver string,
	kindOf func(resourceapi.DeviceRequestAllocationResult) (DeviceKind, error),
) ([]Group, error) {
	if claim.Status.Allocation == nil {
		return nil, errors.New("it is not allocated")
	}
	configs, err := readConfigs(claim, driver)
	if err != nil {
		return nil, err
	}
	var groups []Group
	groupOf := make(map[string]int) // Origin and kind → index in groups
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != driver {
			continue
		}
		result := Result{DeviceRequestAllocationResult: r}
		if result.Kind, err = kindOf(r); err != nil {
			return nil, fmt.Errorf("device %q of pool %q for request %q: %w", r.Device, r.Pool, r.Request, err)
		}
		if result.Kind.defaults() == nil {
			return nil, fmt.Errorf("device %q of pool %q for request %q: it is a %s", r.Device, r.Pool, r.Request, result.Kind)
		}
		group, err := choose(configs, result)
		if err != nil {
			return nil, err
		}
		key := group.Origin
		if group.Config != nil {
			_, name := fits(group.Config)
			key += name // the defaults are one per kind
		}
		i, known := groupOf[key]
		if !known {
			i = len(groups)
			groupOf[key] = i
			groups = append(groups, group)
		}
		groups[i].Results = append(groups[i].Results, result)
	}
	return groups, nil
}

// choose is the group that the result belongs to, yet without results.
func choose(configs []config, result Result) (Group, error) {
	if result.AdminAccess != nil && *result.AdminAccess {
		for _, c := range configs {
			if c.forces(result.Request) && changesDevices(c.cfg) {
				return Group{}, fmt.Errorf("%s: %s cannot apply to request %q, which has admin access and sees devices that others use: "+
					"leave the request out of the configuration", c.where(), c.kindName, result.Request)
			}
		}
		return Group{Origin: "admin access", Admin: true}, nil
	}
	for _, c := range configs {
		if !c.reaches(result.Request) {
			continue
		}
		if c.fits == result.Kind {
			return Group{Config: c.cfg, Origin: c.origin}, nil
		}
		if c.forces(result.Request) {
			return Group{}, fmt.Errorf("%s: %s does not fit %q, which is a %s: use a configuration for this kind, or leave the request out",
				c.where(), c.kindName, result.Device, result.Kind)
		}
	}
	return Group{Config: result.Kind.defaults(), Origin: "the defaults"}, nil
}

// mainRequest is the request that a result's request string belongs to: "gpu"
// for "gpu" and for "gpu/small".
func mainRequest(request string) string {
	main, _, _ := strings.Cut(request, "/")
	return main
}

// reaches is whether requests, the list in a configuration, includes request,
// the string in a result.
func reaches(requests []string, request string) bool {
	return len(requests) == 0 || slices.Contains(requests, request) || slices.Contains(requests, mainRequest(request))
}
