package featuregates

import "strings"

// A Set says for every known gate whether it is on. The zero Set holds the
// defaults. Sets can be compared with ==.
type Set struct {
	flipped uint64 // bit i: Known[i] differs from its default
	byGroup uint64 // bit i: Known[i] was set by AllAlpha or AllBeta
}

// Enabled reports whether g is on. A gate that is not in Known is off.
func (s Set) Enabled(g Gate) bool {
	i := index(g)
	return i >= 0 && s.on(i)
}

// With returns s with g switched on or off. A gate that is not in Known
// changes nothing.
func (s Set) With(g Gate, on bool) Set {
	if i := index(g); i >= 0 {
		s = s.set(i, on)
		s.byGroup &^= 1 << i
	}
	return s
}

// String lists every gate as Name=bool, separated by commas, in the order of
// Known. Parse reads it back.
func (s Set) String() string {
	var b strings.Builder
	for i := range Known {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(string(Known[i].Gate))
		if s.on(i) {
			b.WriteString("=true")
		} else {
			b.WriteString("=false")
		}
	}
	return b.String()
}

func (s Set) on(i int) bool {
	return Known[i].Default != (s.flipped&(1<<i) != 0)
}

func (s Set) set(i int, on bool) Set {
	if Known[i].Default != on {
		s.flipped |= 1 << i
	} else {
		s.flipped &^= 1 << i
	}
	return s
}
