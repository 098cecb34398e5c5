package e2e

import (
	"context"
	"time"

	"rsc.io/script"
)

// ctlVerb lets things happen to the machine.
func ctlVerb(w *world) script.Cmd {
	return verb("VERB [ARGS…]", "let something happen to the simulated machine, as gpusim ctl does", "ctl hold CreateGpuInstance", func(_ *script.State, args []string) (string, error) {
		if len(args) == 0 {
			return "", usage("ctl takes a verb of gpusim ctl")
		}
		return w.ctl(args...)
	})
}

func (w *world) ctl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return output(ctx, w.dir, w.programs.gpusim, append([]string{"ctl", "--root", w.simRoot()}, args...)...)
}
