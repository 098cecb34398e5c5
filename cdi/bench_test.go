package cdi

import (
	"path/filepath"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// BenchmarkWrite is what the spec of one claim costs: encoding, checking, and
// waiting for the disk. On a node the directory is in memory.
func BenchmarkWrite(b *testing.B) {
	spec, err := cdi.ReadSpec(filepath.Join(goldenDir, "one-gpu.yaml"), 0)
	if err != nil {
		b.Fatal(err)
	}
	s, err := OpenStore(b.TempDir(), ClaimVendor, ClaimClass)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := s.Write(uid, spec.Devices, spec.ContainerEdits); err != nil {
			b.Fatal(err)
		}
	}
}
