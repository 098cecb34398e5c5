package v1beta1

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A VfioDeviceConfig configures GPUs that are passed through to a virtual
// machine.
type VfioDeviceConfig struct {
	metav1.TypeMeta `json:",inline"`
	// Iommu says through which kernel interface the device is handed over.
	Iommu *VfioIommuConfig `json:"iommu,omitempty"`
}

// VfioIommuConfig says through which kernel interface a device is handed over.
type VfioIommuConfig struct {
	// BackendPolicy is LegacyOnly, the default, or PreferIommuFD.
	BackendPolicy IommuBackendPolicy `json:"backendPolicy"`
	// EnableAPIDevice also puts the interface's control device into the
	// container: /dev/vfio/vfio or /dev/iommu. The default is false.
	EnableAPIDevice *bool `json:"enableAPIDevice,omitempty"`
}

// An IommuBackendPolicy chooses between the kernel's two VFIO interfaces.
type IommuBackendPolicy string

const (
	// LegacyOnly always uses /dev/vfio/GROUP.
	LegacyOnly IommuBackendPolicy = "LegacyOnly"
	// PreferIommuFD uses /dev/vfio/devices/vfioN where the kernel has
	// iommufd, and /dev/vfio/GROUP elsewhere.
	PreferIommuFD IommuBackendPolicy = "PreferIommuFD"
)

var iommuBackendPolicies = []IommuBackendPolicy{LegacyOnly, PreferIommuFD}

// DefaultVfioDeviceConfig is the configuration of a VFIO device that nobody
// configured: LegacyOnly, without the control device.
func DefaultVfioDeviceConfig() *VfioDeviceConfig {
	c := &VfioDeviceConfig{TypeMeta: typeMeta("VfioDeviceConfig")}
	c.Normalize()
	return c
}

// Normalize fills in the policy and whether the control device is wanted.
func (c *VfioDeviceConfig) Normalize() {
	if c.Iommu == nil {
		c.Iommu = new(VfioIommuConfig)
	}
	if c.Iommu.BackendPolicy == "" {
		c.Iommu.BackendPolicy = LegacyOnly
	}
	if c.Iommu.EnableAPIDevice == nil {
		c.Iommu.EnableAPIDevice = new(bool)
	}
}

// Validate implements [Config].
func (c *VfioDeviceConfig) Validate() error {
	if c.Iommu == nil || c.Iommu.BackendPolicy == "" {
		return nil
	}
	if p := c.Iommu.BackendPolicy; !slices.Contains(iommuBackendPolicies, p) {
		return fmt.Errorf("iommu.backendPolicy: %q is not a policy: use %s", p, oneOf(quoted(iommuBackendPolicies)...))
	}
	return nil
}

func (*VfioDeviceConfig) config() {}
