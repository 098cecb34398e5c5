package driver

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// unknown is what a value is called that is newer than this program.
const unknown = "Unknown"

// brands are NVML's brands in the words that users select by.
var brands = map[gonvml.BrandType]string{
	gonvml.BRAND_QUADRO:              "Quadro",
	gonvml.BRAND_TESLA:               "Tesla",
	gonvml.BRAND_NVS:                 "NVS",
	gonvml.BRAND_GRID:                "Grid",
	gonvml.BRAND_GEFORCE:             "GeForce",
	gonvml.BRAND_TITAN:               "Titan",
	gonvml.BRAND_NVIDIA_VAPPS:        "NvidiaVApps",
	gonvml.BRAND_NVIDIA_VPC:          "NvidiaVPC",
	gonvml.BRAND_NVIDIA_VCS:          "NvidiaVCS",
	gonvml.BRAND_NVIDIA_VWS:          "NvidiaVWS",
	gonvml.BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
	gonvml.BRAND_QUADRO_RTX:          "QuadroRTX",
	gonvml.BRAND_NVIDIA_RTX:          "NvidiaRTX",
	gonvml.BRAND_NVIDIA:              "Nvidia",
	gonvml.BRAND_GEFORCE_RTX:         "GeForceRTX",
	gonvml.BRAND_TITAN_RTX:           "TitanRTX",
}

func brandName(brand gonvml.BrandType) string {
	if name, ok := brands[brand]; ok {
		return name
	}
	return unknown
}

// architectures are NVML's architectures in the words that users select by.
var architectures = map[gonvml.DeviceArchitecture]string{
	gonvml.DEVICE_ARCH_KEPLER:    "Kepler",
	gonvml.DEVICE_ARCH_MAXWELL:   "Maxwell",
	gonvml.DEVICE_ARCH_PASCAL:    "Pascal",
	gonvml.DEVICE_ARCH_VOLTA:     "Volta",
	gonvml.DEVICE_ARCH_TURING:    "Turing",
	gonvml.DEVICE_ARCH_AMPERE:    "Ampere",
	gonvml.DEVICE_ARCH_ADA:       "Ada Lovelace",
	gonvml.DEVICE_ARCH_HOPPER:    "Hopper",
	gonvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
	gonvml.DEVICE_ARCH_RUBIN:     "Rubin",
}

func architectureName(arch gonvml.DeviceArchitecture) string {
	if name, ok := architectures[arch]; ok {
		return name
	}
	return unknown
}

// addressingName is how a GPU shares addresses with the CPU; "" for a way
// that is newer than this program, since no selector can ask for it.
func addressingName(mode gonvml.DeviceAddressingMode) string {
	switch gonvml.DeviceAddressingModeType(mode.Value) {
	case gonvml.DEVICE_ADDRESSING_MODE_NONE:
		return "None"
	case gonvml.DEVICE_ADDRESSING_MODE_HMM:
		return "HMM"
	case gonvml.DEVICE_ADDRESSING_MODE_ATS:
		return "ATS"
	}
	return ""
}

// suffixes tell apart the profiles of one size. A profile that is not listed
// has none.
var suffixes = map[int]string{
	gonvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1:   "+me",
	gonvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:   "+me",
	gonvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
	gonvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
	gonvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX:    "+gfx",
	gonvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX:    "+gfx",
	gonvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX:    "+gfx",
	gonvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:    "+gfx",
	gonvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME:  "-me",
	gonvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:  "-me",
}

// profileName is the name of a MIG profile, "1g.10gb+me": compute slices,
// gigabytes, and what else it has. index is NVML's index of the profile, total
// the memory of the whole GPU, 0 if that is not known.
func profileName(index, slices int, memoryMiB, total uint64) string {
	return fmt.Sprintf("%dg.%dgb%s", slices, profileGB(memoryMiB, total), suffixes[index])
}

// profileGB is the number of gigabytes in the name of a profile. The driver
// names a profile by the eighths of the GPU it has, as parts of the GPU's
// nominal memory, not by the memory that is left of that: 9856 MiB on a GPU of
// 80 GB is "10gb".
func profileGB(memoryMiB, total uint64) uint64 {
	const mib, gib, eighths = 1 << 20, 1 << 30, 8
	if total == 0 {
		return uint64(math.Round(float64(memoryMiB) * mib / gib))
	}
	part := math.Ceil(float64(memoryMiB)*mib/float64(total)*eighths) / eighths
	whole := math.Ceil(float64(total) / gib)
	return uint64(math.Round(part * whole))
}

var busID = regexp.MustCompile(`^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([01][0-9a-fA-F])\.([0-7])$`)

// pciAddress is the kernel's form of an address as NVML writes it: lower
// case, and a domain of more than four digits only if it needs them.
func pciAddress(nvmlBusID string) (string, error) {
	m := busID.FindStringSubmatch(nvmlBusID)
	if m == nil {
		return "", fmt.Errorf("nvmlDeviceGetPciInfo_v3: %q is not a PCI address", nvmlBusID)
	}
	domain, err := strconv.ParseUint(m[1], 16, 32)
	if err != nil {
		return "", fmt.Errorf("nvmlDeviceGetPciInfo_v3: domain of %q: %w", nvmlBusID, err)
	}
	return strings.ToLower(fmt.Sprintf("%04x:%s:%s.%s", domain, m[2], m[3], m[4])), nil
}

// comparePCI orders addresses as numbers: a longer domain is a larger one.
func comparePCI(a, b string) int {
	if d := strings.IndexByte(a, ':') - strings.IndexByte(b, ':'); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}
