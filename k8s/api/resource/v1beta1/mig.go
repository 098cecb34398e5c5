package v1beta1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A MigDeviceConfig configures MIG devices.
type MigDeviceConfig struct {
	metav1.TypeMeta `json:",inline"`
	// Sharing says how the pods that use the claim share the MIG devices.
	Sharing *MigDeviceSharing `json:"sharing,omitempty"`
}

// MigDeviceSharing says how containers share MIG devices.
type MigDeviceSharing struct {
	// Strategy can only be MPS: the time slice is a setting of the whole GPU.
	Strategy GpuSharingStrategy `json:"strategy"`
	// MpsConfig belongs to the strategy MPS.
	MpsConfig *MpsConfig `json:"mpsConfig,omitempty"`
}

// DefaultMigDeviceConfig is the configuration of a MIG device that nobody
// configured: no sharing is set up.
func DefaultMigDeviceConfig() *MigDeviceConfig {
	return &MigDeviceConfig{TypeMeta: typeMeta("MigDeviceConfig")}
}

// Normalize fills in the settings of MPS.
func (c *MigDeviceConfig) Normalize() {
	if c.Sharing != nil && c.Sharing.Strategy == MpsStrategy && c.Sharing.MpsConfig == nil {
		c.Sharing.MpsConfig = new(MpsConfig)
	}
}

// Validate implements [Config].
func (c *MigDeviceConfig) Validate() error {
	if c.Sharing == nil {
		return nil
	}
	s := c.Sharing
	if s.Strategy == TimeSlicingStrategy {
		// NVIDIA's driver accepts this and does nothing. Somebody who wrote it
		// expects something, so we say that there is nothing to expect.
		return fmt.Errorf("sharing.strategy: %q is not possible on a MIG device, because the time slice is a setting "+
			"of the whole GPU: use %q or leave sharing out", s.Strategy, MpsStrategy)
	}
	return together(s.Strategy.validate(), s.MpsConfig.validate("MIG"))
}

func (*MigDeviceConfig) config() {}
