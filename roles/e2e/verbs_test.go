package e2e

import (
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"rsc.io/script"
)

// verbs are the words of our own that scripts are made of. log is where a
// script that runs within a script reports.
func (w *world) verbs(log io.Writer) map[string]script.Cmd {
	all := map[string]script.Cmd{
		"allocate":   allocateVerb(w),
		"apiserver":  apiserverVerb(w),
		"cdi":        cdiVerb(w),
		"checkpoint": checkpointVerb(w),
		"claim":      claimVerb(w),
		"ctl":        ctlVerb(w),
		"cycle":      cycleVerb(w),
		"damage":     damageVerb(w),
		"delete":     deleteVerb(w),
		"devices":    devicesVerb(w),
		"disk":       diskVerb(w),
		"events":     eventsVerb(w),
		"exits":      exitsVerb(w),
		"golden":     goldenVerb(w),
		"gpu":        gpuVerb(w),
		"kill":       killVerb(w),
		"kubelet":    kubeletVerb(w),
		"leaks":      leaksVerb(w),
		"lock":       lockVerb(w),
		"log":        logVerb(w),
		"machine":    machineVerb(w),
		"metrics":    metricsVerb(w),
		"open":       openVerb(w),
		"prepare":    prepareVerb(w),
		"probe":      probeVerb(w),
		"race":       raceVerb(w),
		"readonly":   readonlyVerb(w),
		"readyz":     readyzVerb(w),
		"reboot":     rebootVerb(w),
		"restart":    restartVerb(w),
		"signal":     signalVerb(w),
		"slices":     slicesVerb(w),
		"start":      startVerb(w),
		"stop":       stopVerb(w),
		"unprepare":  unprepareVerb(w),
		"wait-ready": waitReadyVerb(w),
	}
	all["eventually"] = eventuallyVerb(all)
	all["always"] = alwaysVerb(all)
	all["repeat"] = repeatVerb(w, log)
	return all
}

// engine runs scripts in this world. Its other words are those of the script
// package, of which stop has become ours.
func (w *world) engine(log io.Writer) *script.Engine {
	cmds := script.DefaultCmds()
	maps.Copy(cmds, w.verbs(log))
	return &script.Engine{Cmds: cmds, Conds: script.DefaultConds()}
}

// verb makes a verb that is done when it returns. What it returns is its
// stdout; its stderr is the error.
func verb(args, summary, example string, run func(s *script.State, args []string) (string, error)) script.Cmd {
	usage := script.CmdUsage{Summary: summary, Args: args, Detail: []string{example}}
	return script.Command(usage, func(s *script.State, args ...string) (script.WaitFunc, error) {
		out, err := run(s, args)
		return func(*script.State) (string, string, error) { return out, saying(err), err }, nil
	})
}

// call makes a verb that takes its time: its second half runs beside the
// script when the line ends in &. begin looks at the arguments and may use the
// state, the function it returns may not.
func call(args, summary, example string, begin func(s *script.State, args []string) (func() (string, error), error)) script.Cmd {
	usage := script.CmdUsage{Summary: summary, Args: args, Detail: []string{example}, Async: true}
	return script.Command(usage, func(s *script.State, args ...string) (script.WaitFunc, error) {
		work, err := begin(s, args)
		if err != nil {
			return nil, err
		}
		type result struct {
			out string
			err error
		}
		done := make(chan result, 1)
		go func() {
			out, err := work()
			done <- result{out, err}
		}()
		return func(*script.State) (string, string, error) {
			r := <-done
			return r.out, saying(r.err), r.err
		}, nil
	})
}

func saying(err error) string {
	if err == nil {
		return ""
	}
	return err.Error() + "\n"
}

// lines makes text of lines.
func lines(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "\n") + "\n"
}

// usage is the error of a verb that was used wrongly.
func usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", script.ErrUsage, fmt.Sprintf(format, args...))
}

// duration takes a duration from the front of the arguments if there is one.
func duration(args []string, otherwise time.Duration) (time.Duration, []string) {
	if len(args) > 0 {
		if d, err := time.ParseDuration(args[0]); err == nil {
			return d, args[1:]
		}
	}
	return otherwise, args
}
