package device

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"nvdra/nvml"
)

func h100() nvml.GPU {
	return nvml.GPU{
		UUID: "GPU-7277883e-0000-4000-8000-000000000000", Minor: 3, PCI: "0000:65:00.0",
		Product: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper",
		ComputeMajor: 9, ComputeMinor: 0, MemoryBytes: 85520809984, AddressingMode: "HMM",
		MIG: nvml.MIGMode{Capable: true},
	}
}

func numa(n int) *int { return &n }

func context() Context {
	return Context{
		Driver: nvml.Driver{Version: "580.95.05", CUDAVersion: 13000},
		Places: map[string]Place{"0000:65:00.0": {PCIeRoot: "pci0000:64", NUMANode: numa(0)}},
	}
}

func keys[V any](m map[resourceapi.QualifiedName]V) []string {
	var all []string
	for k := range maps.Keys(m) {
		all = append(all, string(k))
	}
	slices.Sort(all)
	return all
}

func value(a resourceapi.DeviceAttribute) any {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return "v" + *a.VersionValue
	case a.IntValue != nil:
		return *a.IntValue
	}
	return nil
}

func TestGPU(t *testing.T) {
	all := All(context(), h100())
	if len(all) != 1 {
		t.Fatalf("%d devices, want 1", len(all))
	}
	d := all[0].Slice()
	if d.Name != "gpu-3" {
		t.Errorf("name %q, want gpu-3", d.Name)
	}
	got := map[string]any{}
	for k, a := range d.Attributes {
		got[string(k)] = value(a)
	}
	want := map[string]any{
		"type": "gpu", "uuid": "GPU-7277883e-0000-4000-8000-000000000000", "productName": "NVIDIA H100 80GB HBM3",
		"brand": "Nvidia", "architecture": "Hopper", "cudaComputeCapability": "v9.0.0", "driverVersion": "v580.95.5",
		"cudaDriverVersion": "v13.0.0", "addressingMode": "HMM", "resource.kubernetes.io/pciBusID": "0000:65:00.0",
		"resource.kubernetes.io/pcieRoot": "pci0000:64", "resource.kubernetes.io/numaNode": int64(0),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"memory"}, keys(d.Capacity)); diff != "" {
		t.Error(diff)
	}
}

// What a driver or board does not report is left out; it never makes a value
// that the API server would refuse (reports R034, R035, R187).
func TestMissingValuesAreLeftOut(t *testing.T) {
	bare := nvml.GPU{UUID: "GPU-1", Minor: 0, PCI: "0000:01:00.0"}
	d := All(Context{}, bare)[0].Slice()
	if diff := cmp.Diff([]string{"resource.kubernetes.io/pciBusID", "type", "uuid"}, keys(d.Attributes)); diff != "" {
		t.Error(diff)
	}
	if len(d.Capacity) != 0 {
		t.Errorf("capacity %v of a GPU that reports none", d.Capacity)
	}
	odd := h100()
	odd.Product = strings.Repeat("x", 65)
	odd.MemoryBytes = 1 << 63
	c := context()
	c.Driver.Version = "580.95.05-rc1"
	d = All(c, odd)[0].Slice()
	for _, k := range []resourceapi.QualifiedName{"productName", "driverVersion"} {
		if _, there := d.Attributes[k]; there {
			t.Errorf("attribute %s is there", k)
		}
	}
	if _, there := d.Capacity["memory"]; there {
		t.Error("memory that does not fit in a quantity is there")
	}
}

func TestMIG(t *testing.T) {
	gpu := h100()
	gpu.MIG.Enabled = true
	gpu.MIGDevices = []nvml.MIGDevice{{
		UUID: "MIG-1", Parent: gpu.UUID, GPUInst: 2, CompInst: 0, Profile: "3g.40gb", ProfileID: 9, Start: 4, Size: 4,
		Resources: nvml.MIGResources{MemoryMiB: 40448, Multiprocessors: 60, CopyEngines: 3, Decoders: 3, JPEGEngines: 3},
	}, {UUID: "MIG-2", Parent: gpu.UUID, Profile: "1g.10gb+me", ProfileID: 20, Start: 0, Size: 1}}
	all := All(context(), gpu)
	if len(all) != 2 {
		t.Fatalf("%d devices, want the 2 MIG devices and not the GPU (report R039)", len(all))
	}
	if all[0].Name() != "gpu-3-mig-3g40gb-9-4" || all[1].Name() != "gpu-3-mig-1g10gb-me-20-0" {
		t.Errorf("names %s, %s", all[0].Name(), all[1].Name())
	}
	if diff := cmp.Diff([]string{"0000:65:00.0/slice-4", "0000:65:00.0/slice-5", "0000:65:00.0/slice-6", "0000:65:00.0/slice-7"}, all[0].Occupies()); diff != "" {
		t.Error(diff)
	}
	d := all[0].Slice()
	wantAttr := []string{"addressingMode", "architecture", "brand", "cudaComputeCapability", "cudaDriverVersion", "driverVersion", "parentUUID", "productName", "profile",
		"resource.kubernetes.io/numaNode", "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot", "type", "uuid"}
	if diff := cmp.Diff(wantAttr, keys(d.Attributes)); diff != "" {
		t.Error(diff)
	}
	wantCap := []string{"copyEngines", "decoders", "encoders", "jpegEngines", "memory", "memorySlice4", "memorySlice5", "memorySlice6", "memorySlice7", "multiprocessors", "ofaEngines"}
	if diff := cmp.Diff(wantCap, keys(d.Capacity)); diff != "" {
		t.Error(diff)
	}
	if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("%d attributes and capacities; the API server takes %d", n, resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
	}
}

func TestNumberComesFromTheNames(t *testing.T) {
	c := context()
	c.Numbers = map[string]int{"0000:65:00.0": 7}
	if name := All(c, h100())[0].Name(); name != "gpu-7" {
		t.Errorf("name %s, want gpu-7", name)
	}
}

func TestSemver(t *testing.T) {
	for in, want := range map[string]string{
		"580.95.05": "580.95.5", "570.170": "570.170.0", "9": "9.0.0", "0.0.0": "0.0.0",
		"": "", "1.2.3.4": "", "1.x": "", "-1.0.0": "", "1..2": "", " 1": "", "99999999999.0": "",
	} {
		got, ok := semver(in)
		if got != want || ok != (want != "") {
			t.Errorf("semver(%q) = %q, %v; want %q", in, got, ok, want)
		}
	}
}

// Every profile name becomes part of a valid device name, which is a DNS label.
func FuzzMIGName(f *testing.F) {
	f.Add("1g.10gb+me")
	f.Add("-.-")
	f.Add("ÄÖ g")
	f.Fuzz(func(t *testing.T, profile string) {
		for _, r := range dnsLabel(profile) {
			if !(r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z') {
				t.Fatalf("%q in %q", r, dnsLabel(profile))
			}
		}
	})
}
