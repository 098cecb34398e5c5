package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"rsc.io/script"
)

// rebootVerb restarts the machine.
func rebootVerb(w *world) script.Cmd {
	const example = `Processes end as with kill -9, what is in memory is gone (the CDI directory, as /run is), the machine has another
	boot id, and the GPUs may have other minor numbers. The plugin has to be started.
	reboot minors=1,0,3,2`
	return verb("[minors=N,…]", "restart the machine", example, func(_ *script.State, args []string) (string, error) {
		for _, p := range w.plugins {
			if err := p.child.kill(); err != nil {
				return "", err
			}
		}
		w.kubelet.close()
		if err := empty(w.cdiRoot()); err != nil {
			return "", fmt.Errorf("reboot: %w", err)
		}
		if _, err := w.ctl(append([]string{"reboot"}, args...)...); err != nil {
			return "", err
		}
		w.kubelet = startKubelet(w.registry())
		return "", nil
	})
}

// empty removes what is in a directory.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}
