//go:build device

package nvmltest_test

import (
	"os"
	"testing"

	"nvdra/nvml/driver"
	"nvdra/nvml/nvmltest"
)

// Real GPUs, of the driver below NVDRA_DEVICE_ROOT. Only what changes nothing
// is asked: others may be using the machine.
//
//	NVDRA_DEVICE_ROOT=/ go test -tags device -run TestHardware ./nvml/nvmltest/
func TestHardware(t *testing.T) {
	root := os.Getenv("NVDRA_DEVICE_ROOT")
	if root == "" {
		t.Fatal("find the driver: set NVDRA_DEVICE_ROOT to the root it is installed below, / for the host's own")
	}
	node := driver.Open(root)
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	nvmltest.RunAnywhere(t, node)
}
