package driver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"nvdra/nvml"
)

// A gpuInstance is a GPU instance that exists.
type gpuInstance struct {
	handle  gonvml.GpuInstance
	id      int
	profile gpuProfile
	start   int
	size    int
}

// A gpuProfile is one size of GPU instance that a GPU can have.
type gpuProfile struct {
	index int // NVML's index, the same on all GPUs
	info  gonvml.GpuInstanceProfileInfo
}

func (p gpuProfile) id() int { return int(p.info.Id) }

func (p gpuProfile) name(total uint64) string {
	return profileName(p.index, int(p.info.SliceCount), p.info.MemorySizeMB, total)
}

func (p gpuProfile) resources() nvml.MIGResources {
	return nvml.MIGResources{
		MemoryMiB:       p.info.MemorySizeMB,
		Multiprocessors: int(p.info.MultiprocessorCount),
		CopyEngines:     int(p.info.CopyEngineCount),
		Decoders:        int(p.info.DecoderCount),
		Encoders:        int(p.info.EncoderCount),
		JPEGEngines:     int(p.info.JpegCount),
		OFAEngines:      int(p.info.OfaCount),
	}
}

// A computeInstance is a compute instance that exists.
type computeInstance struct {
	handle gonvml.ComputeInstance
	id     int
	slices int
}

// instance is the pair of numbers that names a MIG device on one GPU.
type instance struct{ gpu, compute int }

// gpuProfiles are the profiles this GPU has, in order of their id. NVML knows
// more than any GPU has; the rest is answered as not supported or, by a
// library older than this list, as an invalid argument.
func (s *session) gpuProfiles(d gonvml.Device) ([]gpuProfile, error) {
	var profiles []gpuProfile
	for i := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
		p := gpuProfile{index: i}
		err := s.call("nvmlDeviceGetGpuInstanceProfileInfo", func() (ret gonvml.Return) {
			p.info, ret = d.GetGpuInstanceProfileInfo(i)
			return ret
		})
		if is(err, gonvml.ERROR_INVALID_ARGUMENT) || tolerate(err) == nil && err != nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		same := func(q gpuProfile) bool { return q.info.Id == p.info.Id }
		if p.info.InstanceCount > 0 && !slices.ContainsFunc(profiles, same) {
			profiles = append(profiles, p)
		}
	}
	slices.SortFunc(profiles, func(a, b gpuProfile) int { return cmp.Compare(a.info.Id, b.info.Id) })
	return profiles, nil
}

// placements are where a profile fits on an empty GPU.
func (s *session) placements(d gonvml.Device, p gpuProfile) (starts []int, size int, err error) {
	var places []gonvml.GpuInstancePlacement
	err = s.call("nvmlDeviceGetGpuInstancePossiblePlacements_v2", func() (ret gonvml.Return) {
		places, ret = d.GetGpuInstancePossiblePlacements(&p.info)
		return ret
	})
	for _, place := range places {
		starts = append(starts, int(place.Start))
		size = int(place.Size)
	}
	slices.Sort(starts)
	return slices.Compact(starts), size, err
}

// profiles implements Node.MIGProfiles.
func (s *session) profiles(_ context.Context, uuid nvml.UUID) ([]nvml.MIGProfile, error) {
	d, err := s.handle(uuid)
	if err != nil {
		return nil, err
	}
	mode, err := s.mode(d)
	if err != nil || !mode.Capable {
		return nil, err
	}
	total, err := s.memory(d)
	if err != nil {
		return nil, err
	}
	found, err := s.gpuProfiles(d)
	if err != nil {
		return nil, err
	}
	var profiles []nvml.MIGProfile
	for _, p := range found {
		starts, size, err := s.placements(d, p)
		if err != nil {
			return nil, fmt.Errorf("profile %d: %w", p.id(), err)
		}
		profiles = append(profiles, nvml.MIGProfile{
			Name:       p.name(total),
			ProfileID:  p.id(),
			Slices:     int(p.info.SliceCount),
			Resources:  p.resources(),
			Placements: starts,
			Size:       size,
		})
	}
	return profiles, nil
}

// memory is the memory of a GPU, 0 if it does not say.
func (s *session) memory(d gonvml.Device) (uint64, error) {
	var g nvml.GPU
	err := tolerate(s.readMemory(d, &g))
	return g.MemoryBytes, err
}

