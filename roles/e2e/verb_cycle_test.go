package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"rsc.io/script"
)

// cycleVerb keeps the plugin busy.
func cycleVerb(w *world) script.Cmd {
	const example = `The claims take turns at the same time, so that N is the number of all cycles together.
	cycle 500 a b c d`
	return call("N CLAIM…", "prepare and unprepare claims over and over", example, func(s *script.State, args []string) (func() (string, error), error) {
		if len(args) < 2 {
			return nil, usage("cycle takes a number and claims")
		}
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return nil, usage("%q is not a number", args[0])
		}
		ctx, names := s.Context(), args[1:]
		return func() (string, error) {
			var left atomic.Int64
			left.Store(int64(n))
			errs := make([]error, len(names))
			var all sync.WaitGroup
			for i, name := range names {
				all.Go(func() {
					for errs[i] == nil && left.Add(-1) >= 0 {
						if _, errs[i] = w.prepare(ctx, []string{name}); errs[i] == nil {
							errs[i] = w.unprepare(ctx, []string{name})
						}
					}
				})
			}
			all.Wait()
			return "", errors.Join(errs...)
		}, nil
	})
}

// raceVerb calls as kubelet should not, and sometimes does.
func raceVerb(w *world) script.Cmd {
	const example = `After each round the claim has to be either prepared, with a CDI spec, or not there at all.
	race 200 job`
	return verb("ROUNDS CLAIM", "prepare and unprepare a claim at the same time", example, func(s *script.State, args []string) (string, error) {
		if len(args) != 2 {
			return "", usage("race takes a number and a claim")
		}
		rounds, err := strconv.Atoi(args[0])
		if err != nil {
			return "", usage("%q is not a number", args[0])
		}
		name := args[1]
		uid, err := w.uidOf(name)
		if err != nil {
			return "", err
		}
		ends := map[string]int{}
		for round := range rounds {
			var both sync.WaitGroup
			var unprepared error
			both.Go(func() { w.prepare(s.Context(), []string{name}) }) //nolint:errcheck // it may lose
			both.Go(func() { unprepared = w.unprepare(s.Context(), []string{name}) })
			both.Wait()
			if unprepared != nil {
				return "", fmt.Errorf("round %d: %w", round, unprepared)
			}
			records, err := w.records()
			if err != nil {
				return "", err
			}
			prepared := slices.ContainsFunc(records, func(r string) bool { return strings.HasPrefix(r, name+" Prepared ") })
			_, err = os.Stat(w.specPath(string(uid)))
			if prepared != (err == nil) {
				return "", fmt.Errorf("round %d: records are %q and the CDI spec: %v", round, records, err)
			}
			ends[fmt.Sprintf("prepared=%t", prepared)]++
		}
		return fmt.Sprintf("%v\n", ends), nil
	})
}
