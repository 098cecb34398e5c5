package v1beta1

import "fmt"

// RequiredGate is the name of the feature gate that must be on for cfg to be
// obeyed, and what in cfg asks for it, as the beginning of a sentence. Both
// are "" when cfg needs no gate.
func RequiredGate(cfg Config) (gate, what string) {
	switch c := cfg.(type) {
	case *GpuConfig:
		if c.Sharing != nil {
			return c.Sharing.Strategy.gate()
		}
	case *MigDeviceConfig:
		if c.Sharing != nil {
			return c.Sharing.Strategy.gate()
		}
	case *VfioDeviceConfig:
		return "PassthroughSupport", "a GPU is passed through with VFIO"
	}
	return "", ""
}

func (s GpuSharingStrategy) gate() (gate, what string) {
	switch s {
	case TimeSlicingStrategy:
		gate = "TimeSlicingSettings"
	case MpsStrategy:
		gate = "MPSSupport"
	default:
		return "", "" // not a strategy; Validate says so
	}
	return gate, fmt.Sprintf("%q is selected as the GPU sharing strategy", s)
}

// CheckGate is nil when the gate that cfg needs is on, and otherwise an error
// that says which configuration needs which gate.
func CheckGate(cfg Config, enabled func(gate string) bool) error {
	gate, what := RequiredGate(cfg)
	if gate == "" || enabled(gate) {
		return nil
	}
	return fmt.Errorf("%s, but the feature gate %q is off: ask the administrator to turn it on for the driver, or ask for something else", what, gate)
}
