package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// childEnv makes the test binary a process of its own for tests of signals.
const childEnv = "NVDRA_TEST_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		os.Exit(child(what))
	}
	os.Exit(m.Run())
}

// child is a role without work: one that stops when it is told to, or one that
// never does.
func child(what string) int {
	var common Common
	err := Main(context.Background(), Env{os.Stdout, os.Stderr}, Program{
		Role: "idle", Doc: "wait", Common: &common,
		Start: func(ctx context.Context, p *Process) error {
			return p.Run(ctx, Task{"wait", func(ctx context.Context) error {
				fmt.Println("started")
				<-ctx.Done()
				fmt.Println("stopping")
				if what == "stubborn" {
					time.Sleep(time.Hour)
				}
				return ctx.Err()
			}})
		},
	}, nil)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrUsage):
		return 2
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
