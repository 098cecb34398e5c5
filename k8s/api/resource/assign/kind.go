package assign

import "nvdra/k8s/api/resource/v1beta1"

// A DeviceKind is what an allocated device is. It decides which kind of
// configuration fits the device.
type DeviceKind int

const (
	// GPU is a whole GPU.
	GPU DeviceKind = iota + 1
	// MIG is a MIG device, one that exists or one that is yet to be created.
	MIG
	// VFIO is a GPU that is passed through to a virtual machine.
	VFIO
)

// String is the kind as sentences have it.
func (k DeviceKind) String() string {
	switch k {
	case GPU:
		return "GPU"
	case MIG:
		return "MIG device"
	case VFIO:
		return "VFIO device"
	default:
		return "device of unknown kind"
	}
}

// defaults is the configuration of a device that nobody configured, nil for
// an unknown kind.
func (k DeviceKind) defaults() v1beta1.Config {
	switch k {
	case GPU:
		return v1beta1.DefaultGpuConfig()
	case MIG:
		return v1beta1.DefaultMigDeviceConfig()
	case VFIO:
		return v1beta1.DefaultVfioDeviceConfig()
	default:
		return nil
	}
}

// fits is the kind of device that cfg is for, and the name of its own kind.
func fits(cfg v1beta1.Config) (kind DeviceKind, name string) {
	switch cfg.(type) {
	case *v1beta1.GpuConfig:
		return GPU, "GpuConfig"
	case *v1beta1.MigDeviceConfig:
		return MIG, "MigDeviceConfig"
	case *v1beta1.VfioDeviceConfig:
		return VFIO, "VfioDeviceConfig"
	default:
		return 0, "this configuration"
	}
}

// changesDevices is whether obeying cfg would change a device, rather than
// only what a container sees of it.
func changesDevices(cfg v1beta1.Config) bool {
	switch c := cfg.(type) {
	case *v1beta1.GpuConfig:
		return c.Sharing != nil
	case *v1beta1.MigDeviceConfig:
		return c.Sharing != nil
	default:
		return true
	}
}
