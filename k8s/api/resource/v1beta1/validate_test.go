package v1beta1

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// parse decodes and normalizes a configuration given without its head.
func parse(t *testing.T, kind, fields string) Config {
	t.Helper()
	cfg, err := DecodeConfig([]byte(`{` + head + `"` + kind + `"` + fields + `}`))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Normalize()
	return cfg
}

func TestValidate(t *testing.T) {
	const gpu0, mig0 = "GPU-0a1b2c3d-0000-0000-0000-000000000000", "MIG-0a1b2c3d-0000-0000-0000-000000000001"
	mps := func(settings string) string {
		return `,"sharing":{"strategy":"MPS","mpsConfig":{` + settings + `}}`
	}
	for _, c := range []struct{ kind, fields, want string }{
		{"GpuConfig", ``, ``},
		{"GpuConfig", `,"sharing":null`, ``},
		{"GpuConfig", `,"sharing":{}`, `sharing.strategy: is missing: write "TimeSlicing" or "MPS", or leave sharing out`},
		{"GpuConfig", `,"sharing":{"strategy":"Mps"}`, `sharing.strategy: "Mps" is not a sharing strategy: use "TimeSlicing" or "MPS"`},
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing"}`, ``},
		// W1: an object that is there and empty.
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`, ``},
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":null}}`, ``},
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Medium"}}`, ``},
		// R074: lower case is no interval.
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"long"}}`,
			`sharing.timeSlicingConfig.interval: "long" is not an interval: use "Default", "Short", "Medium" or "Long"`},
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":""}}`, `"" is not an interval`},
		// W29: settings of the other strategy.
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing","mpsConfig":{}}`,
			`sharing.mpsConfig: belongs to strategy "MPS", but the strategy is "TimeSlicing": remove it or change the strategy`},
		{"GpuConfig", `,"sharing":{"strategy":"MPS","timeSlicingConfig":{"interval":"Long"}}`,
			`sharing.timeSlicingConfig: belongs to strategy "TimeSlicing", but the strategy is "MPS"`},
		{"GpuConfig", `,"sharing":{"strategy":"MPS"}`, ``},
		{"GpuConfig", mps(`"defaultActiveThreadPercentage":0`), ``},
		{"GpuConfig", mps(`"defaultActiveThreadPercentage":100`), ``},
		{"GpuConfig", mps(`"defaultActiveThreadPercentage":101`), `sharing.mpsConfig.defaultActiveThreadPercentage: 101 is not a percentage: use 0 to 100`},
		{"GpuConfig", mps(`"defaultActiveThreadPercentage":-1`), `-1 is not a percentage`},
		{"GpuConfig", mps(`"defaultPinnedDeviceMemoryLimit":"1Mi"`), ``},
		{"GpuConfig", mps(`"defaultPinnedDeviceMemoryLimit":1048576`), ``},
		{"GpuConfig", mps(`"defaultPinnedDeviceMemoryLimit":1048575`), `sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: invalid limit: "1048575" is less than 1Mi`},
		{"GpuConfig", mps(`"defaultPinnedDeviceMemoryLimit":"10GB"`), `"10GB" is not an amount of memory: write it like "512Mi" or "4Gi"`},
		{"GpuConfig", mps(`"defaultPinnedDeviceMemoryLimit":""`), `"" is not an amount of memory`},
		{"GpuConfig", mps(`"defaultPinnedDeviceMemoryLimit":true`), `"true" is not an amount of memory`},
		{"GpuConfig", mps(`"defaultPinnedDeviceMemoryLimit":"-4Gi"`), `less than 1Mi`},
		{"GpuConfig", mps(`"defaultPinnedDeviceMemoryLimit":"1e90"`), `is more memory than any device has`},
		{"GpuConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","` + gpu0 + `":"2Gi"}`), ``},
		{"GpuConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"0":"1Ki"}`), `sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["0"]: invalid limit: "1Ki" is less than 1Mi`},
		{"GpuConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"0":null}`), `is not an amount of memory`},
		{"GpuConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"gpu-0":"1Gi"}`), `["gpu-0"]: the key is neither a UUID`},
		{"GpuConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"-1":"1Gi"}`), `["-1"]: the key is neither a UUID`},
		{"GpuConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"00":"1Gi"}`), `["00"]: the key is neither a UUID`},
		{"GpuConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"` + mig0 + `":"1Gi"}`), `names a MIG device, but the configuration is for GPU devices`},
		{"MigDeviceConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"` + mig0 + `":"1Gi"}`), ``},
		{"MigDeviceConfig", mps(`"defaultPerDevicePinnedMemoryLimit":{"` + gpu0 + `":"1Gi"}`), `names a GPU device, but the configuration is for MIG devices`},
		{"MigDeviceConfig", ``, ``},
		{"MigDeviceConfig", `,"sharing":{"strategy":"MPS"}`, ``},
		{"MigDeviceConfig", `,"sharing":{}`, `sharing.strategy: is missing`},
		// R075: the same sentence at admission and in prepare.
		{"MigDeviceConfig", `,"sharing":{"strategy":"TimeSlicing"}`,
			`sharing.strategy: "TimeSlicing" is not possible on a MIG device, because the time slice is a setting of the whole GPU: use "MPS" or leave sharing out`},
		{"VfioDeviceConfig", ``, ``},
		{"VfioDeviceConfig", `,"iommu":{}`, ``},
		{"VfioDeviceConfig", `,"iommu":{"backendPolicy":"IommuFD"}`, `iommu.backendPolicy: "IommuFD" is not a policy: use "LegacyOnly" or "PreferIommuFD"`},
	} {
		err := parse(t, c.kind, c.fields).Validate()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s%s: %v", c.kind, c.fields, err)
		case c.want != "" && err == nil:
			t.Errorf("%s%s: accepted, want %q", c.kind, c.fields, c.want)
		case err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s%s:\n got %q\nwant %q", c.kind, c.fields, err, c.want)
		}
	}
}

// Everything that is wrong is said at once, in a stable order.
func TestValidateReportsAll(t *testing.T) {
	err := parse(t, "GpuConfig", `,"sharing":{"strategy":"Both","timeSlicingConfig":{"interval":"Now"},
		"mpsConfig":{"defaultActiveThreadPercentage":200,"defaultPerDevicePinnedMemoryLimit":{"b":"1Gi","a":"1Gi"}}}`).Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	rest := err.Error()
	for _, want := range []string{`"Both"`, `"Now"`, `200`, `["a"]`, `["b"]`} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("%q is missing, or in another place, in %q", want, err)
		}
		rest = after
	}
}

func TestNormalize(t *testing.T) {
	for _, c := range []struct{ kind, fields, want string }{
		{"GpuConfig", ``, ``},
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing"}`, `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}`},
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`, `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}`},
		{"GpuConfig", `,"sharing":{"strategy":"MPS"}`, `,"sharing":{"strategy":"MPS","mpsConfig":{}}`},
		{"MigDeviceConfig", `,"sharing":{"strategy":"MPS"}`, `,"sharing":{"strategy":"MPS","mpsConfig":{}}`},
		{"VfioDeviceConfig", ``, `,"iommu":{"backendPolicy":"LegacyOnly","enableAPIDevice":false}`},
	} {
		want, err := DecodeConfig([]byte(`{` + head + `"` + c.kind + `"` + c.want + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, parse(t, c.kind, c.fields)); d != "" {
			t.Errorf("%s%s: (-want +got)\n%s", c.kind, c.fields, d)
		}
	}
}

// R074: the names mean the driver's numbers 0 to 3.
func TestTimeSliceNumbers(t *testing.T) {
	for i, want := range map[TimeSliceInterval]int{"Default": 0, "Short": 1, "Medium": 2, "Long": 3} {
		if n, ok := i.Number(); !ok || n != want {
			t.Errorf("%s is %d, %v, want %d", i, n, ok, want)
		}
	}
	if _, ok := TimeSliceInterval("long").Number(); ok {
		t.Error(`"long" has a number`)
	}
}

// R064: limits by default, by UUID and by index.
func TestPinnedMemoryLimits(t *testing.T) {
	const a, b, c = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000", "GPU-cccccccc-0000-0000-0000-000000000000"
	uuids := []string{c, a, b} // the index counts in sorted order, not in this one
	def := MemoryLimit("10Gi")
	for _, x := range []struct {
		cfg     *MpsConfig
		want    map[string]string
		wantErr string
	}{
		{cfg: nil, want: map[string]string{}},
		{cfg: &MpsConfig{}, want: map[string]string{}},
		{cfg: &MpsConfig{DefaultPinnedDeviceMemoryLimit: &def}, want: map[string]string{a: "10240M", b: "10240M", c: "10240M"}},
		{
			cfg: &MpsConfig{
				DefaultPinnedDeviceMemoryLimit:    &def,
				DefaultPerDevicePinnedMemoryLimit: map[string]MemoryLimit{"0": "1Gi", c: "1500Ki"},
			},
			want: map[string]string{a: "1024M", b: "10240M", c: "1M"},
		},
		{
			cfg:     &MpsConfig{DefaultPerDevicePinnedMemoryLimit: map[string]MemoryLimit{"3": "1Gi"}},
			wantErr: `sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["3"]: invalid device: index 3 is out of range, 3 devices have this configuration`,
		},
		{
			cfg:     &MpsConfig{DefaultPerDevicePinnedMemoryLimit: map[string]MemoryLimit{"GPU-dddddddd-0000-0000-0000-000000000000": "1Gi"}},
			wantErr: `invalid device: the claim has no device "GPU-dddddddd-`,
		},
		{
			cfg:     &MpsConfig{DefaultPerDevicePinnedMemoryLimit: map[string]MemoryLimit{"0": "1Gi", a: "2Gi"}},
			wantErr: `means device ` + a + `, which key "0" has set already`,
		},
		{
			cfg:     &MpsConfig{DefaultPerDevicePinnedMemoryLimit: map[string]MemoryLimit{"0": "1000"}},
			wantErr: `invalid limit: "1000" is less than 1Mi`,
		},
	} {
		got, err := x.cfg.PinnedMemoryLimits(uuids)
		if x.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), x.wantErr) {
				t.Errorf("got error %v, want %q", err, x.wantErr)
			}
			continue
		}
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(x.want, got); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
	if d := cmp.Diff([]string{c, a, b}, uuids); d != "" {
		t.Errorf("the caller's list was changed: %s", d)
	}
}

