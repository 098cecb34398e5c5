package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"rsc.io/script"
)

// waitReadyVerb waits as a rolling update does.
func waitReadyVerb(w *world) script.Cmd {
	return verb("[NAME] [DURATION]", "wait until a process says that it is ready", "wait-ready gpu-plugin 30s", func(s *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil {
			return "", err
		}
		limit, rest := duration(rest, 30*time.Second)
		if len(rest) > 0 {
			return "", noMore(nil, rest)
		}
		for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
			_, err := readyz(p)
			if err == nil {
				return "", nil
			}
			if p.child.ended() {
				return "", fmt.Errorf("wait for %s: %w: %v", p.name, errEnded, p.child.err)
			}
			if time.Now().After(deadline) || s.Context().Err() != nil {
				return "", fmt.Errorf("wait for %s: not ready after %s: %w", p.name, limit, err)
			}
		}
	})
}

// readyzVerb asks once.
func readyzVerb(w *world) script.Cmd {
	return verb("[NAME]", "ask a process whether it is ready; its reason is the error", "! readyz gpu-plugin", func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil || len(rest) > 0 {
			return "", noMore(err, rest)
		}
		return readyz(p)
	})
}

func readyz(p *plugin) (string, error) {
	status, body, err := p.get("/readyz")
	if err == nil && status != http.StatusOK {
		err = errors.New(strings.TrimSpace(body))
	}
	return body, err
}
