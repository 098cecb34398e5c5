package driver

import (
	"context"
	"fmt"
	"slices"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"nvdra/nvml"
)

const (
	// destroyWait is how long a GPU instance may stay busy after its compute
	// instance is gone: the driver takes about a second to clean up, and
	// answers "in use" as long.
	destroyWait = 10 * time.Second
	// destroyPause is the time between two tries.
	destroyPause = 100 * time.Millisecond
)

// setMode implements Node.SetMIGMode. The driver's answer to the call is not
// believed but read back: it may say that all is well and leave the mode
// pending (the GPU needs a reset, or is in use), or for ever as it was.
func (s *session) setMode(ctx context.Context, uuid nvml.UUID, enable bool) (nvml.MIGMode, error) {
	done, err := s.exclusive(ctx)
	if err != nil {
		return nvml.MIGMode{}, err
	}
	defer done()
	d, err := s.handle(uuid)
	if err != nil {
		return nvml.MIGMode{}, err
	}
	before, err := s.mode(d)
	if err != nil {
		return nvml.MIGMode{}, err
	}
	if !before.Capable {
		return before, fmt.Errorf("this GPU has no MIG mode: %w", nvml.ErrUnsupported)
	}
	if before.Enabled == enable && before.Pending == enable {
		return before, nil
	}
	if before.Enabled && !enable {
		if err := s.refuseIfDivided(d); err != nil {
			return before, err
		}
	}
	var activation gonvml.Return
	err = s.call("nvmlDeviceSetMigMode", func() (ret gonvml.Return) {
		activation, ret = d.SetMigMode(map[bool]int{false: gonvml.DEVICE_MIG_DISABLE, true: gonvml.DEVICE_MIG_ENABLE}[enable])
		return ret
	})
	if err != nil {
		return before, err
	}
	after, err := s.mode(d)
	if err != nil {
		return before, fmt.Errorf("read the mode back: %w", err)
	}
	if after.Pending != enable {
		return after, fmt.Errorf("the driver took the request, but the mode is still to be %s (activation: %s)", onOff(after.Pending), text(activation))
	}
	return after, nil
}

// refuseIfDivided is an error while instances exist.
func (s *session) refuseIfDivided(d gonvml.Device) error {
	profiles, err := s.gpuProfiles(d)
	if err != nil {
		return err
	}
	instances, err := s.gpuInstances(d, profiles)
	if err != nil {
		return err
	}
	if len(instances) > 0 {
		return fmt.Errorf("the GPU still has %d GPU instances: %w", len(instances), nvml.ErrInUse)
	}
	return nil
}

// create implements Node.CreateMIG.
func (s *session) create(ctx context.Context, p nvml.Placement) (nvml.MIGDevice, error) {
	done, err := s.exclusive(ctx)
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	defer done()
	d, err := s.handle(p.GPU)
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	parent, err := s.parent(d)
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	profile, size, err := s.place(d, p)
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	gi, err := s.createGPUInstance(ctx, d, parent, profile, p.Start, size)
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	device, err := s.fill(ctx, d, parent, gi)
	if err != nil {
		if undo := s.takeBack(gi); undo != nil {
			err = fmt.Errorf("%w; and GPU instance %d could not be taken back: %w", err, gi.id, undo)
		}
		return nvml.MIGDevice{}, err
	}
	return device, nil
}

// parent reads what a MIG device takes over from its GPU, which must be in
// MIG mode now.
func (s *session) parent(d gonvml.Device) (nvml.GPU, error) {
	g, err := s.readIdentity(d)
	if err != nil {
		return g, err
	}
	if g.MemoryBytes, err = s.memory(d); err != nil {
		return g, err
	}
	if g.MIG, err = s.mode(d); err != nil {
		return g, err
	}
	switch {
	case !g.MIG.Capable:
		return g, fmt.Errorf("this GPU has no MIG mode: %w", nvml.ErrUnsupported)
	case !g.MIG.Enabled && g.MIG.Pending:
		return g, fmt.Errorf("MIG mode is on only after the next reset of the GPU: %w", nvml.ErrUnsupported)
	case !g.MIG.Enabled:
		return g, fmt.Errorf("MIG mode is off: %w", nvml.ErrUnsupported)
	}
	return g, nil
}

