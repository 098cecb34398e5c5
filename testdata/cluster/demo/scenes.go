package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A scene is one story: a manifest, and what its pods must see.
type scene struct {
	title string
	file  string // in the manifests directory; its namespace has the same name without .yaml
	// check says what is wrong with what the containers saw: for each
	// "pod/container" the UUIDs that nvidia-smi listed there.
	check func(seen map[string]saw) error
}

// saw is what one container sees.
type saw struct {
	gpus []string // UUIDs of whole GPUs
	migs []string // UUIDs of MIG devices
}

var scenes = []scene{
	{"One pod, one GPU", "one-gpu.yaml", each(1, 0)},
	{"Two pods, two GPUs", "two-pods-two-gpus.yaml", all(each(1, 0), distinct(2))},
	{"Two pods that share one claim, and so one GPU", "shared-claim.yaml", all(each(1, 0), distinct(1))},
	{"One pod, two containers with one GPU, and a third without", "two-containers.yaml", twoOfThree},
	{"A GPU chosen by product and memory", "select-by-product-and-memory.yaml", each(1, 0)},
	{"A MIG device", "mig-device.yaml", each(1, 1)},
	{"The best of several choices: here a small MIG device", "first-available.yaml", each(1, 1)},
}

// each demands the same number of devices in every container.
func each(gpus, migs int) func(map[string]saw) error {
	return func(seen map[string]saw) error {
		for _, where := range slices.Sorted(maps.Keys(seen)) {
			if s := seen[where]; len(s.gpus) != gpus || len(s.migs) != migs {
				return fmt.Errorf("%s sees %d GPUs and %d MIG devices, want %d and %d", where, len(s.gpus), len(s.migs), gpus, migs)
			}
		}
		return nil
	}
}

// distinct demands that all containers together see so many GPUs.
func distinct(n int) func(map[string]saw) error {
	return func(seen map[string]saw) error {
		uuids := map[string]bool{}
		for _, s := range seen {
			for _, u := range s.gpus {
				uuids[u] = true
			}
		}
		if len(uuids) != n {
			return fmt.Errorf("together they see %d different GPUs, want %d", len(uuids), n)
		}
		return nil
	}
}

func all(checks ...func(map[string]saw) error) func(map[string]saw) error {
	return func(seen map[string]saw) error {
		for _, c := range checks {
			if err := c(seen); err != nil {
				return err
			}
		}
		return nil
	}
}

// twoOfThree demands one GPU in the containers that use the claim, and none in
// the one that does not.
func twoOfThree(seen map[string]saw) error {
	without := seen["pod/no-gpu"]
	if len(without.gpus) != 0 {
		return fmt.Errorf("pod/no-gpu sees %d GPUs, want none", len(without.gpus))
	}
	with := maps.Clone(seen)
	delete(with, "pod/no-gpu")
	return all(each(1, 0), distinct(1))(with)
}

// parse finds the devices in what `nvidia-smi -L` wrote.
func parse(log string) saw {
	var s saw
	for line := range strings.Lines(log) {
		_, rest, ok := strings.Cut(line, "(UUID: ")
		uuid, _, closed := strings.Cut(rest, ")")
		switch {
		case !ok || !closed:
		case strings.HasPrefix(line, "GPU "):
			s.gpus = append(s.gpus, uuid)
		case strings.HasPrefix(strings.TrimSpace(line), "MIG "):
			s.migs = append(s.migs, uuid)
		}
	}
	return s
}
