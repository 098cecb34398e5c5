package e2e

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-cmp/cmp"
	"rsc.io/script"
)

// goldenVerb compares what the last verb has printed.
func goldenVerb(w *world) script.Cmd {
	const example = `With -update the file is rewritten.
	cdi print job
	golden one-gpu.yaml`
	return verb("FILE", "compare the last stdout with a file in testdata/scripts/golden", example, func(s *script.State, args []string) (string, error) {
		if len(args) != 1 {
			return "", usage("golden takes a file")
		}
		file := filepath.Join(scriptsDir, "golden", args[0])
		got := s.Stdout()
		if w.update {
			return got, os.WriteFile(file, []byte(got), 0o644)
		}
		want, err := os.ReadFile(file)
		if err != nil {
			return got, fmt.Errorf("read golden: %w; make it with -update", err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			return got, fmt.Errorf("it differs from %s (-update rewrites it):\n%s", file, diff)
		}
		return got, nil
	})
}