// gpuInstances are the GPU instances of a GPU in MIG mode, those without a
// compute instance too. Instances are listed profile by profile; NVML has no
// other way.
func (s *session) gpuInstances(d gonvml.Device, profiles []gpuProfile) ([]gpuInstance, error) {
	var instances []gpuInstance
	for _, p := range profiles {
		var handles []gonvml.GpuInstance
		err := s.call("nvmlDeviceGetGpuInstances", func() (ret gonvml.Return) {
			handles, ret = d.GetGpuInstances(&p.info)
			return ret
		})
		if is(err, gonvml.ERROR_NOT_SUPPORTED) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, h := range handles {
			var info gonvml.GpuInstanceInfo
			err := s.call("nvmlGpuInstanceGetInfo", func() (ret gonvml.Return) {
				info, ret = h.GetInfo()
				return ret
			})
			if is(err, gonvml.ERROR_NOT_FOUND) {
				continue // destroyed while we looked
			}
			if err != nil {
				return nil, err
			}
			instances = append(instances, gpuInstance{
				handle:  h,
				id:      int(info.Id),
				profile: p,
				start:   int(info.Placement.Start),
				size:    int(info.Placement.Size),
			})
		}
	}
	slices.SortFunc(instances, func(a, b gpuInstance) int { return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.id, b.id)) })
	return instances, nil
}

// computeInstances are the compute instances of a GPU instance.
func (s *session) computeInstances(gi gpuInstance) ([]computeInstance, error) {
	var found []computeInstance
	seen := map[uint32]bool{}
	for i := range gonvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, err := s.computeProfile(gi, i)
		if is(err, gonvml.ERROR_INVALID_ARGUMENT) || tolerate(err) == nil && err != nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		if seen[info.Id] || info.InstanceCount == 0 {
			continue
		}
		seen[info.Id] = true
		var handles []gonvml.ComputeInstance
		err = s.call("nvmlGpuInstanceGetComputeInstances", func() (ret gonvml.Return) {
			handles, ret = gi.handle.GetComputeInstances(&info)
			return ret
		})
		if is(err, gonvml.ERROR_NOT_SUPPORTED) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, h := range handles {
			ci, err := s.computeInstance(h)
			if is(err, gonvml.ERROR_NOT_FOUND) {
				continue // destroyed while we looked
			}
			if err != nil {
				return nil, err
			}
			ci.slices = int(info.SliceCount)
			found = append(found, ci)
		}
	}
	slices.SortFunc(found, func(a, b computeInstance) int { return cmp.Compare(a.id, b.id) })
	return found, nil
}

func (s *session) computeInstance(h gonvml.ComputeInstance) (computeInstance, error) {
	var info gonvml.ComputeInstanceInfo
	err := s.call("nvmlComputeInstanceGetInfo_v2", func() (ret gonvml.Return) {
		info, ret = h.GetInfo()
		return ret
	})
	return computeInstance{handle: h, id: int(info.Id)}, err
}

func (s *session) computeProfile(gi gpuInstance, index int) (info gonvml.ComputeInstanceProfileInfo, err error) {
	err = s.call("nvmlGpuInstanceGetComputeInstanceProfileInfo", func() (ret gonvml.Return) {
		info, ret = gi.handle.GetComputeInstanceProfileInfo(index, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		return ret
	})
	return info, err
}

// migUUIDs are the MIG devices of a GPU by their instances. Only instances
// have a placement and only MIG devices have a UUID, and this is how NVML
// leads from one to the other.
func (s *session) migUUIDs(d gonvml.Device) (map[instance]nvml.UUID, error) {
	var most int
	err := s.call("nvmlDeviceGetMaxMigDeviceCount", func() (ret gonvml.Return) {
		most, ret = d.GetMaxMigDeviceCount()
		return ret
	})
	if err != nil {
		return nil, tolerate(err)
	}
	uuids := map[instance]nvml.UUID{}
	for i := range most {
		var mig gonvml.Device
		err := s.call("nvmlDeviceGetMigDeviceHandleByIndex", func() (ret gonvml.Return) {
			mig, ret = d.GetMigDeviceHandleByIndex(i)
			return ret
		})
		if is(err, gonvml.ERROR_NOT_FOUND, gonvml.ERROR_INVALID_ARGUMENT, gonvml.ERROR_NOT_SUPPORTED) {
			continue // the indices have gaps
		}
		if err != nil {
			return nil, err
		}
		at, uuid, err := s.migDevice(mig)
		if is(err, gonvml.ERROR_NOT_FOUND) {
			continue // destroyed while we looked
		}
		if err != nil {
			return nil, err
		}
		uuids[at] = uuid
	}
	return uuids, nil
}

// migDevice is which instances a MIG device consists of, and its UUID.
func (s *session) migDevice(mig gonvml.Device) (instance, nvml.UUID, error) {
	var at instance
	err := s.call("nvmlDeviceGetGpuInstanceId", func() (ret gonvml.Return) {
		at.gpu, ret = mig.GetGpuInstanceId()
		return ret
	})
	if err != nil {
		return instance{}, "", err
	}
	err = s.call("nvmlDeviceGetComputeInstanceId", func() (ret gonvml.Return) {
		at.compute, ret = mig.GetComputeInstanceId()
		return ret
	})
	if err != nil {
		return instance{}, "", err
	}
	uuid, err := s.uuid(mig)
	return at, uuid, err
}

// readMIG reads the MIG devices of a GPU in MIG mode. What cannot be offered
// as a MIG device is named in BrokenMIG; that the instances cannot be listed
// at all is an error, since then nothing is known about what is free.
func (s *session) readMIG(d gonvml.Device, g *nvml.GPU) error {
	if !g.MIG.Enabled {
		return nil
	}
	profiles, err := s.gpuProfiles(d)
	if err != nil {
		return err
	}
	instances, err := s.gpuInstances(d, profiles)
	if err != nil {
		return err
	}
	uuids, err := s.migUUIDs(d)
	if err != nil {
		return err
	}
	for _, gi := range instances {
		computes, err := s.computeInstances(gi)
		if err != nil {
			if stale(err) {
				return err
			}
			g.BrokenMIG = append(g.BrokenMIG, fmt.Errorf("read GPU instance %d: %w", gi.id, err))
			continue
		}
		if len(computes) == 0 {
			g.BrokenMIG = append(g.BrokenMIG, fmt.Errorf("GPU instance %d (%s) has no compute instance", gi.id, gi.describe(g.MemoryBytes)))
		}
		for _, ci := range computes {
			at := instance{gi.id, ci.id}
			uuid := uuids[at]
			delete(uuids, at)
			if err := gi.offered(ci, uuid); err != nil {
				g.BrokenMIG = append(g.BrokenMIG, err)
				continue
			}
			g.MIGDevices = append(g.MIGDevices, gi.device(*g, ci.id, uuid))
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(uuids), func(a, b instance) int {
		return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.compute, b.compute))
	}) {
		g.BrokenMIG = append(g.BrokenMIG, fmt.Errorf("%s has GPU instance %d and compute instance %d, which the driver lists under no profile known here",
			uuids[at], at.gpu, at.compute))
	}
	return nil
}

