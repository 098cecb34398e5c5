package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// A request is one that the API server was asked, as the counter writes it down.
type request struct {
	At  int64  `json:"at"` // in nanoseconds, when it began
	Who string `json:"who"`
	Did string `json:"did"` // "get resourceclaims"
}

// counterPorts are where the counter listens for each driver, on the node.
var counterPorts = map[string]int{ourDriver: 7441, floorDriver: 7442}

const (
	countFile    = nodeDir + "/requests.jsonl"
	countStarted = "counting requests"
	// afterStart is how long a start's requests may go on.
	afterStart = 3 * time.Second
)

// requests counts what the plugins ask the API server, and measures what they
// compute while idle.
func (b *bench) requests(ctx context.Context) (err error) {
	count := []string{nodeBench, "count", "-kubeconfig", nodeDir + direct, "-file", countFile}
	for driver, port := range counterPorts {
		count = append(count, "-for", fmt.Sprintf("%s=127.0.0.1:%d", driver, port))
		if err := b.writeCounted(driver, port); err != nil {
			return err
		}
	}
	counter, err := b.start(ctx, "counter", false, nil, count...)
	if err != nil {
		return err
	}
	running := []*started{counter}
	defer func() {
		for _, p := range slices.Backward(running) {
			err = errors.Join(err, p.stop())
		}
	}()
	if err := counter.await(ctx, endLimit, countStarted); err != nil {
		return err
	}
	pids := make([]int, len(drivers))
	for i, driver := range drivers {
		if err := b.deleteSlices(ctx, driver); err != nil {
			return err
		}
		if _, err := b.watchDevices(ctx, driver, func() error {
			p, err := b.startPlugin(ctx, driver, counted)
			if err == nil {
				running, pids[i] = append(running, p), p.pid
			}
			return err
		}); err != nil {
			return err
		}
	}
	if err := pause(ctx, afterStart); err != nil {
		return err
	}
	windows, err := b.countedWork(ctx)
	if err != nil {
		return err
	}
	idleFrom := time.Now()
	computed, err := computing(ctx, b.size.idle, pids...)
	if err != nil {
		return err
	}
	all, err := b.readRequests()
	if err != nil {
		return err
	}
	starts, prepares, unprepares := between(all, time.Time{}, windows[0]), between(all, windows[0], windows[1]), between(all, windows[1], windows[2])
	idle := between(all, idleFrom, time.Now())
	perMinute := float64(time.Minute) / float64(b.size.idle)
	b.table.add("requests to the API server",
		requestRow("at start", starts, 1),
		requestRow(fmt.Sprintf("per prepare, of %d", devices), prepares, 1./devices),
		requestRow(fmt.Sprintf("per unprepare, of %d", devices), unprepares, 1./devices),
		requestRow(fmt.Sprintf("idle, per minute, from %.0f s", b.size.idle.Seconds()), idle, perMinute),
	)
	b.table.add(fmt.Sprintf("idle, per minute, from %.0f s", b.size.idle.Seconds()),
		row{what: "processor time, nobody probes", ours: computed[0], floor: computed[1], aim: "8 ms"},
	)
	return nil
}

// countedWork has claims prepared and unprepared, and returns when the first, the
// second, and all were over.
func (b *bench) countedWork(ctx context.Context) (windows [3]time.Time, err error) {
	for _, driver := range drivers {
		if s := b.clients[driver]; s != nil {
			delete(b.clients, driver)
			if err := s.close(); err != nil {
				return windows, err
			}
		}
		if b.clients[driver], err = b.dial(ctx, driver, "dra.sock"); err != nil {
			delete(b.clients, driver)
			return windows, err
		}
	}
	claims := map[string][]*resourceapi.ResourceClaim{}
	for _, driver := range drivers {
		if claims[driver], err = b.makeClaims(ctx, driver, "counted-"+driver, devices); err != nil {
			return windows, err
		}
	}
	windows[0] = time.Now()
	for i, call := range []func(*socket, context.Context, *resourceapi.ResourceClaim) error{(*socket).prepare, (*socket).unprepare} {
		for _, driver := range drivers {
			for _, c := range claims[driver] {
				if err := call(b.clients[driver], ctx, c); err != nil {
					return windows, err
				}
			}
		}
		// What they ask in the background counts too.
		if err := pause(ctx, time.Second); err != nil {
			return windows, err
		}
		windows[i+1] = time.Now()
	}
	return windows, nil
}

// requestRow counts requests of both, watches not among them, each with a weight.
func requestRow(what string, all []request, weight float64) row {
	by := map[string]map[string]int{}
	total := map[string]float64{}
	for _, r := range all {
		if by[r.Who] == nil {
			by[r.Who] = map[string]int{}
		}
		by[r.Who][r.Did]++
		if !strings.HasPrefix(r.Did, "watch ") {
			total[r.Who] += weight
		}
	}
	var words []string
	for _, did := range slices.Sorted(maps.Keys(by[ourDriver])) {
		words = append(words, fmt.Sprintf("%d %s", by[ourDriver][did], did))
	}
	note := ""
	if len(words) > 0 {
		note = "ours: " + strings.Join(words, ", ")
	}
	return row{what: what, ours: value{total[ourDriver], "requests"}, floor: value{total[floorDriver], "requests"}, note: note}
}

// between selects the requests of a time.
func between(all []request, from, to time.Time) []request {
	var some []request
	for _, r := range all {
		if at := time.Unix(0, r.At); !at.Before(from) && at.Before(to) {
			some = append(some, r)
		}
	}
	return some
}

// readRequests reads what the counter wrote.
func (b *bench) readRequests() ([]request, error) {
	f, err := os.Open(b.cluster.file(countFile))
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	defer f.Close()
	all, err := parseRequests(f)
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	return all, nil
}

// parseRequests reads one request per line, in the order of their time.
func parseRequests(r io.Reader) ([]request, error) {
	var all []request
	for d := json.NewDecoder(r); ; {
		var one request
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b request) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}
