package featuregates

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		texts   []string
		on, off []Gate
	}{
		"nothing":                           {nil, []Gate{ComputeDomainCliques, IMEXDaemonsWithDNSNames, CrashOnNVLinkFabricErrors}, []Gate{DynamicMIG, MPSSupport}},
		"empty":                             {[]string{"", " , ,"}, nil, []Gate{DynamicMIG}},
		"trailing comma":                    {[]string{"DynamicMIG=true,MPSSupport=false,"}, []Gate{DynamicMIG}, []Gate{MPSSupport}},
		"spaces":                            {[]string{" DynamicMIG = true , MPSSupport =1"}, []Gate{DynamicMIG, MPSSupport}, nil},
		"later in one":                      {[]string{"DynamicMIG=true,DynamicMIG=false"}, nil, []Gate{DynamicMIG}},
		"later text":                        {[]string{"DynamicMIG=true", "DynamicMIG=false"}, nil, []Gate{DynamicMIG}},
		"all alpha":                         {[]string{"AllAlpha=true"}, []Gate{DynamicMIG, LoggingAlphaOptions, ComputeDomainCliques}, nil},
		"named after":                       {[]string{"AllAlpha=true,DynamicMIG=false"}, []Gate{MPSSupport}, []Gate{DynamicMIG}},
		"named before":                      {[]string{"DynamicMIG=false,AllAlpha=true"}, []Gate{MPSSupport}, []Gate{DynamicMIG}},
		"named in earlier text":             {[]string{"DynamicMIG=false", "AllAlpha=true"}, []Gate{MPSSupport}, []Gate{DynamicMIG}},
		"named in later text":               {[]string{"AllAlpha=true", "DynamicMIG=false"}, []Gate{MPSSupport}, []Gate{DynamicMIG}},
		"later all does not undo":           {[]string{"AllAlpha=true", "AllAlpha=false"}, []Gate{MPSSupport, DynamicMIG}, nil},
		"all beta":                          {[]string{"AllBeta=false"}, []Gate{ContextualLogging}, []Gate{ComputeDomainCliques, IMEXDaemonsWithDNSNames, CrashOnNVLinkFabricErrors, LoggingBetaOptions, DynamicMIG}},
		"logging gates of upstream's chart": {[]string{"ContextualLogging=false,LoggingAlphaOptions=true,LoggingBetaOptions=true,"}, []Gate{LoggingAlphaOptions}, []Gate{ContextualLogging}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse(test.texts...)
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range test.on {
				if !s.Enabled(g) {
					t.Errorf("%s is off", g)
				}
			}
			for _, g := range test.off {
				if s.Enabled(g) {
					t.Errorf("%s is on", g)
				}
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]struct {
		is   error
		says string
	}{
		"DynamicMIG":          {ErrSyntax, `"DynamicMIG" is not of the form Name=true or Name=false`},
		"DynamicMIG=":         {ErrSyntax, `"DynamicMIG="`},
		"DynamicMIG=perhaps":  {ErrSyntax, `"DynamicMIG=perhaps"`},
		"DynamicMIG=true=yes": {ErrSyntax, `"DynamicMIG=true=yes"`},
		"Nonsense=true":       {ErrUnknown, `"Nonsense": no such feature gate; known are AllAlpha, AllBeta, ComputeDomainCliques`},
		"dynamicmig=true":     {ErrUnknown, "did you mean DynamicMIG?"},
		"=true":               {ErrUnknown, `""`},
	} {
		_, err := Parse(text)
		if !errors.Is(err, want.is) || !strings.Contains(err.Error(), want.says) {
			t.Errorf("Parse(%q) = %v, want %v saying %q", text, err, want.is, want.says)
		}
	}
	_, err := Parse("A=true,B", "C=true")
	for _, name := range []string{`"A"`, `"B"`, `"C"`} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
}

func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want []Violation
		off  []Gate
	}{
		"defaults":           {"", nil, nil},
		"each alone":         {"MPSSupport=true,NVMLDeviceHealthCheck=true,TimeSlicingSettings=true,ConsumableShares=true", nil, nil},
		"cliques need DNS":   {"IMEXDaemonsWithDNSNames=false", []Violation{{ComputeDomainCliques, IMEXDaemonsWithDNSNames, true}}, []Gate{ComputeDomainCliques}},
		"no cliques, no DNS": {"IMEXDaemonsWithDNSNames=false,ComputeDomainCliques=false", nil, nil},
		"no beta":            {"AllBeta=false", nil, nil},
		"mig and vfio":       {"DynamicMIG=true,PassthroughSupport=true", []Violation{{DynamicMIG, PassthroughSupport, false}}, []Gate{DynamicMIG}},
		"mig and health":     {"DynamicMIG=true,NVMLDeviceHealthCheck=true", []Violation{{DynamicMIG, NVMLDeviceHealthCheck, false}}, []Gate{DynamicMIG}},
		"mig and mps":        {"DynamicMIG=true,MPSSupport=true", []Violation{{DynamicMIG, MPSSupport, false}}, []Gate{DynamicMIG}},
		"vfio and health":    {"PassthroughSupport=true,NVMLDeviceHealthCheck=true", []Violation{{PassthroughSupport, NVMLDeviceHealthCheck, false}}, []Gate{NVMLDeviceHealthCheck}},
		"metadata":           {"DeviceMetadata=true", []Violation{{DeviceMetadata, PassthroughSupport, true}}, []Gate{DeviceMetadata}},
		"metadata with vfio": {"DeviceMetadata=true,PassthroughSupport=true", nil, nil},
		"all alpha": {"AllAlpha=true", []Violation{
			{DynamicMIG, PassthroughSupport, false}, {DynamicMIG, NVMLDeviceHealthCheck, false}, {DynamicMIG, MPSSupport, false},
			{PassthroughSupport, NVMLDeviceHealthCheck, false},
		}, []Gate{DynamicMIG, NVMLDeviceHealthCheck}},
		"all alpha but two": {"AllAlpha=true,DynamicMIG=false,NVMLDeviceHealthCheck=false", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse(test.text)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Validate()
			if len(test.want) == 0 {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			var invalid *InvalidError
			if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) {
				t.Fatalf("Validate = %v", err)
			}
			if diff := cmp.Diff(test.want, invalid.Violations); diff != "" {
				t.Error(diff)
			}
			if len(invalid.SwitchOff) != len(test.off) {
				t.Errorf("SwitchOff = %v, want as few as %v", invalid.SwitchOff, test.off)
			}
			for _, g := range invalid.SwitchOff {
				s = s.With(g, false)
			}
			if err := s.Validate(); err != nil {
				t.Errorf("the advice %v does not help: %v", invalid.SwitchOff, err)
			}
		})
	}
}

