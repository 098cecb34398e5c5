package assign

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"nvdra/k8s/api/resource/v1beta1"
)

// A config is one configuration of the claim's allocation.
type config struct {
	cfg      v1beta1.Config
	kindName string     // of cfg: "GpuConfig"
	fits     DeviceKind // of device
	origin   string     // "config 2 (from claim)"
	requests []string   // that it was allocated for; empty means all
	named    []string   // that the claim's author wrote; empty for a class
}

// reaches is whether the configuration is for a result with this request.
func (c config) reaches(request string) bool { return reaches(c.requests, request) }

// forces is whether the author of the claim wrote down just this request, so
// that there is no doubt about what was meant.
func (c config) forces(request string) bool { return slices.Contains(c.named, request) }

// where is the beginning of an error about the configuration.
func (c config) where() string { return c.origin + " " + forRequests(c.requests) }

func forRequests(requests []string) string {
	switch len(requests) {
	case 0:
		return "for all requests"
	case 1:
		return fmt.Sprintf("for request %q", requests[0])
	default:
		quoted := make([]string, len(requests))
		for i, r := range requests {
			quoted[i] = fmt.Sprintf("%q", r)
		}
		return "for requests " + strings.Join(quoted, ", ")
	}
}

// readConfigs is the configurations of driver in the claim's allocation, the
// one that wins first.
func readConfigs(claim *resourceapi.ResourceClaim, driver string) ([]config, error) {
	var fromClass, fromClaim []config
	for i, a := range claim.Status.Allocation.Devices.Config {
		where := fmt.Sprintf("config %d %s", i, forRequests(a.Requests))
		if a.Opaque == nil {
			// A kind of configuration that was invented after this release.
			// Whether it is for this driver cannot be seen, so it cannot be
			// left out either.
			return nil, fmt.Errorf("%s: it is not opaque, and this driver knows no other form", where)
		}
		if a.Opaque.Driver != driver {
			continue
		}
		c := config{requests: a.Requests}
		switch a.Source {
		case resourceapi.AllocationConfigSourceClass:
			c.origin = fmt.Sprintf("config %d (from class)", i)
		case resourceapi.AllocationConfigSourceClaim:
			c.origin = fmt.Sprintf("config %d (from claim)", i)
			c.named = namedRequests(claim, a)
		default:
			return nil, fmt.Errorf("%s: its source is %q, but must be %s or %s",
				where, a.Source, resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim)
		}
		var err error
		if c.cfg, err = v1beta1.DecodeConfig(a.Opaque.Parameters.Raw); err != nil {
			return nil, fmt.Errorf("%s: %w", c.where(), err)
		}
		c.fits, c.kindName = fits(c.cfg)
		c.cfg.Normalize()
		if err := c.cfg.Validate(); err != nil {
			return nil, fmt.Errorf("%s: invalid %s: %w", c.where(), c.kindName, err)
		}
		if a.Source == resourceapi.AllocationConfigSourceClaim {
			fromClaim = append(fromClaim, c)
		} else {
			fromClass = append(fromClass, c)
		}
	}
	slices.Reverse(fromClaim)
	slices.Reverse(fromClass)
	return append(fromClaim, fromClass...), nil
}

// namedRequests is the requests that the author of the claim wrote into a
// configuration. The allocation alone does not tell: when a list covers all
// requests of the claim, the scheduler of Kubernetes 1.37 empties it, and
// `requests: [gpu]` looks as if nobody had named anything. The claim's spec
// still has the list.
func namedRequests(claim *resourceapi.ResourceClaim, a resourceapi.DeviceAllocationConfiguration) []string {
	if len(a.Requests) > 0 {
		return a.Requests
	}
	var named []string
	for _, s := range claim.Spec.Devices.Config {
		if s.Opaque == nil || s.Opaque.Driver != a.Opaque.Driver || !sameJSON(s.Opaque.Parameters.Raw, a.Opaque.Parameters.Raw) {
			continue
		}
		if len(s.Requests) == 0 {
			return nil // this may be the one, and then nothing was named
		}
		named = append(named, s.Requests...)
	}
	return named
}

// sameJSON compares by meaning: on its way through the API server and the
// scheduler JSON may be written anew.
func sameJSON(a, b []byte) bool {
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)); err != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}