// offered says why a compute instance cannot be offered as a MIG device.
func (gi gpuInstance) offered(ci computeInstance, uuid nvml.UUID) error {
	if whole := int(gi.profile.info.SliceCount); ci.slices != whole {
		return fmt.Errorf("compute instance %d has only %d of the %d compute slices of GPU instance %d: only compute instances that fill their GPU instance are supported",
			ci.id, ci.slices, whole, gi.id)
	}
	if uuid == "" {
		return fmt.Errorf("find MIG device of GPU instance %d, compute instance %d: the driver shows no such device (are its nodes in /dev/nvidia-caps readable here?)",
			gi.id, ci.id)
	}
	return nil
}

// describe is a GPU instance for people.
func (gi gpuInstance) describe(total uint64) string {
	return fmt.Sprintf("%s at slice %d", gi.profile.name(total), gi.start)
}

// device is the MIG device that consists of the instance and one compute
// instance.
func (gi gpuInstance) device(g nvml.GPU, compute int, uuid nvml.UUID) nvml.MIGDevice {
	return nvml.MIGDevice{
		UUID:      uuid,
		Parent:    g.UUID,
		GPUInst:   gi.id,
		CompInst:  compute,
		Profile:   gi.profile.name(g.MemoryBytes),
		ProfileID: gi.profile.id(),
		Start:     gi.start,
		Size:      gi.size,
		Resources: gi.profile.resources(),
		ParentMin: g.Minor,
		ParentPCI: g.PCI,
	}
}

// migHandle finds a MIG device by its UUID, and its parent.
func (s *session) migHandle(uuid nvml.UUID) (mig, parent gonvml.Device, err error) {
	missing := fmt.Errorf("the driver knows no MIG device with this UUID: %w", nvml.ErrNotFound)
	if !strings.HasPrefix(string(uuid), "MIG-") {
		return nil, nil, missing
	}
	err = s.call("nvmlDeviceGetHandleByUUID", func() (ret gonvml.Return) {
		mig, ret = s.lib.DeviceGetHandleByUUID(string(uuid))
		return ret
	})
	if is(err, gonvml.ERROR_NOT_FOUND, gonvml.ERROR_GPU_NOT_FOUND, gonvml.ERROR_INVALID_ARGUMENT) {
		return nil, nil, missing
	}
	if err != nil {
		return nil, nil, err
	}
	err = s.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", func() (ret gonvml.Return) {
		parent, ret = mig.GetDeviceHandleFromMigDeviceHandle()
		return ret
	})
	if is(err, gonvml.ERROR_NOT_FOUND) {
		return nil, nil, missing
	}
	return mig, parent, err
}
