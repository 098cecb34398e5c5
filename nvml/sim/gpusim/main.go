// Gpusim plays NVIDIA's driver container on a machine without GPUs: it fills a
// directory with a simulated driver, serves the simulated machine on a socket
// in it, and writes the file that says that the driver is ready. It is a
// program for tests and demonstrations, and no part of the product.
//
//	gpusim build build/sim                             # with a C compiler and go
//	build/sim/gpusim run --machine h100x8              # fills /run/nvidia
//	build/sim/gpusim ctl lose 0                        # a GPU falls off the bus
//	/run/nvidia/driver/usr/bin/nvidia-smi -L
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"nvdra/nvml/sim"
	"nvdra/nvml/sim/simbuild"
	"nvdra/nvml/sim/wire"
)

// errUsage means that the command line is wrong.
var errUsage = errors.New("wrong command line")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "gpusim:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "gpusim:", err)
		os.Exit(1)
	}
}

// run does one command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		help(stderr)
		return fmt.Errorf("%w: no command", errUsage)
	}
	switch args[0] {
	case "run":
		return play(ctx, args[1:], stdout)
	case "ctl":
		return control(ctx, args[1:], stdout)
	case "build":
		if len(args) != 2 {
			return fmt.Errorf("%w: build takes the directory to build into", errUsage)
		}
		return simbuild.Build(ctx, args[1])
	case "machines":
		return machines(args[1:], stdout)
	case "help", "-h", "--help":
		help(stdout)
		return nil
	}
	return fmt.Errorf("%w: unknown command %q; the commands are run, ctl, build, machines and help", errUsage, args[0])
}

func help(w io.Writer) {
	fmt.Fprint(w, `Gpusim plays NVIDIA's driver container on a machine without GPUs.

  gpusim build DIR       build gpusim and its files into DIR (needs gcc and go)
  gpusim machines        list the machines it can play
  gpusim run FLAGS       play one until SIGTERM; gpusim run -h lists the flags
  gpusim ctl [--root DIR] VERB ARGUMENT…

The verbs of ctl. GPU is an index, UUID or PCI address; DEVICE may be the UUID of
a MIG device, too; CALL is an NVML function such as GetMemoryInfo.

`)
	for _, v := range sim.Verbs() {
		fmt.Fprintf(w, "  %-9s %s\n", v.Name, v.Args)
		fmt.Fprintf(w, "            %s\n            e.g. gpusim ctl %s\n", v.Doc, v.Example)
	}
}

// parse reads flags; what is wrong is an errUsage.
func parse(f *flag.FlagSet, args []string, stdout io.Writer) error {
	f.SetOutput(stdout)
	err := f.Parse(args)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return err
}

// control sends a verb to a running gpusim.
func control(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("gpusim ctl", flag.ContinueOnError)
	root := f.String("root", defaultRoot, "the directory given to gpusim run")
	driver := f.String("driver-root", "", "the driver root, when it is not driver below --root")
	if err := parse(f, args, stdout); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if f.NArg() == 0 {
		return fmt.Errorf("%w: ctl takes a verb; gpusim help lists them", errUsage)
	}
	if *driver == "" {
		*driver = filepath.Join(*root, "driver")
	}
	c, err := wire.Dial(ctx, filepath.Join(*driver, wire.SocketBelow))
	if err != nil {
		return fmt.Errorf("%w; is gpusim run with --root %s?", err, *root)
	}
	defer c.Close()
	lines, err := c.Control(f.Args()...)
	if err != nil {
		return err
	}
	for _, l := range lines {
		fmt.Fprintln(stdout, l)
	}
	return nil
}

// machines lists the profiles by name.
func machines(args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("gpusim machines", flag.ContinueOnError)
	files := f.String("files", "", "the directory of built files (default: "+simbuild.FilesDir+" beside this program)")
	if err := parse(f, args, stdout); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	_, err := io.WriteString(stdout, strings.Join(sim.ListProfiles(machineDirs(*files)...), "\n")+"\n")
	return err
}

// machineDirs is where machines are looked up by name: among the built files,
// and in the source tree when run there.
func machineDirs(files string) []string {
	dirs := []string{filepath.Join(builtFiles(files), simbuild.MachinesDir)}
	if module, err := simbuild.ModuleRoot(); err == nil {
		dirs = append(dirs, filepath.Join(module, "testdata", "machines"))
	}
	return dirs
}

// builtFiles is the directory of built files.
func builtFiles(given string) string {
	if given != "" {
		return given
	}
	exe, err := os.Executable()
	if err != nil {
		return simbuild.FilesDir
	}
	return filepath.Join(filepath.Dir(exe), simbuild.FilesDir)
}
