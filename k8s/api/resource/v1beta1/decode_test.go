package v1beta1

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const head = `"apiVersion":"resource.nvidia.com/v1beta1","kind":`

func TestDecodeConfig(t *testing.T) {
	long := LongTimeSlice
	fifty := 50
	yes := true
	limit := MemoryLimit("10Gi")
	for raw, want := range map[string]Config{
		`{` + head + `"GpuConfig"}`:                                     &GpuConfig{TypeMeta: typeMeta("GpuConfig")},
		`{` + head + `"GpuConfig","sharing":null}`:                      &GpuConfig{TypeMeta: typeMeta("GpuConfig")},
		`{` + head + `"GpuConfig","sharing":{}}`:                        &GpuConfig{TypeMeta: typeMeta("GpuConfig"), Sharing: &GpuSharing{}},
		` {` + head + `"MigDeviceConfig","sharing":{"strategy":"MPS"}}`: &MigDeviceConfig{TypeMeta: typeMeta("MigDeviceConfig"), Sharing: &MigDeviceSharing{Strategy: MpsStrategy}},
		`{` + head + `"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`: &GpuConfig{
			TypeMeta: typeMeta("GpuConfig"),
			Sharing:  &GpuSharing{Strategy: TimeSlicingStrategy, TimeSlicingConfig: &TimeSlicingConfig{Interval: &long}},
		},
		`{` + head + `"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,
			"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":4e9},"multiUser":true}}}`: &GpuConfig{
			TypeMeta: typeMeta("GpuConfig"),
			Sharing: &GpuSharing{Strategy: MpsStrategy, MpsConfig: &MpsConfig{
				DefaultActiveThreadPercentage: &fifty, DefaultPinnedDeviceMemoryLimit: &limit,
				DefaultPerDevicePinnedMemoryLimit: map[string]MemoryLimit{"0": "4e9"}, MultiUser: &yes,
			}},
		},
		`{` + head + `"VfioDeviceConfig","iommu":{"backendPolicy":"PreferIommuFD","enableAPIDevice":true}}`: &VfioDeviceConfig{
			TypeMeta: typeMeta("VfioDeviceConfig"), Iommu: &VfioIommuConfig{BackendPolicy: PreferIommuFD, EnableAPIDevice: &yes},
		},
	} {
		got, err := DecodeConfig([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", raw, d)
		}
	}
}

func TestDecodeConfigRefuses(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{``, `decode configuration: it is not an object: write one with apiVersion resource.nvidia.com/v1beta1 and kind GpuConfig, MigDeviceConfig or VfioDeviceConfig`},
		{`null`, `it is not an object`},
		{`[]`, `it is not an object`},
		{`"GpuConfig"`, `it is not an object`},
		{`{`, `unexpected end of JSON input`},
		{`{}`, `apiVersion or kind is missing`},
		{`{"kind":"GpuConfig"}`, `apiVersion or kind is missing`},
		{`{"apiVersion":"resource.nvidia.com/v1beta1"}`, `apiVersion or kind is missing`},
		{`{"apiVersion":3,"kind":"GpuConfig"}`, `apiVersion: is a number, but must be a string`},
		{`{"apiVersion":"resource.nvidia.com/v1","kind":"GpuConfig"}`, `apiVersion "resource.nvidia.com/v1" is not known here: use resource.nvidia.com/v1beta1`},
		{`{"apiVersion":"gpu.nvidia.com/v1beta1","kind":"GpuConfig"}`, `apiVersion "gpu.nvidia.com/v1beta1" is not known here`},
		{`{` + head + `"GPUConfig"}`, `kind "GPUConfig" is not a configuration of this driver: use GpuConfig, MigDeviceConfig or VfioDeviceConfig`},
		{`{` + head + `"GpuConfig","timeSliceInterval":"Long"}`, `decode GpuConfig: strict decoding error: unknown field "timeSliceInterval"`},
		{`{` + head + `"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"intervall":"Long"}}}`,
			`strict decoding error: unknown field "sharing.timeSlicingConfig.intervall"`},
		{`{` + head + `"GpuConfig","Sharing":{"strategy":"MPS"}}`, `unknown field "Sharing"`},
		{`{` + head + `"MigDeviceConfig","sharing":{"strategy":"MPS","timeSlicingConfig":{}}}`, `unknown field "sharing.timeSlicingConfig"`},
		{`{` + head + `"GpuConfig","sharing":{"strategy":"MPS","strategy":"TimeSlicing"}}`, `duplicate field "sharing.strategy"`},
		{`{` + head + `"GpuConfig","kind":"GpuConfig"}`, `duplicate field "kind"`},
		{`{` + head + `"GpuConfig","sharing":"MPS"}`, `decode GpuConfig: sharing: is a string, but must be an object`},
		{`{` + head + `"GpuConfig","sharing":{"strategy":1}}`, `sharing.strategy: is a number, but must be a string`},
		{`{` + head + `"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":"50"}}}`,
			`sharing.mpsConfig.defaultActiveThreadPercentage: is a string, but must be a whole number`},
		{`{` + head + `"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":1.5}}}`,
			`sharing.mpsConfig.defaultActiveThreadPercentage: is the number 1.5, but must be a whole number`},
		{`{` + head + `"VfioDeviceConfig","iommu":{"enableAPIDevice":"yes"}}`, `iommu.enableAPIDevice: is a string, but must be true or false`},
		{`{` + head + `"GpuConfig"} trailing`, `invalid character 't' after top-level value`},
	} {
		cfg, err := DecodeConfig([]byte(c.raw))
		if err == nil {
			t.Errorf("%s: accepted as %#v, want an error with %q", c.raw, cfg, c.want)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.raw, err, c.want)
		}
	}
}

