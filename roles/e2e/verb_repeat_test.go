package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"

	"rsc.io/script"
)

// repeatVerb is the only loop there is.
func repeatVerb(w *world, log io.Writer) script.Cmd {
	const example = `ROUND counts from 1.
	repeat 20 crash.script`
	return verb("N FILE", "run a script of the archive several times", example, func(s *script.State, args []string) (string, error) {
		if len(args) != 2 {
			return "", usage("repeat takes a number and a file")
		}
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return "", usage("%q is not a number of times", args[0])
		}
		text, err := os.ReadFile(s.Path(args[1]))
		if err != nil {
			return "", err
		}
		for round := 1; round <= n; round++ {
			if err := s.Setenv("ROUND", strconv.Itoa(round)); err != nil {
				return "", err
			}
			if err := w.engine(log).Execute(s, args[1], bufio.NewReader(bytes.NewReader(text)), log); err != nil {
				return "", fmt.Errorf("round %d: %w", round, err)
			}
		}
		return "", nil
	})
}
