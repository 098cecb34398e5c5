// The stand-in for the programs of a simulated driver: one static program that
// looks at the name it is called by. It asks the simulator, over the socket of
// package wire, and like the real ones sees only the GPUs and MIG devices whose
// device nodes it can open.
//
// nvidia-smi answers -L, --version, --query-gpu, the table, -i, -mig, -pm, -c,
// --gpu-reset and the subcommand mig. The others exist so that they are found
// and mounted; they say that they are not simulated and fail.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"nvdra/nvml/sim"
	"nvdra/nvml/sim/wire"
)

// The exit codes nvidia-smi documents.
const (
	exitFailure   = 1
	exitInvalid   = 2
	exitNoDevices = 6
	exitNoDriver  = 9
)

// A failure is an error with the exit code that goes with it.
type failure struct {
	code int
	text string
}

func (f *failure) Error() string { return f.text }

func failf(code int, format string, args ...any) error {
	return &failure{code, fmt.Sprintf(format, args...)}
}

// said is an error in nvidia-smi's words. It exits with the code of the NVML
// error that caused it.
func said(cause error, format string, args ...any) error {
	code := exitFailure
	if r, ok := errors.AsType[sim.Return](cause); ok && r < 256 {
		code = int(r)
	}
	return failf(code, format, args...)
}

func main() {
	os.Exit(run(filepath.Base(os.Args[0]), os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program called by that name. nvidia-smi says everything on stdout.
func run(name string, args []string, stdout, stderr io.Writer) int {
	if name != "nvidia-smi" {
		fmt.Fprintf(stderr, "%s: the simulated driver does not run it yet\n", name)
		return exitFailure
	}
	err := smi(args, driverRoot(), stdout)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stdout, err)
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	if r, ok := errors.AsType[sim.Return](err); ok && r < 256 {
		return int(r)
	}
	return exitFailure
}

// driverRoot is the root above <root>/usr/bin/nvidia-smi, as seen from here.
func driverRoot() string {
	exe, err := os.Executable()
	if err != nil {
		return "/"
	}
	if root, ok := strings.CutSuffix(filepath.Dir(exe), "/usr/bin"); ok && root != "" {
		return root
	}
	return "/"
}

// connect reaches the driver, or says what nvidia-smi says.
func connect(root string) (*wire.Client, error) {
	c, err := wire.Dial(context.Background(), filepath.Join(root, wire.SocketBelow))
	if err == nil {
		if _, err = c.Call("Init"); err == nil {
			return c, nil
		}
		c.Close()
	}
	return nil, failf(exitNoDriver, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "+
		"Make sure that the latest NVIDIA driver is installed and running.\n(simulated driver: %v)", err)
}
