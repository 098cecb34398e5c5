// Package nvmltest is the contract of [nvml.Node] as tests. Whatever says it is
// the view of a machine's GPUs must pass them: the simulator in process, the
// real driver's Node on the simulator's C library, and the same on real GPUs.
//
//	func TestSimulator(t *testing.T) {
//		nvmltest.Run(t, func(t *testing.T, machine string) nvmltest.Subject { … })
//	}
//
// [Run] needs machines whose GPUs are known and which can be told to break;
// [RunAnywhere] is what can be asked of any machine, and changes none of it.
package nvmltest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nvdra/nvml"
	"nvdra/nvml/sim"
)

// A Subject is a Node that is tested, and the simulated machine behind it.
type Subject struct {
	Node nvml.Node
	// Control does something to the machine; package sim documents the verbs.
	Control func(verb ...string) ([]string, error)
}

// An Open makes a machine of a name (testdata/machines) afresh. What it needs
// to take away again it registers with t.Cleanup.
type Open func(t *testing.T, machine string) Subject

// patience is how long any single call may take, on a slow machine.
const patience = 30 * time.Second

// Run runs the whole contract.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Open)
	}{
		{"Machines", testMachines},
		{"UnknownUUIDs", testUnknownUUIDs},
		{"CloseAndUseAgain", testCloseAndUseAgain},
		{"Concurrency", testConcurrency},
		{"Canceled", testCanceled},
		{"MIGMode", testMIGMode},
		{"MIGModePending", testMIGModePending},
		{"NoMIG", testNoMIG},
		{"CreateAndDestroy", testCreateAndDestroy},
		{"CreateRefusals", testCreateRefusals},
		{"EveryPlacement", testEveryPlacement},
		{"SameNameOnTwoModels", testSameNameOnTwoModels},
		{"DestroyBusy", testDestroyBusy},
		{"CreateTakenBack", testCreateTakenBack},
		{"CreateGivenUp", testCreateGivenUp},
		{"LostGPU", testLostGPU},
		{"BrokenGPU", testBrokenGPU},
		{"OptionalQueries", testOptionalQueries},
		{"DriverGone", testDriverGone},
		{"DriverUpdated", testDriverUpdated},
		{"MinorsChange", testMinorsChange},
		{"HeldCall", testHeldCall},
		{"HotPlug", testHotPlug},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open) })
	}
}

// machineDir is the directory of the machine profiles: testdata/machines of
// the module, wherever below it the test runs.
func machineDir(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "testdata", "machines")
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("find testdata/machines: the test does not run inside the module")
		}
		dir = parent
	}
}

// Profile is the machine of a name, as its file describes it.
func Profile(t *testing.T, machine string) *sim.Profile {
	t.Helper()
	p, err := sim.LoadProfile(machine, machineDir(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// do does something to the machine that must succeed.
func (s Subject) do(t *testing.T, verb ...string) {
	t.Helper()
	if _, err := s.Control(verb...); err != nil {
		t.Fatal(err)
	}
}

// call is a context for one call.
func call(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// scan scans a machine that answers.
func scan(t *testing.T, n nvml.Node) nvml.Scan {
	t.Helper()
	s, err := n.Scan(call(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// healthy scans a machine on which nothing is broken.
func healthy(t *testing.T, n nvml.Node) []nvml.GPU {
	t.Helper()
	s := scan(t, n)
	for _, b := range s.Broken {
		t.Errorf("broken: %+v", b)
	}
	for _, g := range s.GPUs {
		for _, err := range g.BrokenMIG {
			t.Errorf("broken MIG device on %s: %v", g.UUID, err)
		}
	}
	return s.GPUs
}

// read reads one GPU that must be readable.
func read(t *testing.T, n nvml.Node, uuid nvml.UUID) nvml.GPU {
	t.Helper()
	g, err := n.GPU(call(t), uuid)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// first is the first GPU of a product, named by a part of its name.
func first(t *testing.T, n nvml.Node, product string) nvml.GPU {
	t.Helper()
	gpus := healthy(t, n)
	i := slices.IndexFunc(gpus, func(g nvml.GPU) bool { return strings.Contains(g.Product, product) })
	if i < 0 {
		t.Fatalf("the machine has no %s", product)
	}
	return gpus[i]
}

// same reports a difference. Errors are compared by what they say.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	text := cmp.Comparer(func(a, b error) bool {
		return a == nil && b == nil || a != nil && b != nil && a.Error() == b.Error()
	})
	if diff := cmp.Diff(want, got, text); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// wantError checks the kind of an error, and that it names its subject.
func wantError(t *testing.T, what string, err, kind error, subject string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: no error, want %q", what, kind)
	case !errors.Is(err, kind):
		t.Errorf("%s: error %q is not %q", what, err, kind)
	case !strings.Contains(err.Error(), subject):
		t.Errorf("%s: error %q does not name %s", what, err, subject)
	}
}

// eventually tries until it works.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}
