package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The parts of this program that it starts itself, in the node.
var parts = map[string]func(context.Context, []string) error{
	"enter": runEnter,
	"floor": runFloor,
	"count": runCount,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// errUsage is the kind of error of a wrong command line.
var errUsage = errors.New("wrong command line")

func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		if part, ok := parts[args[0]]; ok {
			return part(ctx, args[1:])
		}
	}
	size, build, err := parseSize(args)
	if err != nil {
		return err
	}
	return measure(ctx, size, build)
}

// A size is how much is measured.
type size struct {
	limit   time.Duration // ends a run that hangs
	pods    int           // rounds of one pod of each kind
	batches int           // of eight claims
	probed  time.Duration // how long the plugin idles in its pod
	crash   bool
	starts  int
	idle    time.Duration // how long the plugin idles without probes
}

var (
	full  = size{limit: 15 * time.Minute, pods: 8, batches: 15, probed: 30 * time.Second, crash: true, starts: 9, idle: time.Minute}
	quick = size{limit: 5 * time.Minute, pods: 2, batches: 4, probed: 10 * time.Second, starts: 3, idle: 15 * time.Second}
)

func parseSize(args []string) (size, string, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	isQuick := f.Bool("quick", false, "fewer samples, shorter idling, no crash")
	build := f.String("build", "build", "directory for what is built, from the module's root")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return size{}, "", err
		}
		return size{}, "", fmt.Errorf("%w: %w", errUsage, err)
	}
	if f.NArg() > 0 {
		return size{}, "", fmt.Errorf("%w: it takes flags only, got %q", errUsage, f.Args())
	}
	if *isQuick {
		return quick, *build, nil
	}
	return full, *build, nil
}

// cleanupLimit is how long the cluster may take to go away.
const cleanupLimit = time.Minute

// measure runs all phases. What has been measured is printed also when a phase
// does not come to its end.
func measure(ctx context.Context, size size, build string) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, size.limit, fmt.Errorf("it was not over after %v", size.limit))
	defer cancel()
	began := time.Now()
	b, err := newBench(ctx, size, build)
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		err = errors.Join(err, b.close(last))
	}()
	if err := b.up(ctx); err != nil {
		return err
	}
	phases := []struct {
		name string
		run  func(context.Context) error
	}{
		{"pods", b.pods}, {"prepare", b.prepare}, {"idle", b.idleInPod}, {"crash", b.crash},
		{"starts", b.starts}, {"requests", b.requests},
	}
	for _, p := range phases {
		b.say("%s …", p.name)
		if err = p.run(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
				err = fmt.Errorf("%w: %w", err, cause)
			}
			err = fmt.Errorf("measure %s: %w", p.name, err)
			break
		}
	}
	facts, factErr := b.facts(ctx, time.Since(began))
	fmt.Println(facts)
	return errors.Join(err, factErr, b.table.print(os.Stdout))
}
