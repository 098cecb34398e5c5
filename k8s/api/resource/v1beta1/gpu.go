package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A GpuConfig configures whole GPUs.
type GpuConfig struct {
	metav1.TypeMeta `json:",inline"`
	// Sharing says how the pods that use the claim share the GPUs. Left out,
	// they share it as the driver does by default, and no setting of the GPU
	// is touched.
	Sharing *GpuSharing `json:"sharing,omitempty"`
}

// GpuSharing says how containers share whole GPUs.
type GpuSharing struct {
	// Strategy is TimeSlicing or MPS.
	Strategy GpuSharingStrategy `json:"strategy"`
	// TimeSlicingConfig belongs to the strategy TimeSlicing.
	TimeSlicingConfig *TimeSlicingConfig `json:"timeSlicingConfig,omitempty"`
	// MpsConfig belongs to the strategy MPS.
	MpsConfig *MpsConfig `json:"mpsConfig,omitempty"`
}

// DefaultGpuConfig is the configuration of a GPU that nobody configured: no
// sharing is set up.
func DefaultGpuConfig() *GpuConfig {
	return &GpuConfig{TypeMeta: typeMeta("GpuConfig")}
}

// Normalize fills in the interval of TimeSlicing and the settings of MPS.
func (c *GpuConfig) Normalize() {
	if c.Sharing == nil {
		return
	}
	switch c.Sharing.Strategy {
	case TimeSlicingStrategy:
		// The object may be there and empty: that is the case upstream's
		// driver was brought down with.
		if c.Sharing.TimeSlicingConfig == nil {
			c.Sharing.TimeSlicingConfig = new(TimeSlicingConfig)
		}
		if c.Sharing.TimeSlicingConfig.Interval == nil {
			interval := DefaultTimeSlice
			c.Sharing.TimeSlicingConfig.Interval = &interval
		}
	case MpsStrategy:
		if c.Sharing.MpsConfig == nil {
			c.Sharing.MpsConfig = new(MpsConfig)
		}
	}
}

// Validate implements [Config].
func (c *GpuConfig) Validate() error {
	if c.Sharing == nil {
		return nil
	}
	s := c.Sharing
	err := together(
		s.Strategy.validate(),
		s.TimeSlicingConfig.validate(),
		s.MpsConfig.validate("GPU"),
	)
	switch {
	case s.Strategy == TimeSlicingStrategy && s.MpsConfig != nil:
		return together(err, misplaced("mpsConfig", MpsStrategy, s.Strategy))
	case s.Strategy == MpsStrategy && s.TimeSlicingConfig != nil:
		return together(err, misplaced("timeSlicingConfig", TimeSlicingStrategy, s.Strategy))
	}
	return err
}

func (*GpuConfig) config() {}
