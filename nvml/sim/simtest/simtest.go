// Package simtest gives tests a simulated machine: in process, or as the driver
// root a node would have.
//
//	m := simtest.Machine(t, "h100x8")       // a nvml.Node
//	root := simtest.Play(t, "h100x8")       // root.Dir is the --driver-root
//	root.Machine.Lose(…)
package simtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"nvdra/nvml/sim"
	"nvdra/nvml/sim/driverroot"
	"nvdra/nvml/sim/simbuild"
)

// Profile reads a machine profile of testdata/machines.
func Profile(t testing.TB, name string) *sim.Profile {
	t.Helper()
	module, err := simbuild.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	p, err := sim.LoadProfile(name, filepath.Join(module, "testdata", "machines"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Machine is a machine in process.
func Machine(t testing.TB, name string) *sim.Machine {
	t.Helper()
	m, err := sim.New(Profile(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// builtVariable tells child processes of a test what its parent has built.
const builtVariable = "NVDRA_SIMTEST_BUILT"

// build builds the simulator once in a process and its children; what is up to
// date from an earlier run is kept in the user's cache directory.
var build = sync.OnceValues(func() (dir string, err error) {
	if dir := os.Getenv(builtVariable); dir != "" {
		return dir, nil
	}
	defer func() {
		if err == nil {
			err = os.Setenv(builtVariable, dir)
		}
	}()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir = filepath.Join(cache, "nvdra-sim")
	return dir, simbuild.Build(context.Background(), dir)
})

// Built is the directory with gpusim and its files.
func Built(t testing.TB) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Alone runs the test in a process of its own and says whether this is that
// process. Tests that load the NVML library of a played machine need it: once a
// program has called a function of go-nvml it stays bound to the library it found
// first.
//
//	if !simtest.Alone(t) {
//		return
//	}
func Alone(t *testing.T) bool {
	t.Helper()
	const variable = "NVDRA_SIMTEST_ALONE"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	Built(t)
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// A Root is a machine that is being played, as gpusim plays it.
type Root struct {
	// Dir is the driver root; it is the host root, too.
	Dir string
	// Base is what gpusim calls --root: Dir is driver below it.
	Base    string
	Machine *sim.Machine
	// NoNodes says why there are regular files in place of device nodes; "" when
	// there are device nodes.
	NoNodes string

	profile *sim.Profile
	stop    func()
}

// Play plays a machine until the test ends.
func Play(t testing.TB, name string) *Root {
	t.Helper()
	r := &Root{Base: t.TempDir(), profile: Profile(t, name)}
	r.Dir = filepath.Join(r.Base, "driver")
	r.Start(t)
	t.Cleanup(r.Stop)
	return r
}

// Stop ends the play, as the driver container's end does. The files stay.
func (r *Root) Stop() { r.stop() }

// Start begins again after Stop. The machine has the state it had.
func (r *Root) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	playing, ended := make(chan struct{}), make(chan error, 1)
	c := driverroot.Config{
		Files: filepath.Join(Built(t), simbuild.FilesDir),
		Playing: func(m *sim.Machine, root *driverroot.Root) {
			r.Machine, r.NoNodes = m, root.NoNodes()
			close(playing)
		},
	}
	c.Below(r.Base)
	go func() { ended <- driverroot.Play(ctx, r.profile, c) }()
	select {
	case <-playing:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
