package main

import (
	"math"
	"slices"
	"time"
)

// A sample is durations of the same thing, measured again and again.
type sample []time.Duration

// quantile is the smallest value that at least the part q of all values do not
// exceed: 0.5 is the median, 0.99 what one in a hundred exceeds. Of an empty
// sample it is 0.
func (s sample) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// median is the value in the middle.
func (s sample) median() time.Duration { return s.quantile(0.5) }

// p99 is what one in a hundred exceeds.
func (s sample) p99() time.Duration { return s.quantile(0.99) }
