package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"rsc.io/script"
)

// logVerb looks into the log of a process.
func logVerb(w *world) script.Cmd {
	return verb("[NAME] REGEXP", "show the lines of a process's log, since it was started last, that match; none is an error", `! log gpu-plugin '"level":"error"'`, func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil {
			return "", err
		}
		if len(rest) != 1 {
			return "", usage("log takes a pattern")
		}
		re, err := regexp.Compile(rest[0])
		if err != nil {
			return "", usage("%v", err)
		}
		data, err := os.ReadFile(p.child.log)
		if err != nil {
			return "", err
		}
		var found []string
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSuffix(line, "\n"); re.MatchString(line) {
				found = append(found, w.anonymous(line))
			}
		}
		if len(found) == 0 {
			return "", fmt.Errorf("search log of %s: no line matches %s", p.name, rest[0])
		}
		return lines(found), nil
	})
}
