// Package v1beta1 holds the types of resource.nvidia.com/v1beta1 that a user
// writes into a ResourceClaim or a DeviceClass to configure the devices:
// [GpuConfig], [MigDeviceConfig] and [VfioDeviceConfig].
//
//	devices:
//	  config:
//	  - opaque:
//	      driver: gpu.nvidia.com
//	      parameters:
//	        apiVersion: resource.nvidia.com/v1beta1
//	        kind: GpuConfig
//	        sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Long}}
//
// What a user wrote goes through three calls, always in this order:
//
//	cfg, err := v1beta1.DecodeConfig(raw) // strict: a misspelt field is an error
//	cfg.Normalize()                       // what was left out is filled in
//	err = cfg.Validate()                  // the shape: values, ranges, what fits together
//
// What the driver itself stored earlier is read with [DecodeStored], which
// ignores fields of a newer release. Whether the cluster allows what the
// configuration asks for is a question of feature gates and answered apart
// from its shape, by [CheckGate].
//
// Field names and Go names are those that users of NVIDIA's driver know, so
// they are not always spelt as the rest of this project spells them.
package v1beta1

const (
	// Group is the API group of all types here.
	Group = "resource.nvidia.com"
	// Version is the API version of all types here.
	Version = "v1beta1"
	// APIVersion is what the apiVersion field of every type here says.
	APIVersion = Group + "/" + Version
)
