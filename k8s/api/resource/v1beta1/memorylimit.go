package v1beta1

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"

	"k8s.io/apimachinery/pkg/api/resource"
)

// A MemoryLimit is an amount of memory as a user wrote it, a Kubernetes
// quantity such as "512Mi" or 4e9.
//
// It keeps the text instead of a parsed resource.Quantity for two reasons:
// the error for a bad amount can say which field has it, and the text can be
// looked at before it is parsed. resource.ParseQuantity takes any exponent,
// and needs 1.4 s for "1.5e-10000000" and the square of that for one digit
// more, so a claim of forty bytes could stop a node's plugin.
type MemoryLimit string

// saneQuantity is a quantity without an exponent, or with a small one,
// and of bounded length.
var saneQuantity = regexp.MustCompile(`^[+-]?[0-9.]{1,20}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$`)

// UnmarshalJSON accepts what resource.Quantity accepts: a string or a number.
// Whether it is a good amount is for Validate to say.
func (l *MemoryLimit) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*l = MemoryLimit(s)
		return nil
	}
	*l = MemoryLimit(raw)
	return nil
}

// MiB is the limit in whole MiB, rounded down, at least 1. Anything else is
// an error that quotes the text.
func (l MemoryLimit) MiB() (int64, error) {
	notAQuantity := fmt.Errorf("invalid limit: %q is not an amount of memory: write it like \"512Mi\" or \"4Gi\"", shorten(string(l)))
	if !saneQuantity.MatchString(string(l)) {
		return 0, notAQuantity
	}
	q, err := resource.ParseQuantity(string(l))
	if err != nil {
		return 0, notAQuantity
	}
	if q.CmpInt64(1<<20) < 0 {
		return 0, fmt.Errorf("invalid limit: %q is less than 1Mi, the smallest limit MPS knows", l)
	}
	if q.CmpInt64(math.MaxInt64) > 0 {
		return 0, fmt.Errorf("invalid limit: %q is more memory than any device has", l)
	}
	return q.Value() >> 20, nil
}

// shorten keeps a quotation from a user's text from filling a screen.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
