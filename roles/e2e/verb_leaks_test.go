package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"rsc.io/script"
)

// slack is how much a count may grow without anybody having leaked: a
// connection that is open just then, the goroutines that serve it.
var slack = map[string]int{"files": 0, "children": 1, "fds": 8, "goroutines": 16}

// leaksVerb counts what can leak.
func leaksVerb(w *world) script.Cmd {
	const example = `It counts the files of plugin and CDI directory, and the process's children, file descriptors and goroutines.
	leaks mark
	cycle 500 a b c
	leaks check`
	return verb("mark|check [NAME]", "count what the plugin has, and later that it has no more", example, func(_ *script.State, args []string) (string, error) {
		if len(args) == 0 {
			return "", usage("leaks takes mark or check")
		}
		p, rest, err := w.named(args[1:])
		if err != nil || len(rest) > 0 {
			return "", noMore(err, rest)
		}
		switch args[0] {
		case "mark":
			w.marks, err = w.count(p)
			return fmt.Sprintf("%v\n", w.marks), err
		case "check":
			return w.checkLeaks(p)
		}
		return "", usage("leaks takes mark or check")
	})
}

// checkLeaks gives connections and idle processes time to go.
func (w *world) checkLeaks(p *plugin) (string, error) {
	if w.marks == nil {
		return "", usage("mark first")
	}
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		now, err := w.count(p)
		if err != nil {
			return "", err
		}
		var grown []error
		for what, n := range now {
			if n > w.marks[what]+slack[what] {
				grown = append(grown, fmt.Errorf("%s: %d, there were %d", what, n, w.marks[what]))
			}
		}
		if len(grown) == 0 || time.Now().After(deadline) {
			return fmt.Sprintf("%v\n", now), errors.Join(grown...)
		}
	}
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

func (w *world) count(p *plugin) (map[string]int, error) {
	n := map[string]int{}
	for _, dir := range []string{w.pluginsDir(), w.cdiRoot()} {
		err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n["files"]++
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.child.pid()))
	if err != nil {
		return nil, err
	}
	n["fds"] = len(fds)
	if n["children"], err = children(p.child.pid()); err != nil {
		return nil, err
	}
	_, body, err := p.get("/metrics")
	if err != nil {
		return nil, err
	}
	m := goroutines.FindStringSubmatch(body)
	if m == nil {
		return nil, errors.New("count goroutines: there is no metric go_goroutines")
	}
	n["goroutines"], err = strconv.Atoi(m[1])
	return n, err
}

// openVerb shows what keeps others from resetting a GPU.
func openVerb(w *world) script.Cmd {
	const example = `It prints a line for each child of the process, and for each file of the driver that the process has open or
	mapped: a driver can be replaced, and a GPU be reset, when there is nothing.
	eventually 30s open =~ ^$`
	return verb("[NAME]", "show what a process holds of the driver", example, func(_ *script.State, args []string) (string, error) {
		p, rest, err := w.named(args)
		if err != nil || len(rest) > 0 {
			return "", noMore(err, rest)
		}
		n, err := children(p.child.pid())
		if err != nil {
			return "", err
		}
		all := slices.Repeat([]string{"child"}, n)
		proc := fmt.Sprintf("/proc/%d/", p.child.pid())
		fds, err := os.ReadDir(proc + "fd")
		if err != nil {
			return "", err
		}
		for _, fd := range fds {
			target, err := os.Readlink(proc + "fd/" + fd.Name())
			if err != nil {
				continue // closed meanwhile
			}
			// A look at the kernel's files keeps nobody from anything.
			if below, ok := strings.CutPrefix(target, w.machineRoot()+"/"); ok && !strings.HasPrefix(below, "proc/") && !strings.HasPrefix(below, "sys/") {
				all = append(all, "file "+w.anonymous(target))
			}
		}
		maps, err := os.ReadFile(proc + "maps")
		if strings.Contains(string(maps), w.machineRoot()) {
			all = append(all, "mapping")
		}
		return lines(all), err
	})
}
