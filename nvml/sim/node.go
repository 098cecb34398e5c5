package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"nvdra/nvml"
)

// kind gives an NVML code the kind of failure nvml.Node promises. Other errors
// (the context's) stay as they are.
func kind(err error) error {
	var r Return
	if !errors.As(err, &r) {
		return err
	}
	switch r {
	case DriverNotLoaded, Uninitialized, LibRMVersionMismatch:
		return fmt.Errorf("%w: %w", nvml.ErrDriver, err)
	case NotFound:
		return fmt.Errorf("%w: %w", nvml.ErrNotFound, err)
	case GPUIsLost:
		return fmt.Errorf("%w: %w", nvml.ErrLost, err)
	case InUse, InsufficientResources:
		return fmt.Errorf("%w: %w", nvml.ErrInUse, err)
	case NotSupported, FunctionNotFound, ArgumentVersionMismatch, Deprecated:
		return fmt.Errorf("%w: %w", nvml.ErrUnsupported, err)
	}
	return err
}

// optional forgives a board or driver that does not report something.
func optional(err error) error {
	for _, r := range []Return{NotSupported, FunctionNotFound, ArgumentVersionMismatch, Deprecated} {
		if errors.Is(err, r) {
			return nil
		}
	}
	return err
}

// Scan reads every GPU of the machine.
func (m *Machine) Scan(ctx context.Context) (nvml.Scan, error) {
	var scan nvml.Scan
	var uuids []nvml.UUID
	steps := []struct {
		call string
		act  func() Return
	}{
		{"Init", func() Return { return Success }},
		{"SystemGetDriverVersion", func() Return { scan.Driver.Version = m.state.Driver; return Success }},
		{"SystemGetCudaDriverVersion", func() Return { scan.Driver.CUDAVersion = m.state.CUDA; return Success }},
		{"DeviceGetCount", func() Return { uuids = m.present(); return Success }},
	}
	for _, s := range steps {
		if err := m.system(ctx, s.call, s.act); err != nil {
			return nvml.Scan{}, fmt.Errorf("scan GPUs: nvml%s: %w", s.call, kind(err))
		}
	}
	for i, uuid := range uuids {
		known := nvml.Broken{Index: i}
		g, err := m.readGPU(ctx, uuid, &known)
		switch {
		case err == nil:
			scan.GPUs = append(scan.GPUs, g)
		case errors.Is(err, nvml.ErrDriver) || ctx.Err() != nil:
			return nvml.Scan{}, fmt.Errorf("scan GPUs: %w", err)
		default:
			known.Err = err
			scan.Broken = append(scan.Broken, known)
		}
	}
	return scan, nil
}

// GPU reads one GPU.
func (m *Machine) GPU(ctx context.Context, uuid nvml.UUID) (nvml.GPU, error) {
	err := m.read(ctx, "DeviceGetHandleByUUID", uuid, func(gpu) Return { return Success })
	if err != nil {
		return nvml.GPU{}, fmt.Errorf("read GPU %s: %w", uuid, kind(err))
	}
	var known nvml.Broken
	g, err := m.readGPU(ctx, uuid, &known)
	if err != nil {
		return nvml.GPU{}, fmt.Errorf("read GPU %s: %w", uuid, err)
	}
	return g, nil
}

// readGPU reads a GPU call by call, so that a fault in one shows as it would
// with the real library. What is known by the time it fails goes into known.
func (m *Machine) readGPU(ctx context.Context, uuid nvml.UUID, known *nvml.Broken) (nvml.GPU, error) {
	var out nvml.GPU
	steps := []struct {
		call   string
		needed bool
		act    func(gpu) Return
	}{
		{"DeviceGetHandleByIndex", true, func(g gpu) Return { return Success }},
		{"DeviceGetUUID", true, func(g gpu) Return { out.UUID, known.UUID = g.UUID, g.UUID; return Success }},
		{"DeviceGetPciInfo", true, func(g gpu) Return { out.PCI, known.PCI = g.PCI, g.PCI; return Success }},
		{"DeviceGetMinorNumber", true, func(g gpu) Return { out.Minor = g.state.Minor; return Success }},
		{"DeviceGetName", false, func(g gpu) Return { out.Product = g.Name; return Success }},
		{"DeviceGetBrand", false, func(g gpu) Return { out.Brand = g.Brand; return Success }},
		{"DeviceGetArchitecture", false, func(g gpu) Return { out.Architecture = g.Architecture; return Success }},
		{"DeviceGetCudaComputeCapability", false, func(g gpu) Return {
			out.ComputeMajor, out.ComputeMinor = g.computeCapability()
			return Success
		}},
		{"DeviceGetMemoryInfo", false, func(g gpu) Return { out.MemoryBytes, _, _ = g.memory(nil); return Success }},
		{"DeviceGetAddressingMode", false, func(g gpu) Return {
			if g.AddressingMode == "" {
				return NotSupported
			}
			out.AddressingMode = g.AddressingMode
			return Success
		}},
		{"DeviceGetMigMode", false, func(g gpu) Return {
			if g.Product.MIG == nil {
				return NotSupported
			}
			out.MIG = nvml.MIGMode{Capable: true, Enabled: g.state.MIG, Pending: g.state.PendingMIG}
			return Success
		}},
	}
	for _, s := range steps {
		err := m.read(ctx, s.call, uuid, s.act)
		if !s.needed {
			err = optional(err)
		}
		if err != nil {
			return nvml.GPU{}, fmt.Errorf("nvml%s: %w", s.call, kind(err))
		}
	}
	if out.MIG.Enabled {
		if err := m.readMIG(ctx, &out); err != nil {
			return nvml.GPU{}, err
		}
	}
	return out, nil
}

