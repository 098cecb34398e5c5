package claims

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Planner turns an allocated claim into devices and steps. It looks only at
// allocation results of its own driver, must not touch the node, and gives the
// same plan for the same claim as long as the node has the same devices. A
// claim with nothing for it gets an empty plan. The engine calls it for many
// claims at once.
type Planner interface {
	Plan(claim *resourceapi.ResourceClaim) (Plan, error)
}

// A Plan is what a claim is to get and, in order, the steps to it.
type Plan struct {
	Devices []Device
	Steps   []Step
}

// A Device is one allocated device.
type Device struct {
	Requests []string   `json:"requests"` // the claim's requests it answers
	Pool     string     `json:"pool"`
	Name     string     `json:"name"`
	ShareID  *types.UID `json:"shareID,omitempty"` // tells shares of one device apart
	Type     string     `json:"type,omitempty"`    // gpu, mig, vfio: a label of metrics
	Admin    bool       `json:"admin,omitempty"`   // admin access: looks on, owns nothing

	// Occupies are the physical things the claim has to itself, as paths from
	// the whole to the part: "0000:65:00.0", "0000:65:00.0/3". No two claims
	// may have the same path, nor one a part of what the other has.
	Occupies []string `json:"occupies,omitempty"`
}

// Prepared is a device that is ready, with the CDI ids that kubelet passes to
// the container runtime. A device that changes nothing in a container has none.
type Prepared struct {
	Device
	CDIDevices []string `json:"cdiDevices,omitempty"`
}

// cdiName returns the name of the device in the claim's CDI spec. The UID
// makes it unique on the machine, the share ID among shares of one device.
func (d Device) cdiName(uid types.UID) string {
	name := string(uid) + "-" + d.Name
	if d.ShareID != nil {
		name += "-" + string(*d.ShareID)
	}
	return name
}

// checkPlan refuses a plan that could not be carried out, recorded or undone.
// It brings the steps into the form in which they are recorded. passive says
// of a kind of step whether it changes nothing, and whether it is known.
func checkPlan(p *Plan, passive func(kind string) (passive, known bool)) error {
	admin := map[string]bool{} // device name → has admin access only
	pools := map[string]string{}
	for _, d := range p.Devices {
		if err := d.check(); err != nil {
			return err
		}
		if pool, ok := pools[d.Name]; ok && pool != d.Pool {
			return fmt.Errorf("device %q: %w: it is in pool %q and in pool %q, and its CDI name can mean only one", d.Name, ErrPermanent, pool, d.Pool)
		}
		pools[d.Name] = d.Pool
		only, seen := admin[d.Name]
		admin[d.Name] = d.Admin && (only || !seen)
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		isPassive, known := passive(s.Kind)
		onlyAdmin, planned := admin[s.Device]
		switch {
		case !known:
			return fmt.Errorf("step %q: %w: nothing here handles this kind of step", s.Kind, ErrPermanent)
		case s.Key == "":
			return fmt.Errorf("step %s: %w: it does not say what it changes", s.Kind, ErrPermanent)
		case s.Device != "" && !planned:
			return fmt.Errorf("step %s: %w: it is for device %q, which is not in the plan", s.Kind, ErrPermanent, s.Device)
		case onlyAdmin && !isPassive:
			return fmt.Errorf("step %s: %w: it would change device %q, to which the claim has only admin access", s.Kind, ErrPermanent, s.Device)
		}
		want, err := canonical(s.Want)
		if err != nil {
			return fmt.Errorf("step %s: %w: what it wants is not JSON: %w", s.Kind, ErrPermanent, err)
		}
		s.Want, s.Begun, s.Result = want, false, nil
	}
	return nil
}

// check refuses a device that could not be named in a CDI spec or compared
// with others.
func (d Device) check() error {
	if d.Pool == "" {
		return fmt.Errorf("device %q: %w: it has no pool", d.Name, ErrPermanent)
	}
	if !nameable(d.Name) {
		return fmt.Errorf("device %.80q: %w: only letters, digits and any of ._:- can be in a device name", d.Name, ErrPermanent)
	}
	if d.ShareID != nil && !nameable(string(*d.ShareID)) {
		return fmt.Errorf("device %q: %w: share ID %.80q has more in it than letters, digits and any of ._:- allow", d.Name, ErrPermanent, *d.ShareID)
	}
	for _, key := range d.Occupies {
		for part := range strings.SplitSeq(key, "/") {
			if part == "" {
				return fmt.Errorf("device %q: %w: it occupies %q, which is not a path of names", d.Name, ErrPermanent, key)
			}
		}
	}
	return nil
}

// nameable reports whether s can be part of a CDI device name, and its end.
func nameable(s string) bool {
	alnum := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	}
	if s == "" || len(s) > 128 || !alnum(rune(s[len(s)-1])) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !alnum(r) && !strings.ContainsRune("._-:", r) })
}

// samePlan reports whether a recorded attempt was for the same plan, so that it
// can be continued. How far the attempt got does not matter.
func samePlan(recorded, planned *Record) bool {
	if len(recorded.Devices) != len(planned.Devices) || len(recorded.Steps) != len(planned.Steps) {
		return false
	}
	for i, d := range planned.Devices {
		// The record has been through JSON, which does not tell an empty list from none.
		a, errA := json.Marshal(d.Device)
		b, errB := json.Marshal(recorded.Devices[i].Device)
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			return false
		}
	}
	for i, s := range planned.Steps {
		r := recorded.Steps[i]
		if !s.same(r) || s.Device != r.Device || !reflect.DeepEqual(s.Want, r.Want) {
			return false
		}
	}
	return true
}

// canonical returns JSON in the one form in which equal values have equal
// bytes: no spaces, keys sorted, numbers as they were written. Nothing stays
// nothing.
func canonical(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("there is more after the first value")
	}
	return json.Marshal(v)
}
