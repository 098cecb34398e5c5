package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"rsc.io/script"
)

// metricsVerb shows what Prometheus gets.
func metricsVerb(w *world) script.Cmd {
	return verb("[NAME] [REGEXP]", "show the metrics of a process, those lines that match", "metrics gpu-plugin ^nvidia_dra_prepared_devices", func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil {
			return "", err
		}
		pattern := "."
		if len(rest) > 0 {
			pattern, rest = rest[0], rest[1:]
		}
		re, err := regexp.Compile(pattern)
		if err != nil || len(rest) > 0 {
			return "", noMore(err, rest)
		}
		status, body, err := p.get("/metrics")
		if err != nil || status != http.StatusOK {
			return "", fmt.Errorf("read metrics: status %d: %w", status, err)
		}
		var found []string
		for line := range strings.Lines(body) {
			if line = strings.TrimSuffix(line, "\n"); re.MatchString(line) {
				found = append(found, w.anonymous(line))
			}
		}
		return lines(found), nil
	})
}