func TestAllAlphaIsExplained(t *testing.T) {
	s, err := Parse("AllAlpha=true")
	if err != nil {
		t.Fatal(err)
	}
	err = s.Validate()
	if want := "AllAlpha=true is not possible by itself, adding DynamicMIG=false,NVMLDeviceHealthCheck=false puts it right"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v\ndoes not say %q", err, want)
	}
}

// TestValidateEverySet compares Validate with a plain statement of the rules
// for all combinations, and checks that the advice always helps.
func TestValidateEverySet(t *testing.T) {
	ruled := []Gate{ComputeDomainCliques, IMEXDaemonsWithDNSNames, DynamicMIG, PassthroughSupport, NVMLDeviceHealthCheck, MPSSupport, DeviceMetadata}
	for bits := range 1 << len(ruled) {
		var s Set
		on := map[Gate]bool{}
		for i, g := range ruled {
			on[g] = bits&(1<<i) != 0
			s = s.With(g, on[g])
		}
		ok := !(on[ComputeDomainCliques] && !on[IMEXDaemonsWithDNSNames] ||
			on[DynamicMIG] && (on[PassthroughSupport] || on[NVMLDeviceHealthCheck] || on[MPSSupport]) ||
			on[PassthroughSupport] && on[NVMLDeviceHealthCheck] ||
			on[DeviceMetadata] && !on[PassthroughSupport])
		err := s.Validate()
		if (err == nil) != ok {
			t.Errorf("%s: %v", s, err)
		}
		var invalid *InvalidError
		if errors.As(err, &invalid) {
			for _, g := range invalid.SwitchOff {
				s = s.With(g, false)
			}
			if err := s.Validate(); err != nil {
				t.Errorf("advice %v: %v", invalid.SwitchOff, err)
			}
		}
	}
}

func TestSetIsAValue(t *testing.T) {
	var zero Set
	if zero.Enabled("Nonsense") || zero.With("Nonsense", true) != zero {
		t.Error("an unknown gate has a state")
	}
	on := zero.With(DynamicMIG, true)
	if zero.Enabled(DynamicMIG) || !on.Enabled(DynamicMIG) || on.With(DynamicMIG, false) != zero {
		t.Error("With changed its receiver or does not come back")
	}
	fields := strings.Split(on.String(), ",")
	if len(fields) != len(Known) || !slices.Contains(fields, "DynamicMIG=true") {
		t.Errorf("String = %s", on)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "DynamicMIG=true", "AllAlpha=true,AllBeta=false,", "AllAlpha=true,DynamicMIG=false", "x", "=", "=true", ",,,", "DynamicMIG=true=",
		"ContextualLogging=T, LoggingBetaOptions=0", "DynamicMIG=\x00", "AllBeta=false,ComputeDomainCliques=true", Set{}.String(),
	} {
		f.Add(seed, "MPSSupport=true")
		f.Add("AllAlpha=true", seed)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		s, err := Parse(first, second)
		if err != nil {
			if s != (Set{}) {
				t.Fatalf("an error and a set: %v, %s", err, s)
			}
			return
		}
		_ = s.Validate()
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() {
			t.Fatalf("%s came back as %s: %v", s, again, err)
		}
	})
}
