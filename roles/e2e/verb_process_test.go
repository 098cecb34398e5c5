package e2e

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"rsc.io/script"
)

// killVerb ends a process as a crash does.
func killVerb(w *world) script.Cmd {
	return verb("[NAME]", "end a process at once, as kill -9 does", "kill gpu-plugin", func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil || len(rest) > 0 {
			return "", noMore(err, rest)
		}
		return "", p.child.kill()
	})
}

// stopVerb ends a process as kubelet does.
func stopVerb(w *world) script.Cmd {
	return verb("[NAME]", "end a process as kubelet does; it must end well", "stop gpu-plugin", func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil || len(rest) > 0 {
			return "", noMore(err, rest)
		}
		return "", w.stop(p)
	})
}

func (w *world) stop(p *plugin) error {
	if p.child.ended() {
		return fmt.Errorf("stop %s: %w by itself: %v", p.name, errEnded, p.child.err)
	}
	if err := p.child.stop(20 * time.Second); err != nil {
		return err
	}
	if p.child.err != nil {
		return fmt.Errorf("stop %s: it ended with %w", p.name, p.child.err)
	}
	return nil
}

// restartVerb is stop and start with the same arguments.
func restartVerb(w *world) script.Cmd {
	return verb("[-9] [NAME]", "stop a process, or kill it, and start it again as it was", "restart -9 gpu-plugin", func(_ *script.State, args []string) (string, error) {
		hard := len(args) > 0 && args[0] == "-9"
		if hard {
			args = args[1:]
		}
		p, rest, err := w.named(args)
		if err != nil || len(rest) > 0 {
			return "", noMore(err, rest)
		}
		if hard {
			err = p.child.kill()
		} else {
			err = w.stop(p)
		}
		if err != nil {
			return "", err
		}
		return "", w.start(p)
	})
}

// exitsVerb waits for the end of a process that ends by itself.
func exitsVerb(w *world) script.Cmd {
	return verb("[NAME] [DURATION]", "wait until a process ends by itself and print its exit status and the end of its log", "exits gpu-plugin 10s", func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil {
			return "", err
		}
		limit, rest := duration(rest, 20*time.Second)
		if len(rest) > 0 {
			return "", noMore(nil, rest)
		}
		if err := p.child.wait(limit); err != nil {
			return "", err
		}
		return fmt.Sprintf("exit status %d\n%s", p.child.cmd.ProcessState.ExitCode(), p.child.tail()), nil
	})
}

// signalVerb sends a signal.
func signalVerb(w *world) script.Cmd {
	return verb("[NAME] SIGNAL", "send a signal to a process", "signal gpu-plugin SIGUSR2", func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil {
			return "", err
		}
		if len(rest) != 1 || unix.SignalNum(rest[0]) == 0 {
			return "", usage("signal takes the name of a signal, such as SIGUSR2")
		}
		return "", p.child.signal(unix.SignalNum(rest[0]))
	})
}

// lockVerb holds the plugin's locks as a second process would.
func lockVerb(w *world) script.Cmd {
	const example = `lock -hold $CLAIMS/.lock
	lock -release $CLAIMS/.lock`
	held := map[string]*os.File{}
	return verb("-hold|-release FILE", "hold all locks on a file, as another process of the plugin would hold one", example, func(_ *script.State, args []string) (string, error) {
		if len(args) != 2 {
			return "", usage("lock takes -hold or -release, and a file")
		}
		switch f := held[args[1]]; {
		case args[0] == "-release" && f != nil:
			delete(held, args[1])
			return "", f.Close() // the kernel ends the lock, as it does when a process dies
		case args[0] == "-hold" && f == nil:
			f, err := os.OpenFile(args[1], os.O_RDWR, 0)
			if err != nil {
				return "", err
			}
			// It belongs to the open file, so this process is another one to
			// whoever has opened the file, too.
			if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
				return "", errors.Join(fmt.Errorf("lock %s: %w", args[1], err), f.Close())
			}
			held[args[1]] = f
			return "", nil
		}
		return "", usage("it is held already, or not held")
	})
}

func noMore(err error, rest []string) error {
	if err != nil {
		return err
	}
	return usage("what is %q", rest)
}

// children counts the processes that a process has started and that run.
func children(pid int) (int, error) {
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return 0, err
	}
	n := 0
	for _, task := range tasks {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + task.Name() + "/children")
		if err != nil {
			continue // the thread is gone
		}
		for _, c := range data {
			if c == ' ' {
				n++
			}
		}
	}
	return n, nil
}