// place checks a placement against what the GPU can do.
func (s *session) place(d gonvml.Device, p nvml.Placement) (gpuProfile, int, error) {
	profiles, err := s.gpuProfiles(d)
	if err != nil {
		return gpuProfile{}, 0, err
	}
	i := slices.IndexFunc(profiles, func(q gpuProfile) bool { return q.id() == p.ProfileID })
	if i < 0 {
		return gpuProfile{}, 0, fmt.Errorf("this GPU has no MIG profile %d: %w", p.ProfileID, nvml.ErrUnsupported)
	}
	starts, size, err := s.placements(d, profiles[i])
	if err != nil {
		return gpuProfile{}, 0, err
	}
	if !slices.Contains(starts, p.Start) {
		return gpuProfile{}, 0, fmt.Errorf("the profile can start only at slices %d: %w", starts, nvml.ErrUnsupported)
	}
	return profiles[i], size, nil
}

// createGPUInstance makes the GPU instance, or takes over one that was left
// half made. NVML says "insufficient resources" for whatever stands in the
// way; looking first can say what that is.
func (s *session) createGPUInstance(ctx context.Context, d gonvml.Device, parent nvml.GPU, p gpuProfile, start, size int) (gpuInstance, error) {
	profiles, err := s.gpuProfiles(d)
	if err != nil {
		return gpuInstance{}, err
	}
	instances, err := s.gpuInstances(d, profiles)
	if err != nil {
		return gpuInstance{}, err
	}
	for _, gi := range instances {
		if gi.start >= start+size || start >= gi.start+gi.size {
			continue
		}
		computes, err := s.computeInstances(gi)
		if err != nil {
			return gpuInstance{}, err
		}
		if len(computes) == 0 && gi.profile.id() == p.id() && gi.start == start {
			return gi, nil
		}
		return gpuInstance{}, fmt.Errorf("GPU instance %d (%s) is there: %w", gi.id, gi.describe(parent.MemoryBytes), nvml.ErrInUse)
	}
	if err := ctx.Err(); err != nil {
		return gpuInstance{}, err
	}
	gi := gpuInstance{profile: p, start: start, size: size}
	err = s.call("nvmlDeviceCreateGpuInstanceWithPlacement", func() (ret gonvml.Return) {
		gi.handle, ret = d.CreateGpuInstanceWithPlacement(&p.info, &gonvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(size)})
		return ret
	})
	if err != nil {
		return gpuInstance{}, err
	}
	var info gonvml.GpuInstanceInfo
	err = s.call("nvmlGpuInstanceGetInfo", func() (ret gonvml.Return) {
		info, ret = gi.handle.GetInfo()
		return ret
	})
	if err != nil {
		if undo := s.takeBack(gi); undo != nil {
			err = fmt.Errorf("%w; and the new GPU instance could not be taken back: %w", err, undo)
		}
		return gpuInstance{}, err
	}
	gi.id = int(info.Id)
	return gi, nil
}

// fill makes the one compute instance that takes all of the GPU instance, and
// finds the MIG device that this gives.
func (s *session) fill(ctx context.Context, d gonvml.Device, parent nvml.GPU, gi gpuInstance) (nvml.MIGDevice, error) {
	profile, err := s.wholeProfile(gi)
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	if err := ctx.Err(); err != nil {
		return nvml.MIGDevice{}, err
	}
	var handle gonvml.ComputeInstance
	err = s.call("nvmlGpuInstanceCreateComputeInstance", func() (ret gonvml.Return) {
		handle, ret = gi.handle.CreateComputeInstance(&profile)
		return ret
	})
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	ci, err := s.computeInstance(handle)
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	uuids, err := s.migUUIDs(d)
	if err != nil {
		return nvml.MIGDevice{}, err
	}
	uuid := uuids[instance{gi.id, ci.id}]
	ci.slices = int(profile.SliceCount)
	if err := gi.offered(ci, uuid); err != nil {
		return nvml.MIGDevice{}, err
	}
	return gi.device(parent, ci.id, uuid), nil
}

