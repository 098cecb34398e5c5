package v1beta1

import (
	"fmt"
	"slices"
)

// A GpuSharingStrategy is a way for containers to share one device.
type GpuSharingStrategy string

const (
	// TimeSlicingStrategy lets processes take turns on the whole GPU.
	TimeSlicingStrategy GpuSharingStrategy = "TimeSlicing"
	// MpsStrategy runs processes at the same time, through NVIDIA's
	// Multi-Process Service.
	MpsStrategy GpuSharingStrategy = "MPS"
)

var sharingStrategies = []GpuSharingStrategy{TimeSlicingStrategy, MpsStrategy}

func (s GpuSharingStrategy) validate() error {
	if slices.Contains(sharingStrategies, s) {
		return nil
	}
	choices := oneOf(quoted(sharingStrategies)...)
	if s == "" {
		return fmt.Errorf("sharing.strategy: is missing: write %s, or leave sharing out", choices)
	}
	return fmt.Errorf("sharing.strategy: %q is not a sharing strategy: use %s", s, choices)
}

// misplaced is the error for settings of a strategy that was not chosen.
func misplaced(field string, owner, chosen GpuSharingStrategy) error {
	return fmt.Errorf("sharing.%s: belongs to strategy %q, but the strategy is %q: remove it or change the strategy",
		field, owner, chosen)
}

// TimeSlicingConfig is the settings of the strategy TimeSlicing.
type TimeSlicingConfig struct {
	// Interval is how long a process keeps the GPU while others wait.
	Interval *TimeSliceInterval `json:"interval,omitempty"`
}

// A TimeSliceInterval is one of the lengths of a time slice that the driver
// offers. How many milliseconds each of them means is the driver's business.
type TimeSliceInterval string

const (
	// DefaultTimeSlice is what the GPU does when nothing is set.
	DefaultTimeSlice TimeSliceInterval = "Default"
	// ShortTimeSlice is the shortest slice.
	ShortTimeSlice TimeSliceInterval = "Short"
	// MediumTimeSlice lies between short and long.
	MediumTimeSlice TimeSliceInterval = "Medium"
	// LongTimeSlice is the longest slice.
	LongTimeSlice TimeSliceInterval = "Long"
)

// timeSliceIntervals is in the order of the driver's numbers for them.
var timeSliceIntervals = []TimeSliceInterval{DefaultTimeSlice, ShortTimeSlice, MediumTimeSlice, LongTimeSlice}

// Number is what `nvidia-smi compute-policy --set-timeslice` calls the
// interval: 0 to 3. ok is false for an interval that does not exist.
func (i TimeSliceInterval) Number() (n int, ok bool) {
	n = slices.Index(timeSliceIntervals, i)
	return n, n >= 0
}

func (c *TimeSlicingConfig) validate() error {
	if c == nil || c.Interval == nil {
		return nil
	}
	if _, ok := c.Interval.Number(); !ok {
		return fmt.Errorf("sharing.timeSlicingConfig.interval: %q is not an interval: use %s",
			*c.Interval, oneOf(quoted(timeSliceIntervals)...))
	}
	return nil
}
