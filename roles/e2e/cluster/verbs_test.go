package cluster

import (
	"bytes"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"rsc.io/script"
)

// verbs is what scripts are made of.
func verbs() map[string]script.Cmd {
	v := script.DefaultCmds()
	v["kubectl"] = program("run kubectl as the cluster's administrator", "ARGS...", func(args []string) []string {
		return withName(append([]string{"kubectl"}, args...))
	})
	v["node"] = program("run a command on a node", "NODE CMD...", func(args []string) []string {
		return withName(append([]string{"exec"}, args...))
	})
	v["gpusim"] = program("do something to a node's simulated driver", "NODE VERB...", func(args []string) []string {
		return withName(append([]string{"exec", args[0], "/opt/nvdra/gpusim", "ctl", "--root", "/run/nvidia"}, args[1:]...))
	})
	v["restart-kubelet"] = program("end a node's kubelet and start it again", "NODE", func(args []string) []string {
		return withName(append([]string{"node-restart-kubelet"}, args...))
	})
	v["nothing-left"] = program("fail while a node remembers any claim", "NODE", func(args []string) []string {
		return withName([]string{"exec", args[0], "sh", "-c",
			"! ls /var/lib/kubelet/plugins/gpu.nvidia.com/claims /var/run/cdi | grep -E '[.]json$|claim_'"})
	})
	v["kill-plugin"] = program("kill -9 the plugin on a node", "NODE", func(args []string) []string {
		return withName([]string{"exec", args[0], "sh", "-c",
			"for p in /proc/[0-9]*; do if tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q '^/usr/bin/nvdra --role=gpu-plugin'; then kill -9 ${p#/proc/}; fi; done"})
	})
	v["metrics"] = script.Command(script.CmdUsage{Summary: "read the metrics of a plugin", Args: "NODE"}, func(s *script.State, args ...string) (script.WaitFunc, error) {
		if len(args) != 1 {
			return nil, script.ErrUsage
		}
		pod, err := kubectl(s.Context(), "-n", "nvdra", "get", "pods", "--field-selector", "spec.nodeName="+args[0], "-o", "jsonpath={.items[0].metadata.name}")
		if err != nil {
			return nil, err
		}
		out, err := kubectl(s.Context(), "get", "--raw", "/api/v1/namespaces/nvdra/pods/"+pod+":8080/proxy/metrics")
		return func(*script.State) (string, string, error) { return out, "", err }, nil
	})
	v["eventually"] = eventually(maps.Clone(v))
	return v
}

// conditions is what scripts can ask before a line.
func conditions() map[string]script.Cond {
	c := script.DefaultConds()
	// DRAExtendedResource is on by default from 1.36.
	c["extended"] = script.BoolCondition("Kubernetes offers extended resources through DRA by default", minor() >= 36)
	return c
}

// minor is the second number of the version of Kubernetes under test.
func minor() int {
	n, err := strconv.Atoi(strings.TrimPrefix(kubernetes(), "1."))
	if err != nil {
		return 0
	}
	return n
}

// program is a verb that runs the launcher.
func program(summary, args string, line func([]string) []string) script.Cmd {
	return script.Command(script.CmdUsage{Summary: summary, Args: args}, func(s *script.State, args ...string) (script.WaitFunc, error) {
		if len(args) == 0 {
			return nil, script.ErrUsage
		}
		var stdout, stderr bytes.Buffer
		c := exec.CommandContext(s.Context(), launcher, line(args)...)
		c.Dir, c.Env, c.Stdout, c.Stderr = s.Getwd(), s.Environ(), &stdout, &stderr
		err := c.Run()
		return func(*script.State) (string, string, error) { return stdout.String(), stderr.String(), err }, nil
	})
}

// eventually tries a verb twice a second until it succeeds and what it says
// matches.
func eventually(cmds map[string]script.Cmd) script.Cmd {
	u := script.CmdUsage{Summary: "try a verb until it does what it should", Args: "LIMIT VERB... [=~ REGEXP]"}
	return script.Command(u, func(s *script.State, args ...string) (script.WaitFunc, error) {
		if len(args) < 2 {
			return nil, script.ErrUsage
		}
		limit, err := time.ParseDuration(args[0])
		if err != nil {
			return nil, err
		}
		line := args[1:]
		match := regexp.MustCompile("")
		if n := len(line); n > 2 && line[n-2] == "=~" {
			if match, err = regexp.Compile("(?m)" + line[n-1]); err != nil {
				return nil, err
			}
			line = line[:n-2]
		}
		cmd := cmds[line[0]]
		if cmd == nil {
			return nil, fmt.Errorf("%w: no verb %q", script.ErrUsage, line[0])
		}
		for deadline := time.Now().Add(limit); ; time.Sleep(500 * time.Millisecond) {
			wait, err := cmd.Run(s, line[1:]...)
			var stdout, stderr string
			if err == nil && wait != nil {
				stdout, stderr, err = wait(s)
			}
			if err == nil && match.MatchString(stdout+stderr) {
				return func(*script.State) (string, string, error) { return stdout, stderr, nil }, nil
			}
			if time.Now().After(deadline) || s.Context().Err() != nil {
				return nil, fmt.Errorf("not after %v: %v; it says: %s", limit, err, strings.TrimSpace(stdout+stderr))
			}
		}
	})
}
