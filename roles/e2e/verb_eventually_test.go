package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"rsc.io/script"
)

// An expectation is a verb with what is to be true of it.
type expectation struct {
	cmd   script.Cmd
	args  []string
	fails bool           // the verb is to fail
	match *regexp.Regexp // what it says is to match, or not to
	not   bool
}

// expect parses [!] VERB ARGS… [=~ REGEXP|!~ REGEXP].
func expect(cmds map[string]script.Cmd, args []string) (expectation, error) {
	var e expectation
	if len(args) > 0 && args[0] == "!" {
		e.fails, args = true, args[1:]
	}
	if n := len(args); n > 2 && (args[n-2] == "=~" || args[n-2] == "!~") {
		re, err := regexp.Compile("(?m)" + args[n-1])
		if err != nil {
			return e, usage("%v", err)
		}
		e.match, e.not, args = re, args[n-2] == "!~", args[:n-2]
	}
	if len(args) == 0 || cmds[args[0]] == nil {
		return e, usage("there is no verb in %q", strings.Join(args, " "))
	}
	e.cmd, e.args = cmds[args[0]], args[1:]
	return e, nil
}

// try runs the verb once. The error says what is not as expected.
func (e expectation) try(s *script.State) (stdout, stderr string, err error) {
	wait, err := e.cmd.Run(s, e.args...)
	if wait != nil {
		stdout, stderr, err = wait(s)
	}
	switch {
	case e.fails && err == nil:
		return stdout, stderr, script.ErrUnexpectedSuccess
	case !e.fails && err != nil:
		return stdout, stderr, err
	case e.match != nil && e.match.MatchString(strings.TrimSuffix(stdout+stderr, "\n")) == e.not: // so that ^$ is nothing at all
		return stdout, stderr, fmt.Errorf("it says: %s", strings.TrimSpace(stdout+stderr))
	}
	return stdout, stderr, nil
}

// regexpArg finds the pattern for the engine, which then leaves it alone.
func regexpArg(args ...string) []int {
	if i := slices.IndexFunc(args, func(a string) bool { return a == "=~" || a == "!~" }); i >= 0 && i+1 < len(args) {
		return []int{i + 1}
	}
	return nil
}

// eventuallyVerb waits for something; it is what scripts have instead of sleeps.
func eventuallyVerb(cmds map[string]script.Cmd) script.Cmd {
	const example = `With =~ what the verb says has to match, with !~ it must not.
	eventually 20s devices =~ gpu-7
	eventually 5s ! readyz =~ 'kubelet has not registered'`
	return timedVerb("wait until a verb does what it should", "eventually", example, cmds, func(s *script.State, limit time.Duration, e expectation) (string, string, error) {
		for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
			stdout, stderr, err := e.try(s)
			if err == nil {
				return stdout, stderr, nil
			}
			if time.Now().After(deadline) || s.Context().Err() != nil {
				return stdout, stderr, fmt.Errorf("not after %s: %w", limit, err)
			}
		}
	})
}

// alwaysVerb makes sure that something stays as it is.
func alwaysVerb(cmds map[string]script.Cmd) script.Cmd {
	const example = `always 3s devices =~ '^gpu-0 gpu-1$'`
	return timedVerb("make sure that a verb does what it should all the time", "always", example, cmds, func(s *script.State, limit time.Duration, e expectation) (string, string, error) {
		for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
			stdout, stderr, err := e.try(s)
			if err != nil || time.Now().After(deadline) {
				return stdout, stderr, err
			}
		}
	})
}

func timedVerb(summary, name, example string, cmds map[string]script.Cmd, run func(*script.State, time.Duration, expectation) (string, string, error)) script.Cmd {
	u := script.CmdUsage{Summary: summary, Args: "DURATION [!] VERB [ARGS…] [=~ REGEXP|!~ REGEXP]", Detail: []string{example}, RegexpArgs: regexpArg}
	return script.Command(u, func(s *script.State, args ...string) (script.WaitFunc, error) {
		limit, rest := duration(args, 0)
		if limit <= 0 {
			return nil, usage("%s takes a duration first", name)
		}
		e, err := expect(cmds, rest)
		if err != nil {
			return nil, err
		}
		stdout, stderr, err := run(s, limit, e)
		return func(*script.State) (string, string, error) { return stdout, stderr, err }, nil
	})
}