// readMIG adds the MIG devices to a GPU.
func (m *Machine) readMIG(ctx context.Context, out *nvml.GPU) error {
	var uuids []nvml.UUID
	for _, call := range []string{"DeviceGetMigDeviceHandleByIndex", "DeviceGetGpuInstances"} {
		err := m.read(ctx, call, out.UUID, func(g gpu) Return {
			uuids, out.BrokenMIG = nil, nil
			for _, ref := range g.migList() {
				uuids = append(uuids, ref.ci.UUID)
			}
			for _, gi := range g.state.Instances {
				if len(gi.Compute) == 0 {
					out.BrokenMIG = append(out.BrokenMIG, fmt.Errorf("read GPU instance %d (%s at slice %d): it has no compute instance",
						gi.ID, g.Product.MIG.byID(gi.Profile).Name, gi.Start))
				}
			}
			return Success
		})
		if err != nil {
			return fmt.Errorf("nvml%s: %w", call, kind(err))
		}
	}
	for _, uuid := range uuids {
		d, err := m.readDevice(ctx, out.UUID, uuid)
		switch {
		case err == nil:
			out.MIGDevices = append(out.MIGDevices, d)
		case errors.Is(err, nvml.ErrDriver) || errors.Is(err, nvml.ErrLost) || ctx.Err() != nil:
			return err
		default:
			out.BrokenMIG = append(out.BrokenMIG, err)
		}
	}
	slices.SortFunc(out.MIGDevices, func(a, b nvml.MIGDevice) int { return a.Start - b.Start })
	return nil
}

// readDevice describes one MIG device.
func (m *Machine) readDevice(ctx context.Context, parent, uuid nvml.UUID) (nvml.MIGDevice, error) {
	var d nvml.MIGDevice
	var partial string
	for _, call := range []string{"DeviceGetGpuInstanceId", "DeviceGetComputeInstanceId", "DeviceGetAttributes", "DeviceGetGpuInstanceById", "GpuInstanceGetInfo"} {
		err := m.read(ctx, call, parent, func(g gpu) Return {
			_, gi, ci, ok := m.migDevice(uuid)
			if !ok {
				return NotFound
			}
			if ci.Size != g.Product.MIG.byID(gi.Profile).Slices {
				partial = g.migDeviceName(migRef{gi, ci})
			}
			d = g.describe(migRef{gi, ci})
			return Success
		})
		if err != nil {
			return nvml.MIGDevice{}, fmt.Errorf("read MIG device %s: nvml%s: %w", uuid, call, kind(err))
		}
	}
	if partial != "" {
		return nvml.MIGDevice{}, fmt.Errorf("read MIG device %s: it is %s, which does not fill its GPU instance: %w", uuid, partial, nvml.ErrUnsupported)
	}
	return d, nil
}

// describe is the MIG device in the project's words.
func (g gpu) describe(ref migRef) nvml.MIGDevice {
	p := g.Product.MIG.byID(ref.gi.Profile)
	return nvml.MIGDevice{
		UUID: ref.ci.UUID, Parent: g.UUID, GPUInst: ref.gi.ID, CompInst: ref.ci.ID,
		Profile: p.Name, ProfileID: p.ID, Start: ref.gi.Start, Size: ref.gi.Size,
		Resources: p.resources(), ParentMin: g.state.Minor, ParentPCI: g.PCI,
	}
}

func (p *MIGProfile) resources() nvml.MIGResources {
	return nvml.MIGResources{
		MemoryMiB: p.MemoryMiB, Multiprocessors: p.SM, CopyEngines: p.CE,
		Decoders: p.Dec, Encoders: p.Enc, JPEGEngines: p.JPEG, OFAEngines: p.OFA,
	}
}

