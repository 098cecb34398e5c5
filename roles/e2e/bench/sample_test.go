package main

import (
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var hundred sample
	for i := 100; i >= 1; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	for _, test := range []struct {
		s    sample
		q    float64
		want time.Duration
	}{
		{nil, 0.5, 0},
		{sample{7}, 0.5, 7},
		{sample{7}, 0.99, 7},
		{sample{3, 1, 2}, 0.5, 2},
		{sample{4, 1, 2, 3}, 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred, 0, 1},
	} {
		if got := test.s.quantile(test.q); got != test.want {
			t.Errorf("quantile %v of %d values: %d, want %d", test.q, len(test.s), got, test.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the sample was sorted in place")
	}
}
