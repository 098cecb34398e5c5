package main

import (
	"context"
	"fmt"
	"time"
)

// idleInPod measures what the plugin occupies after all that work, and what it
// computes when there is none.
func (b *bench) idleInPod(ctx context.Context) error {
	ours, err := memoryOf(b.pid)
	if err != nil {
		return err
	}
	floor, err := memoryOf(b.floor.pid)
	if err != nil {
		return err
	}
	b.table.add("memory, after the above",
		row{what: "resident", ours: mebibytes(ours.resident), floor: mebibytes(floor.resident), aim: "47 MiB"},
		row{what: "anonymous", ours: mebibytes(ours.anonymous), floor: mebibytes(floor.anonymous), aim: "10 MiB"},
	)
	computed, err := computing(ctx, b.size.probed, b.pid, b.floor.pid)
	if err != nil {
		return err
	}
	b.table.add(fmt.Sprintf("idle, per minute, from %.0f s", b.size.probed.Seconds()),
		row{what: "processor time in its pod, with kubelet's probes", ours: computed[0], floor: computed[1], note: "nobody probes the floor"},
	)
	return nil
}

// computing is how much processes compute per minute while nothing happens.
func computing(ctx context.Context, long time.Duration, pids ...int) ([]value, error) {
	read := func() ([]time.Duration, error) {
		var all []time.Duration
		for _, pid := range pids {
			t, err := processorTime(pid)
			if err != nil {
				return nil, err
			}
			all = append(all, t)
		}
		return all, nil
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, long); err != nil {
		return nil, err
	}
	after, err := read()
	if err != nil {
		return nil, err
	}
	var perMinute []value
	for i := range pids {
		perMinute = append(perMinute, milliseconds(time.Duration(float64(after[i]-before[i])*float64(time.Minute)/float64(long))))
	}
	return perMinute, nil
}

// pause waits.
func pause(ctx context.Context, long time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(long):
		return nil
	}
}