// R142: what we stored ourselves must stay readable after a downgrade, though
// the same field written by a user is a mistake.
func TestDecodeStored(t *testing.T) {
	raw := []byte(`{` + head + `"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Short","jitter":3}},"since":"0.9"}`)
	if _, err := DecodeConfig(raw); err == nil {
		t.Error("DecodeConfig accepted an unknown field")
	}
	got, err := DecodeStored(raw)
	if err != nil {
		t.Fatal(err)
	}
	short := ShortTimeSlice
	want := &GpuConfig{
		TypeMeta: typeMeta("GpuConfig"),
		Sharing:  &GpuSharing{Strategy: TimeSlicingStrategy, TimeSlicingConfig: &TimeSlicingConfig{Interval: &short}},
	}
	if d := cmp.Diff(Config(want), got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if _, err := DecodeStored([]byte(`{` + head + `"DpuConfig"}`)); err == nil {
		t.Error("DecodeStored accepted an unknown kind")
	}
}

// What the driver fills in for a device that nobody configured can be stored
// and read back, and is valid.
func TestDefaults(t *testing.T) {
	for _, cfg := range []Config{DefaultGpuConfig(), DefaultMigDeviceConfig(), DefaultVfioDeviceConfig()} {
		raw, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Normalize()
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		again, err := DecodeConfig(raw)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if d := cmp.Diff(cfg, again); d != "" {
			t.Errorf("%s: (-default +decoded)\n%s", raw, d)
		}
	}
}

func FuzzDecodeConfig(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `[]`, `{` + head + `"GpuConfig"}`,
		`{` + head + `"GpuConfig","sharing":{}}`,
		`{` + head + `"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}}`,
		`{` + head + `"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":null}}}`,
		`{` + head + `"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"},"mpsConfig":{}}}`,
		`{` + head + `"MigDeviceConfig","sharing":{"strategy":"MPS","mpsConfig":null}}`,
		`{` + head + `"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1.5e-10000000",
			"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","GPU-0a1b2c3d-0000-0000-0000-000000000000":null,"-1":true}}}}`,
		`{` + head + `"VfioDeviceConfig","iommu":{"backendPolicy":"","enableAPIDevice":null}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		cfg, err := DecodeConfig(raw)
		if err != nil {
			return // refusing is fine; panicking or guessing is not
		}
		if _, err := DecodeStored(raw); err != nil {
			t.Fatalf("strict accepts what lenient refuses: %v", err)
		}
		_ = cfg.Validate() // must not depend on Normalize
		cfg.Normalize()
		verdict := cfg.Validate()
		once := encode(t, cfg)
		cfg.Normalize()
		if twice := encode(t, cfg); once != twice {
			t.Fatalf("normalizing twice changes %s to %s", once, twice)
		}
		again, err := DecodeConfig([]byte(once))
		if err != nil {
			t.Fatalf("cannot read back %s: %v", once, err)
		}
		if back := encode(t, again); back != once {
			t.Fatalf("a round trip changes %s to %s", once, back)
		}
		if after := again.Validate(); (verdict == nil) != (after == nil) {
			t.Fatalf("%s: the verdict was %v and is %v after a round trip", once, verdict, after)
		}
		gate, what := RequiredGate(cfg)
		if verdict == nil && (gate == "") != (what == "") {
			t.Fatalf("%s: gate %q, what %q", once, gate, what)
		}
		if c, ok := cfg.(*GpuConfig); ok && c.Sharing != nil {
			uuid := "GPU-0a1b2c3d-0000-0000-0000-000000000000"
			limits, err := c.Sharing.MpsConfig.PinnedMemoryLimits([]string{uuid})
			if err == nil && len(limits) > 1 {
				t.Fatalf("limits for devices that are not there: %v", limits)
			}
		}
	})
}

func encode(t *testing.T, cfg Config) string {
	t.Helper()
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
