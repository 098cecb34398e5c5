package claims

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/cdi"
)

// spec is what a claim's CDI spec should say.
type spec struct {
	devices []cdispec.Device
	common  cdispec.ContainerEdits
	print   string // differs when the rest differs
}

// specOf asks the handlers of all steps what the container sees of them. Edits
// of steps for a device go to the device, those of other steps to all devices.
func (e *Engine) specOf(ctx context.Context, r *Record) (spec, error) {
	var common cdispec.ContainerEdits
	own := map[string]*cdispec.ContainerEdits{} // by device name: shares look alike
	for _, d := range r.Devices {
		own[d.Name] = &cdispec.ContainerEdits{}
	}
	for _, s := range r.Steps {
		edits, err := e.editsOf(ctx, s)
		if err != nil {
			return spec{}, fmt.Errorf("container edits of step %s: %w", s.Kind, err)
		}
		if edits == nil {
			continue
		}
		to := &common
		if s.Device != "" {
			if to = own[s.Device]; to == nil {
				return spec{}, fmt.Errorf("container edits of step %s: %w: the claim has no device %q", s.Kind, ErrPermanent, s.Device)
			}
		}
		if err := merge(to, edits); err != nil {
			return spec{}, fmt.Errorf("container edits of step %s: %w", s.Kind, err)
		}
	}
	return assemble(r, own, common)
}

// editsOf asks the handler of one step.
func (e *Engine) editsOf(ctx context.Context, s Step) (*cdispec.ContainerEdits, error) {
	h, err := e.handler(s)
	if err != nil {
		return nil, err
	}
	editor, ok := h.(Editor)
	if !ok {
		return nil, nil
	}
	var edits *cdispec.ContainerEdits
	err = guard(func() (err error) {
		edits, err = editor.Edits(ctx, s)
		return err
	})
	return edits, err
}

// assemble builds the spec. CDI forbids a device with empty edits, and common
// edits come only with a device. So a device without edits of its own is left
// out if there are no common ones, and otherwise all devices carry the common
// edits themselves.
func assemble(r *Record, own map[string]*cdispec.ContainerEdits, common cdispec.ContainerEdits) (spec, error) {
	out := spec{common: common}
	if !cdi.IsEmpty(common) && slices.ContainsFunc(r.Devices, func(d Prepared) bool { return cdi.IsEmpty(*own[d.Name]) }) {
		out.common = cdispec.ContainerEdits{}
		for _, edits := range own {
			whole := cdi.Clone(common)
			if err := merge(&whole, edits); err != nil {
				return spec{}, err
			}
			*edits = whole
		}
	}
	named := map[string]bool{}
	for _, d := range r.Devices {
		// Two requests may have been given the same device, one for looking on.
		if name := d.cdiName(r.UID); !named[name] && !cdi.IsEmpty(*own[d.Name]) {
			named[name] = true
			out.devices = append(out.devices, cdispec.Device{Name: name, ContainerEdits: *own[d.Name]})
		}
	}
	if len(out.devices) == 0 {
		out.common = cdispec.ContainerEdits{}
	}
	data, err := json.Marshal(cdispec.Spec{Devices: out.devices, ContainerEdits: out.common})
	if err != nil {
		return spec{}, fmt.Errorf("encode CDI spec: %w", err)
	}
	out.print = fmt.Sprintf("%x", sha256.Sum256(data))[:32]
	return out, nil
}

// merge adds edits to others.
func merge(to, more *cdispec.ContainerEdits) error {
	if to.IntelRdt != nil && more.IntelRdt != nil {
		return fmt.Errorf("%w: two steps want to set Intel RDT, a container has only one setting", ErrPermanent)
	}
	c := cdi.Clone(*more)
	to.Env = append(to.Env, c.Env...)
	to.DeviceNodes = append(to.DeviceNodes, c.DeviceNodes...)
	to.NetDevices = append(to.NetDevices, c.NetDevices...)
	to.Hooks = append(to.Hooks, c.Hooks...)
	to.Mounts = append(to.Mounts, c.Mounts...)
	to.AdditionalGIDs = append(to.AdditionalGIDs, c.AdditionalGIDs...)
	if c.IntelRdt != nil {
		to.IntelRdt = c.IntelRdt
	}
	return nil
}

// writeSpec writes the spec and notes in the record what kubelet will be told.
func (e *Engine) writeSpec(r *Record, s spec) error {
	names := map[string]bool{}
	for _, d := range s.devices {
		names[d.Name] = true
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		d.CDIDevices = nil
		if name := d.cdiName(r.UID); names[name] {
			d.CDIDevices = []string{e.cfg.Specs.DeviceID(name)}
		}
	}
	r.Spec = s.print
	if len(s.devices) == 0 {
		return e.cfg.Specs.Remove(string(r.UID))
	}
	err := e.cfg.Specs.Write(string(r.UID), s.devices, s.common)
	if errors.Is(err, cdi.ErrInvalid) {
		return fmt.Errorf("%w: %w", ErrPermanent, err)
	}
	return err
}

// repair makes sure that the CDI spec of a prepared claim is there and says what
// it would say if it were written now. It returns the record, which may have
// changed.
func (e *Engine) repair(ctx context.Context, r *Record) (*Record, error) {
	s, err := e.specOf(ctx, r)
	if errors.Is(err, ErrPermanent) {
		// What the spec says may by now be about another device.
		return r, errors.Join(err, e.cfg.Specs.Remove(string(r.UID)))
	}
	if err != nil {
		return r, err
	}
	if s.print == r.Spec && e.specFits(r) {
		return r, nil
	}
	repaired := r.clone()
	if err := e.writeSpec(repaired, s); err != nil {
		return r, err
	}
	if s.print == r.Spec {
		return repaired, nil
	}
	return repaired, e.save(repaired, true)
}

// specFits reports whether the runtime would find the devices that kubelet was
// told of. Whatever is wrong with the spec, writing it again is the cure.
func (e *Engine) specFits(r *Record) bool {
	var names []string
	for _, d := range r.Devices {
		if len(d.CDIDevices) > 0 {
			names = append(names, d.cdiName(r.UID))
		}
	}
	return len(names) == 0 || e.cfg.Specs.Check(string(r.UID), names) == nil
}

// again answers a prepare call for a claim that is prepared.
func (e *Engine) again(ctx context.Context, r *Record) ([]Prepared, error) {
	r, err := e.repair(ctx, r)
	if err != nil {
		return nil, err
	}
	return r.clone().Devices, nil
}
