package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// probeNode is the node whose plugin is meant to be refused.
const probeNode = "policy-probe"

const pluginUser = "system:serviceaccount:" + pluginNamespace + ":" + pluginAccount

// writeAuditPolicy has the API server note who of our plugins asked for what.
func writeAuditPolicy(file string) error {
	policy, err := json.Marshal(map[string]any{
		"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": []string{"RequestReceived"},
		"rules": []any{map[string]any{"level": "Metadata", "users": []string{pluginUser}}, map[string]any{"level": "None"}},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(file, policy, 0o600)
}

// refusals reads the audit log: a plugin must never have asked for anything it
// is not allowed (report R061), whatever the scripts did to it.
func refusals(dir string) error {
	log, err := os.ReadFile(auditLog(dir))
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	var all []string
	for lines := bufio.NewScanner(bytes.NewReader(log)); lines.Scan(); {
		var e struct {
			Verb       string `json:"verb"`
			RequestURI string `json:"requestURI"`
			User       struct {
				Extra map[string][]string `json:"extra"`
			} `json:"user"`
			ResponseStatus struct {
				Code    int    `json:"code"`
				Message string `json:"message"`
			} `json:"responseStatus"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read audit log: %w", err)
		}
		if slices.Contains(e.User.Extra["authentication.kubernetes.io/node-name"], probeNode) {
			continue
		}
		if e.ResponseStatus.Code == 403 {
			all = append(all, fmt.Sprintf("%s %s: %s", e.Verb, e.RequestURI, e.ResponseStatus.Message))
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > 0 {
		return fmt.Errorf("plugins asked for what they are not allowed:\n%s", lines(all))
	}
	return nil
}

func auditLog(dir string) string { return filepath.Join(dir, "audit.log") }
