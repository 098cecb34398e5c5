package featuregates

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// ErrInvalid is wrapped by every error of Validate: the gates are known, but
// they cannot be used together.
var ErrInvalid = errors.New("feature gates do not fit together")

// A Violation is one broken rule of Known.
type Violation struct {
	Gate     Gate
	Other    Gate
	Requires bool // Gate requires Other; otherwise Gate excludes it
}

// String says which rule is broken and what to change.
func (v Violation) String() string {
	if v.Requires {
		return fmt.Sprintf("%s requires %s: set %s=true or %s=false", v.Gate, v.Other, v.Other, v.Gate)
	}
	return fmt.Sprintf("%s excludes %s: set %s=false or %s=false", v.Gate, v.Other, v.Gate, v.Other)
}

// An InvalidError lists every broken rule of a Set, and a way out.
type InvalidError struct {
	Violations []Violation
	// SwitchOff is a smallest choice of gates whose absence breaks no rule.
	SwitchOff []Gate
	// Group is AllAlpha or AllBeta when it is what switched on a gate of
	// SwitchOff, else empty.
	Group Gate
}

// Error names all violations on one line.
func (e *InvalidError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: ", ErrInvalid)
	for _, v := range e.Violations {
		b.WriteString(v.String())
		b.WriteString("; ")
	}
	off := make([]string, len(e.SwitchOff))
	for i, g := range e.SwitchOff {
		off[i] = string(g) + "=false"
	}
	if e.Group != "" {
		fmt.Fprintf(&b, "%s=true is not possible by itself, ", e.Group)
	}
	fmt.Fprintf(&b, "adding %s puts it right", strings.Join(off, ","))
	return b.String()
}

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// Validate checks the rules between gates. It returns nil or an *InvalidError
// that holds all broken ones.
func (s Set) Validate() error {
	broken := s.violations()
	if len(broken) == 0 {
		return nil
	}
	e := &InvalidError{Violations: broken}
	off := s.remedy()
	for i, spec := range Known {
		if off&(1<<i) == 0 {
			continue
		}
		e.SwitchOff = append(e.SwitchOff, spec.Gate)
		if s.byGroup&(1<<i) != 0 && e.Group == "" {
			e.Group = map[Stage]Gate{Alpha: AllAlpha, Beta: AllBeta}[spec.Stage]
		}
	}
	return e
}

func (s Set) violations() []Violation {
	var broken []Violation
	for i, spec := range Known {
		if !s.on(i) {
			continue
		}
		for _, other := range spec.Requires {
			if !s.Enabled(other) {
				broken = append(broken, Violation{spec.Gate, other, true})
			}
		}
		for _, other := range spec.Excludes {
			if s.Enabled(other) {
				broken = append(broken, Violation{spec.Gate, other, false})
			}
		}
	}
	return broken
}

// remedy finds a smallest set of gates, as bits, to switch off. Trying all
// subsets is fine: only gates that are on and occur in a rule can matter, and
// switching all of those off always helps.
func (s Set) remedy() uint64 {
	var inRule uint64
	for i, spec := range Known {
		for _, other := range append(append([]Gate{}, spec.Requires...), spec.Excludes...) {
			inRule |= 1<<i | 1<<index(other)
		}
	}
	var candidates []int
	for i := range Known {
		if inRule&(1<<i) != 0 && s.on(i) {
			candidates = append(candidates, i)
		}
	}
	best := inRule
	for choice := range 1 << len(candidates) {
		var off uint64
		try := s
		for n, i := range candidates {
			if choice&(1<<n) != 0 {
				off |= 1 << i
				try = try.set(i, false)
			}
		}
		if bits.OnesCount64(off) < bits.OnesCount64(best) && len(try.violations()) == 0 {
			best = off
		}
	}
	return best
}
