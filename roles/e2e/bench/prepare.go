package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// settle is how long the machine is left alone after claims were made, so that
// what the API server's other clients do about them is over.
const settle = 150 * time.Millisecond

// A batch is eight claims of one driver.
type batch struct {
	socket *socket
	claims []*resourceapi.ResourceClaim
	times  *prepareTimes
}

// prepareTimes are what the calls of one driver took.
type prepareTimes struct {
	prepare, unprepare         sample // one after another
	prepareMany, unprepareMany sample // each call, eight at once
	prepareAll, unprepareAll   sample // until all eight are done
	computed                   time.Duration
}

// prepare measures the two calls that pods wait for.
func (b *bench) prepare(ctx context.Context) error {
	files := map[string]string{ourDriver: "dra-" + string(b.plugin.UID) + ".sock", floorDriver: "dra.sock"}
	times := map[string]*prepareTimes{}
	for _, driver := range drivers {
		s, err := b.dial(ctx, driver, files[driver])
		if err != nil {
			return err
		}
		b.clients[driver], times[driver] = s, &prepareTimes{}
	}
	pids := map[string]int{ourDriver: b.pid, floorDriver: b.floor.pid}
	for n := range b.size.batches + 1 {
		warmUp := n == 0
		var batches []batch
		for _, driver := range alternate(n) {
			claims, err := b.makeClaims(ctx, driver, fmt.Sprintf("batch-%d-%s", n, driver), devices)
			if err != nil {
				return err
			}
			t := times[driver]
			if warmUp {
				t = &prepareTimes{}
			}
			batches = append(batches, batch{b.clients[driver], claims, t})
		}
		time.Sleep(settle)
		for _, one := range batches {
			if err := compute(pids[one.socket.driver], &one.times.computed, -1); err != nil {
				return err
			}
		}
		if err := runBatches(ctx, batches); err != nil {
			return err
		}
		for _, one := range batches {
			if err := compute(pids[one.socket.driver], &one.times.computed, 1); err != nil {
				return err
			}
		}
		for _, one := range batches {
			if err := b.deleteClaims(ctx, one.claims); err != nil {
				return err
			}
		}
	}
	b.report(times[ourDriver], times[floorDriver])
	return b.disk()
}

// compute adds what a process has computed so far to a sum, or subtracts it.
func compute(pid int, sum *time.Duration, sign time.Duration) error {
	t, err := processorTime(pid)
	*sum += sign * t
	return err
}

// alternate is the drivers, in another order each time.
func alternate(n int) []string {
	if n%2 == 0 {
		return drivers
	}
	return []string{drivers[1], drivers[0]}
}

// runBatches takes the claims of all batches through their life twice: one after
// another in turns, and then at once, batch by batch.
func runBatches(ctx context.Context, batches []batch) error {
	for i := range devices {
		for _, b := range batches {
			if err := timed(&b.times.prepare, func() error { return b.socket.prepare(ctx, b.claims[i]) }); err != nil {
				return err
			}
		}
	}
	for i := range devices {
		for _, b := range batches {
			if err := timed(&b.times.unprepare, func() error { return b.socket.unprepare(ctx, b.claims[i]) }); err != nil {
				return err
			}
		}
	}
	for _, b := range batches {
		err := timed(&b.times.prepareAll, func() error { return b.atOnce(ctx, b.socket.prepare, &b.times.prepareMany) })
		if err != nil {
			return err
		}
		time.Sleep(settle)
		err = timed(&b.times.unprepareAll, func() error { return b.atOnce(ctx, b.socket.unprepare, &b.times.unprepareMany) })
		if err != nil {
			return err
		}
		time.Sleep(settle)
	}
	return nil
}

// atOnce makes a call for each claim at the same time, as kubelet does for pods.
func (b batch) atOnce(ctx context.Context, call func(context.Context, *resourceapi.ResourceClaim) error, times *sample) error {
	took := make(sample, len(b.claims))
	errs := make([]error, len(b.claims))
	var group sync.WaitGroup
	for i, c := range b.claims {
		group.Go(func() {
			began := time.Now()
			errs[i] = call(ctx, c)
			took[i] = time.Since(began)
		})
	}
	group.Wait()
	*times = append(*times, took...)
	return errors.Join(errs...)
}

// timed adds to a sample how long f takes.
func timed(s *sample, f func() error) error {
	began := time.Now()
	err := f()
	*s = append(*s, time.Since(began))
	return err
}

func (b *bench) report(ours, floor *prepareTimes) {
	line := func(what string, quantile func(sample) time.Duration, ours, floor sample, aim string) row {
		return row{what: what, ours: milliseconds(quantile(ours)), floor: milliseconds(quantile(floor)), aim: aim}
	}
	b.table.add(fmt.Sprintf("one claim after another, %d claims", len(ours.prepare)),
		line("prepare p50", sample.median, ours.prepare, floor.prepare, "5 ms"),
		line("prepare p99", sample.p99, ours.prepare, floor.prepare, "9 ms"),
		line("unprepare p50", sample.median, ours.unprepare, floor.unprepare, ""),
		line("unprepare p99", sample.p99, ours.unprepare, floor.unprepare, ""),
	)
	// Every claim is prepared and unprepared twice.
	perClaim := func(t *prepareTimes) value { return milliseconds(t.computed / time.Duration(2*len(t.prepare))) }
	b.table.add("processor time of the plugin",
		row{what: "to prepare and unprepare a claim, mean", ours: perClaim(ours), floor: perClaim(floor)},
	)
	b.table.add(fmt.Sprintf("8 claims at once on 8 GPUs, %d times", len(ours.prepareAll)),
		line("prepare, all done, median", sample.median, ours.prepareAll, floor.prepareAll, "20 ms"),
		line("prepare p50", sample.median, ours.prepareMany, floor.prepareMany, ""),
		line("prepare p99", sample.p99, ours.prepareMany, floor.prepareMany, ""),
		line("unprepare, all done, median", sample.median, ours.unprepareAll, floor.unprepareAll, "12 ms"),
		line("unprepare p50", sample.median, ours.unprepareMany, floor.unprepareMany, ""),
		line("unprepare p99", sample.p99, ours.unprepareMany, floor.unprepareMany, ""),
	)
}
