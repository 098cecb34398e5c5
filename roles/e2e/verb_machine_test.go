package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"rsc.io/script"
)

// machinesDir has the profiles of simulated machines.
const machinesDir = moduleRoot + "/testdata/machines"

// machineVerb starts the simulator.
func machineVerb(w *world) script.Cmd {
	return verb("NAME|FILE.txtar", "give the node a simulated machine and its driver", "machine h100x8", func(s *script.State, args []string) (string, error) {
		if len(args) != 1 {
			return "", usage("machine takes the name of a machine in testdata/machines, or a file")
		}
		profile := args[0]
		if strings.HasSuffix(profile, ".txtar") {
			profile = s.Path(profile)
		} else {
			var err error
			if profile, err = filepath.Abs(filepath.Join(machinesDir, profile+".txtar")); err != nil {
				return "", err
			}
		}
		return "", w.startMachine(profile)
	})
}

// startMachine starts the simulator and waits until the driver is there.
func (w *world) startMachine(profile string) error {
	if w.sim != nil && !w.sim.ended() {
		return fmt.Errorf("start machine: there is one already")
	}
	sim, err := startChild("gpusim", filepath.Join(w.logDir(), "gpusim.log"), os.Environ(), w.programs.gpusim,
		"run", "--machine", profile, "--root", w.simRoot())
	if err != nil {
		return err
	}
	w.sim = sim
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err = w.ctl("state"); err == nil {
			return nil
		}
		if sim.ended() || time.Now().After(deadline) {
			return fmt.Errorf("start machine: %w\n%s", err, sim.tail())
		}
		time.Sleep(20 * time.Millisecond)
	}
}
