package driver

import (
	"regexp"
	"slices"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestProfileNames(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		index, slices int
		memoryMiB     uint64
		totalMiB      uint64
		want          string
	}{
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 4864, 40960, "1g.5gb"},                 // A100 40 GB
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, 1, 4864, 40960, "1g.5gb+me"},         //
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, 1, 9856, 40960, "1g.10gb"},           //
		{gonvml.GPU_INSTANCE_PROFILE_3_SLICE, 3, 19968, 40960, "3g.20gb"},               //
		{gonvml.GPU_INSTANCE_PROFILE_7_SLICE, 7, 40192, 40960, "7g.40gb"},               //
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 9728, 81920, "1g.10gb"},                // A100 80 GB
		{gonvml.GPU_INSTANCE_PROFILE_4_SLICE, 4, 40192, 81920, "4g.40gb"},               //
		{gonvml.GPU_INSTANCE_PROFILE_7_SLICE, 7, 81152, 81920, "7g.80gb"},               //
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 9984, 81559, "1g.10gb"},                // H100 80 GB
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 16384, 143771, "1g.18gb"},              // H200
		{gonvml.GPU_INSTANCE_PROFILE_3_SLICE, 3, 71424, 143771, "3g.71gb"},              //
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 5952, 24576, "1g.6gb"},                 // A30
		{gonvml.GPU_INSTANCE_PROFILE_4_SLICE, 4, 24288, 24576, "4g.24gb"},               //
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, 1, 12160, 97887, "1g.12gb+me.all"}, // RTX PRO 6000
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, 1, 12160, 97887, "1g.12gb-me"},      //
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, 1, 12160, 97887, "1g.12gb+gfx"},       //
		{gonvml.GPU_INSTANCE_PROFILE_1_SLICE, 1, 9728, 0, "1g.10gb"},                    // memory not reported
	} {
		if got := profileName(c.index, c.slices, c.memoryMiB, c.totalMiB*mib); got != c.want {
			t.Errorf("profile %d of %d slices and %d MiB of %d MiB: %q, want %q", c.index, c.slices, c.memoryMiB, c.totalMiB, got, c.want)
		}
	}
}

func TestUnknownNames(t *testing.T) {
	if got := brandName(gonvml.BRAND_COUNT + 7); got != unknown {
		t.Errorf("brand of the future is %q", got)
	}
	if got := architectureName(gonvml.DEVICE_ARCH_UNKNOWN); got != unknown {
		t.Errorf("architecture of the future is %q", got)
	}
	if got := addressingName(gonvml.DeviceAddressingMode{Value: 99}); got != "" {
		t.Errorf("addressing mode of the future is %q", got)
	}
}

func TestComparePCI(t *testing.T) {
	sorted := []string{"0000:0a:00.0", "0000:65:00.0", "0000:65:01.0", "0008:01:00.0", "10000:01:00.0"}
	got := slices.Clone(sorted)
	slices.Reverse(got)
	slices.SortFunc(got, comparePCI)
	if !slices.Equal(got, sorted) {
		t.Errorf("got %q", got)
	}
}

func FuzzPCIAddress(f *testing.F) {
	for _, seed := range []string{"00000000:65:00.0", "00000008:01:00.0", "00010000:01:00.0", "0000:0A:00.0", "", "0000:65:00", "zz"} {
		f.Add(seed)
	}
	kernel := regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	f.Fuzz(func(t *testing.T, busID string) {
		pci, err := pciAddress(busID)
		if err != nil {
			return
		}
		if !kernel.MatchString(pci) {
			t.Errorf("%q became %q", busID, pci)
		}
		if again, err := pciAddress(pci); err != nil || again != pci {
			t.Errorf("%q became %q and then %q, %v", busID, pci, again, err)
		}
	})
}
