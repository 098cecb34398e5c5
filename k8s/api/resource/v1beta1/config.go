package v1beta1

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Config is one configuration of devices: a [*GpuConfig], a
// [*MigDeviceConfig] or a [*VfioDeviceConfig]. Code that must tell them apart
// uses a type switch.
type Config interface {
	// Normalize fills in what was left out and has a default. It may be called
	// more than once and changes nothing the second time.
	Normalize()
	// Validate says whether the configuration makes sense as such: known
	// values, ranges, parts that fit together. It knows no feature gates and
	// no devices. All that is wrong is reported at once. It is meant for a
	// normalized configuration, but accepts any.
	Validate() error

	config()
}

// kinds is every configuration there is, in the order errors list them.
var kinds = []struct {
	name  string
	empty func() Config
}{
	{"GpuConfig", func() Config { return new(GpuConfig) }},
	{"MigDeviceConfig", func() Config { return new(MigDeviceConfig) }},
	{"VfioDeviceConfig", func() Config { return new(VfioDeviceConfig) }},
}

// kindList is the kinds as an error sentence lists them.
func kindList() string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return oneOf(names...)
}

// oneOf writes the choices of a sentence: `A, B or C`.
func oneOf(choices ...string) string {
	last := len(choices) - 1
	return strings.Join(choices[:last], ", ") + " or " + choices[last]
}

// quoted writes values for a sentence, each in quotes.
func quoted[S ~string](values []S) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = fmt.Sprintf("%q", v)
	}
	return out
}

// together joins what is wrong into one sentence; nil when nothing is.
func together(errs ...error) error {
	var all error
	for _, err := range errs {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

// typeMeta is the head of a configuration that the driver makes itself, so
// that it can be stored and decoded like one that a user wrote.
func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: APIVersion, Kind: kind}
}