// MIGProfiles lists what the GPU could be divided into.
func (m *Machine) MIGProfiles(ctx context.Context, uuid nvml.UUID) ([]nvml.MIGProfile, error) {
	var profiles []nvml.MIGProfile
	for _, call := range []string{"DeviceGetHandleByUUID", "DeviceGetGpuInstanceProfileInfo", "DeviceGetGpuInstancePossiblePlacements"} {
		err := m.read(ctx, call, uuid, func(g gpu) Return {
			profiles = nil
			if g.Product.MIG == nil {
				return Success
			}
			for _, p := range g.Product.MIG.Profiles {
				profiles = append(profiles, nvml.MIGProfile{
					Name: p.Name, ProfileID: p.ID, Slices: p.Slices, Resources: p.resources(),
					Placements: slices.Clone(p.Starts), Size: p.Size,
				})
			}
			return Success
		})
		if err != nil {
			return nil, fmt.Errorf("list MIG profiles of %s: nvml%s: %w", uuid, call, kind(err))
		}
	}
	slices.SortFunc(profiles, func(a, b nvml.MIGProfile) int { return a.ProfileID - b.ProfileID })
	return profiles, nil
}

// SetMIGMode switches MIG mode.
func (m *Machine) SetMIGMode(ctx context.Context, uuid nvml.UUID, enable bool) (nvml.MIGMode, error) {
	var mode nvml.MIGMode
	err := m.write(ctx, "DeviceSetMigMode", uuid, func(g gpu) Return {
		_, r := g.setMIGMode(enable)
		return r
	})
	if err == nil {
		err = m.read(ctx, "DeviceGetMigMode", uuid, func(g gpu) Return {
			mode = nvml.MIGMode{Capable: true, Enabled: g.state.MIG, Pending: g.state.PendingMIG}
			return Success
		})
	}
	if err != nil {
		return nvml.MIGMode{}, fmt.Errorf("switch MIG mode of %s: %w", uuid, kind(err))
	}
	return mode, nil
}

// CreateMIG makes a MIG device, or finishes one that was left half made.
func (m *Machine) CreateMIG(ctx context.Context, p nvml.Placement) (nvml.MIGDevice, error) {
	var id int
	err := m.write(ctx, "DeviceCreateGpuInstance", p.GPU, func(g gpu) Return {
		if g.Product.MIG == nil {
			return NotSupported
		}
		profile := g.Product.MIG.byID(p.ProfileID)
		if profile == nil || p.Start < 0 {
			return InvalidArgument
		}
		if gi := g.halfMade(profile, p.Start); gi != nil {
			id = gi.ID
			return Success
		}
		gi, r := m.createInstance(g, profile, p.Start)
		if r == Success {
			id = gi.ID
		}
		return r
	})
	if err != nil {
		return nvml.MIGDevice{}, fmt.Errorf("create %s: %w", p, kind(err))
	}
	var d nvml.MIGDevice
	err = m.write(ctx, "GpuInstanceCreateComputeInstance", p.GPU, func(g gpu) Return {
		gi := g.state.instance(id)
		if gi == nil {
			return NotFound
		}
		ci, r := m.createCompute(g, gi, g.Product.MIG.byID(p.ProfileID).Slices, 0)
		if r == Success {
			d = g.describe(migRef{gi, ci})
		}
		return r
	})
	if err == nil {
		return d, nil
	}
	err = fmt.Errorf("create %s: compute instance: %w", p, kind(err))
	if ctx.Err() != nil {
		return nvml.MIGDevice{}, err // the caller waits no longer, so the first half stays
	}
	undo := m.write(ctx, "GpuInstanceDestroy", p.GPU, func(g gpu) Return { return m.destroyInstance(g, id) })
	if undo != nil {
		err = errors.Join(err, fmt.Errorf("take back GPU instance %d of %s: %w", id, p.GPU, kind(undo)))
	}
	return nvml.MIGDevice{}, err
}

// halfMade is the GPU instance at a placement if it has no compute instance.
func (g gpu) halfMade(p *MIGProfile, start int) *GPUInstance {
	gi := g.state.instance(g.Product.MIG.instanceID(start, p.Size))
	if gi == nil || gi.Profile != p.ID || gi.Start != start || len(gi.Compute) > 0 {
		return nil
	}
	return gi
}

// DestroyMIG removes a MIG device.
func (m *Machine) DestroyMIG(ctx context.Context, uuid nvml.UUID) error {
	parent, isMIG := m.parentOf(uuid)
	if !isMIG {
		return fmt.Errorf("destroy MIG device %s: %w", uuid, nvml.ErrNotFound)
	}
	var id int
	err := m.write(ctx, "ComputeInstanceDestroy", parent, func(g gpu) Return {
		_, gi, ci, ok := m.migDevice(uuid)
		if !ok {
			return NotFound
		}
		id = gi.ID
		return m.destroyCompute(g, gi, ci.ID)
	})
	if err != nil {
		return fmt.Errorf("destroy MIG device %s: %w", uuid, kind(err))
	}
	err = m.write(ctx, "GpuInstanceDestroy", parent, func(g gpu) Return { return m.destroyInstance(g, id) })
	if err != nil {
		return fmt.Errorf("destroy MIG device %s: GPU instance %d: %w", uuid, id, kind(err))
	}
	return nil
}

// Close does nothing: the machine has no sessions.
func (m *Machine) Close() error { return nil }
