package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"nvdra/nvml/sim"
	"nvdra/nvml/sim/driverroot"
)

// defaultRoot is where a driver container makes its root visible on the host.
const defaultRoot = "/run/nvidia"

// play is gpusim run.
func play(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("gpusim run", flag.ContinueOnError)
	var c driverroot.Config
	machine := f.String("machine", "", "name or .txtar file of the machine to play (gpusim machines lists them)")
	root := f.String("root", defaultRoot, "directory to fill: driver/, validations/ and the state file")
	files := f.String("files", "", "the directory of built files (default: gpusim-files beside this program)")
	f.StringVar(&c.DriverRoot, "driver-root", "", "the driver root (default: driver below --root)")
	f.StringVar(&c.ReadyFile, "ready-file", "", "the file that says the driver is ready (default: validations/.driver-ctr-ready below --root)")
	f.StringVar(&c.StateFile, "state-file", "", "where the machine's state is kept over restarts (default: .gpusim-state.json below --root)")
	f.BoolVar(&c.SocketOnly, "socket-only", false, "serve the socket and write no other files below the driver root")
	f.BoolVar(&c.Options.PlainNodes, "plain-nodes", false, "make regular files in place of device nodes: nvidia-smi works in the driver root, container runtimes do not")
	if err := parse(f, args, stdout); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if *machine == "" || f.NArg() > 0 {
		return fmt.Errorf("%w: run takes --machine and no other argument", errUsage)
	}
	profile, err := sim.LoadProfile(*machine, machineDirs(*files)...)
	if err != nil {
		return err
	}
	c.Files = builtFiles(*files)
	if _, err := os.Stat(filepath.Join(c.Files, driverroot.StandIn)); err != nil && !c.SocketOnly {
		return fmt.Errorf("find built files: %w; build them with gpusim build DIR, or say where they are with --files", err)
	}
	c.Below(*root)
	c.Log = func(line string) { fmt.Fprintln(stdout, "gpusim:", line) }
	return driverroot.Play(ctx, profile, c)
}
