package nvmltest_test

import (
	"testing"

	"nvdra/nvml/nvmltest"
	"nvdra/nvml/sim"
)

// The simulator in process.
func TestSimulator(t *testing.T) {
	nvmltest.Run(t, func(t *testing.T, machine string) nvmltest.Subject {
		m, err := sim.New(nvmltest.Profile(t, machine))
		if err != nil {
			t.Fatal(err)
		}
		return nvmltest.Subject{Node: m, Control: func(verb ...string) ([]string, error) { return m.Control(verb) }}
	})
}