// wholeProfile is the compute profile with as many slices as the GPU instance.
func (s *session) wholeProfile(gi gpuInstance) (gonvml.ComputeInstanceProfileInfo, error) {
	for i := range gonvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		if i == gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 {
			continue // one slice as well, but of another kind
		}
		info, err := s.computeProfile(gi, i)
		if is(err, gonvml.ERROR_INVALID_ARGUMENT) || tolerate(err) == nil && err != nil {
			continue
		}
		if err != nil {
			return info, err
		}
		if info.SliceCount == gi.profile.info.SliceCount {
			return info, nil
		}
	}
	return gonvml.ComputeInstanceProfileInfo{}, fmt.Errorf("the driver has no compute instance of %d slices: %w", gi.profile.info.SliceCount, nvml.ErrUnsupported)
}

// takeBack removes a GPU instance that was just made, with what is in it. It
// ignores the context of the call that failed: leaving the instance behind
// would block its place until somebody finds it.
func (s *session) takeBack(gi gpuInstance) error {
	computes, err := s.computeInstances(gi)
	if err != nil {
		return err
	}
	for _, ci := range computes {
		if err := s.destroyCompute(ci); err != nil {
			return err
		}
	}
	return s.destroyGPU(context.Background(), gi)
}

func (s *session) destroyCompute(ci computeInstance) error {
	return s.call("nvmlComputeInstanceDestroy", ci.handle.Destroy)
}

// destroyGPU destroys a GPU instance that is empty, as soon as the driver is
// done with what was in it.
func (s *session) destroyGPU(ctx context.Context, gi gpuInstance) error {
	ctx, cancel := context.WithTimeout(ctx, destroyWait)
	defer cancel()
	for {
		err := s.call("nvmlGpuInstanceDestroy", gi.handle.Destroy)
		if !is(err, gonvml.ERROR_IN_USE) {
			return err
		}
		select {
		case <-time.After(destroyPause):
		case <-ctx.Done():
			return err
		}
	}
}

// destroy implements Node.DestroyMIG.
func (s *session) destroy(ctx context.Context, uuid nvml.UUID) error {
	done, err := s.exclusive(ctx)
	if err != nil {
		return err
	}
	defer done()
	mig, d, err := s.migHandle(uuid)
	if err != nil {
		return err
	}
	at, found, err := s.migDevice(mig)
	if err != nil {
		return err
	}
	if found != uuid {
		return fmt.Errorf("the driver took %s for it: %w", found, nvml.ErrNotFound)
	}
	gi, ci, err := s.instances(d, at)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.destroyCompute(ci); err != nil {
		return err
	}
	if err := s.destroyGPU(ctx, gi); err != nil {
		return fmt.Errorf("its compute instance is gone, but GPU instance %d is left: %w", gi.id, err)
	}
	return nil
}

// instances are the two halves of a MIG device, which must have its GPU
// instance for itself.
func (s *session) instances(d gonvml.Device, at instance) (gpuInstance, computeInstance, error) {
	gi := gpuInstance{id: at.gpu}
	err := s.call("nvmlDeviceGetGpuInstanceById", func() (ret gonvml.Return) {
		gi.handle, ret = d.GetGpuInstanceById(at.gpu)
		return ret
	})
	if err != nil {
		return gpuInstance{}, computeInstance{}, err
	}
	computes, err := s.computeInstances(gi)
	if err != nil {
		return gpuInstance{}, computeInstance{}, err
	}
	i := slices.IndexFunc(computes, func(ci computeInstance) bool { return ci.id == at.compute })
	switch {
	case i < 0:
		return gpuInstance{}, computeInstance{}, fmt.Errorf("compute instance %d of GPU instance %d: %w", at.compute, at.gpu, nvml.ErrNotFound)
	case len(computes) > 1:
		return gpuInstance{}, computeInstance{}, fmt.Errorf("GPU instance %d has %d compute instances: %w", at.gpu, len(computes), nvml.ErrInUse)
	}
	return gi, computes[i], nil
}
