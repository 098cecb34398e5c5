package e2e

import (
	"os"
	"os/exec"
	"path/filepath"

	"rsc.io/script"
)

// gpuVerb is what an administrator does with nvidia-smi.
func gpuVerb(w *world) script.Cmd {
	return verb("ARGS…", "run the machine's nvidia-smi", "gpu mig -cgi 1g.10gb -C -i 0", func(_ *script.State, args []string) (string, error) {
		cmd := exec.Command(filepath.Join(w.machineRoot(), "usr/bin/nvidia-smi"), args...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(w.machineRoot(), "usr/lib64"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	})
}