// Kubernetes' own parser needs minutes for these; a claim must not stop the
// plugin with them.
func TestMemoryLimitIsCheap(t *testing.T) {
	start := time.Now()
	for _, l := range []MemoryLimit{
		"1e1000000000", "1.5e-1000000000", "1E-999", MemoryLimit(strings.Repeat("9", 100_000)), MemoryLimit("1." + strings.Repeat("0", 1000)),
	} {
		if mib, err := l.MiB(); err == nil {
			t.Errorf("%.20s is %d MiB", l, mib)
		} else if len(err.Error()) > 300 {
			t.Errorf("%.20s: the error is %d bytes long", l, len(err.Error()))
		}
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("took %v", d)
	}
}

func TestCheckGate(t *testing.T) {
	for _, c := range []struct{ kind, fields, gate, want string }{
		{"GpuConfig", ``, ``, ``},
		{"MigDeviceConfig", ``, ``, ``},
		{"GpuConfig", `,"sharing":{"strategy":"TimeSlicing"}`, "TimeSlicingSettings",
			`"TimeSlicing" is selected as the GPU sharing strategy, but the feature gate "TimeSlicingSettings" is off`},
		{"GpuConfig", `,"sharing":{"strategy":"MPS"}`, "MPSSupport",
			`"MPS" is selected as the GPU sharing strategy, but the feature gate "MPSSupport" is off`},
		{"MigDeviceConfig", `,"sharing":{"strategy":"MPS"}`, "MPSSupport",
			`"MPS" is selected as the GPU sharing strategy, but the feature gate "MPSSupport" is off`},
		{"VfioDeviceConfig", ``, "PassthroughSupport", `a GPU is passed through with VFIO, but the feature gate "PassthroughSupport" is off`},
	} {
		cfg := parse(t, c.kind, c.fields)
		if gate, _ := RequiredGate(cfg); gate != c.gate {
			t.Errorf("%s%s needs %q, want %q", c.kind, c.fields, gate, c.gate)
		}
		if err := CheckGate(cfg, func(g string) bool { return g == c.gate }); err != nil {
			t.Errorf("%s%s, gate on: %v", c.kind, c.fields, err)
		}
		err := CheckGate(cfg, func(string) bool { return false })
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s%s, gate off: got %v, want %q", c.kind, c.fields, err, c.want)
		}
	}
	if gate, what := RequiredGate(nil); gate != "" || what != "" {
		t.Errorf("no configuration needs %q, %q", gate, what)
	}
}
