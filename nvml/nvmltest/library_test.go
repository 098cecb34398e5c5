package nvmltest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"nvdra/nvml/driver"
	"nvdra/nvml/nvmltest"
	"nvdra/nvml/sim"
	"nvdra/nvml/sim/libnvml"
	"nvdra/nvml/sim/wire"
)

func TestMain(m *testing.M) {
	if driver.IsChild() {
		if err := driver.ServeChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

// tmp is a directory for what all tests share.
var tmp string

func run(m *testing.M) (status int) {
	var err error
	if tmp, err = os.MkdirTemp("", "nvmltest-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(tmp) // a leftover in the temporary directory hurts nobody
	return m.Run()
}

// The driver's Node, through go-nvml and the simulator's C library.
func TestSharedLibrary(t *testing.T) {
	nvmltest.Run(t, func(t *testing.T, machine string) nvmltest.Subject {
		s, _ := library(t, machine)
		return s
	})
	nvmltest.RunHalfMade(t, library)
}

// build compiles the library once for all tests.
var build = sync.OnceValues(func() ([]byte, error) {
	file := filepath.Join(tmp, libnvml.SOName)
	if err := libnvml.Build(context.Background(), file); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
})

// library is a simulated machine with a driver root of its own. Its device
// nodes are shared by all machines, because making them takes long.
func library(t *testing.T, machine string) (nvmltest.Subject, func(name string, args ...string) ([]string, error)) {
	t.Helper()
	root := t.TempDir()
	if err := os.Symlink(devices(t), filepath.Join(root, "dev")); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(root, "proc/driver/nvidia/gpus")
	return serve(t, machine, root, func(v sim.View) error {
		if err := os.RemoveAll(list); err != nil {
			return err
		}
		for _, g := range v.GPUs() {
			if err := os.MkdirAll(filepath.Join(list, g.Board.PCI), 0o755); err != nil {
				return err
			}
		}
		return nil
	})
}

// serve starts a machine below a root, which shows the machine by means of
// show, and opens the root as a driver.
func serve(t *testing.T, machine, root string, show func(sim.View) error) (nvmltest.Subject, func(name string, args ...string) ([]string, error)) {
	t.Helper()
	so, err := build()
	if err != nil {
		t.Fatal(err)
	}
	m, err := sim.New(nvmltest.Profile(t, machine))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.OnChange(show); err != nil {
		t.Fatal(err)
	}
	const dir = "usr/lib/x86_64-linux-gnu"
	file := "libnvidia-ml.so." + m.Profile().Driver
	write(t, root, filepath.Join(dir, file), so)
	if err := os.Symlink(file, filepath.Join(root, dir, libnvml.SOName)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	l, err := wire.Listen(ctx, root)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- wire.Serve(ctx, l, m, nil) }()
	node := driver.Open(root)
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	control := func(verb ...string) ([]string, error) { return m.Control(verb) }
	raw := func(name string, args ...string) ([]string, error) { return m.Call(t.Context(), "", name, args) }
	return nvmltest.Subject{Node: node, Control: control}, raw
}

var (
	devOnce sync.Once
	dev     string
)

// devices is one directory of device nodes for all machines, with a node for
// each GPU and each instance that any can have. That they can be opened is all
// that counts, so files will do.
func devices(t *testing.T) string {
	t.Helper()
	devOnce.Do(func() {
		dev = filepath.Join(tmp, "dev")
		caps := []int{sim.CapConfig, sim.CapMonitor}
		for minor := range 8 {
			write(t, dev, fmt.Sprintf("nvidia%d", minor), nil)
			for gi := range sim.GIsPerGPU {
				caps = append(caps, sim.GICap(minor, gi))
				for ci := range sim.CIsPerGI {
					caps = append(caps, sim.CICap(minor, gi, ci))
				}
			}
		}
		for _, c := range caps {
			write(t, dev, fmt.Sprintf("nvidia-caps/nvidia-cap%d", c), nil)
		}
	})
	return dev
}

func write(t *testing.T, root, name string, content []byte) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o755); err != nil {
		t.Fatal(err)
	}
}
