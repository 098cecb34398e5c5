package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"nvdra.test/cluster/box"
)

// errTheirs marks the end of a program that was run for a person: it has said
// itself what was wrong, and its status becomes ours.
var errTheirs = errors.New("the command ended")

func theirs(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%w: %w", errTheirs, err)
	}
	return err
}

func runKubectl(ctx context.Context, p place, args []string) error {
	r, err := loadRecord(p)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, r.Kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.file("kubeconfig"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return theirs(cmd.Run())
}

func runExec(_ context.Context, p place, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%w: exec MACHINE CMD…, e.g.: exec node-1 ls /etc/cdi", errUsage)
	}
	r, err := loadRecord(p)
	if err != nil {
		return err
	}
	m, err := r.machine(args[0])
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Args: args[1:], Env: boxEnv(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	if term := os.Getenv("TERM"); term != "" {
		cmd.Env = append(cmd.Env, "TERM="+term)
	}
	return theirs(r.box(*m).Run(cmd, box.All))
}

func runStatus(_ context.Context, p place, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: status takes no arguments, got %q", errUsage, args)
	}
	r, err := loadRecord(p)
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	if r.BootID != boot {
		return fmt.Errorf("cluster %s ended when this machine was booted; remove it with: go run . down", p.name)
	}
	state := "up"
	if !r.Up {
		state = "not fully started"
	}
	fmt.Printf("cluster %s: %s, Kubernetes %s, %s, %s\n  KUBECONFIG=%s\n", p.name, state, r.Kubernetes, count(len(r.nodes())), machineNet(r.Net), p.file("kubeconfig"))
	for _, m := range r.Machines {
		what := m.Address
		if m.Simulated != "" {
			what += ", simulates " + m.Simulated
		}
		fmt.Printf("%-16s %s\n", m.Name, what)
		for _, s := range r.Parts {
			if s.Machine != m.Name {
				continue
			}
			life := fmt.Sprintf("process %d", s.Process.PID)
			if !s.Process.Alive() {
				life = "ended"
			}
			fmt.Printf("  %-26s %s\n", s.Name, life)
		}
	}
	if dead := r.dead(); len(dead) > 0 {
		return fmt.Errorf("of cluster %s these ended: %s", p.name, strings.Join(dead, ", "))
	}
	return nil
}

func runLogs(_ context.Context, p place, args []string) error {
	fs := flag.NewFlagSet("logs", flag.ContinueOnError)
	lines := fs.Int("n", 0, "show only the last lines")
	words, err := parseMixed(fs, args)
	if err != nil {
		return err
	}
	r, err := loadRecord(p)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range r.Parts {
		names = append(names, s.Name)
	}
	if len(words) == 0 {
		fmt.Println(strings.Join(names, "\n"))
		return nil
	}
	if len(words) > 1 || !slices.Contains(names, words[0]) {
		return fmt.Errorf("%w: there is no part %q; there are %s", errUsage, strings.Join(words, " "), strings.Join(names, ", "))
	}
	raw, err := os.ReadFile(p.logFile(words[0]))
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	text := string(raw)
	if *lines > 0 {
		text = tail(text, *lines) + "\n"
	}
	fmt.Print(text)
	return nil
}

func runRestartKubelet(ctx context.Context, p place, args []string) error {
	fs := flag.NewFlagSet("node-restart-kubelet", flag.ContinueOnError)
	kill := fs.Bool("kill", false, "kill it instead of asking it to end")
	words, err := parseMixed(fs, args)
	if err != nil {
		return err
	}
	if len(words) != 1 {
		return fmt.Errorf("%w: node-restart-kubelet takes one machine, got %q", errUsage, words)
	}
	lock, err := lockPlace(p)
	if err != nil {
		return err
	}
	defer unlockPlace(p, lock)
	r, err := loadRecord(p)
	if err != nil {
		return err
	}
	m, err := r.machine(words[0])
	if err != nil {
		return err
	}
	name := m.Name + "/kubelet"
	i := slices.IndexFunc(r.Parts, func(s started) bool { return s.Name == name })
	if i < 0 {
		return fmt.Errorf("%w: %s has no kubelet", errUsage, m.Name)
	}
	patience := 20 * time.Second
	if *kill {
		patience = 0
	}
	if err := r.Parts[i].Process.End(patience); err != nil {
		return fmt.Errorf("end %s: %w", name, err)
	}
	c := &cluster{place: p, rec: r}
	began := time.Now()
	run, err := c.launch(*m, name, r.Parts[i].Args)
	if err != nil {
		return err
	}
	admin, err := adminOf(p)
	if err != nil {
		return err
	}
	// The node counts as ready all the time, so kubelet itself is asked.
	if err := c.await(ctx, run, 2*time.Minute, admin.healthy("https://"+m.Address+":10250/healthz")); err != nil {
		return err
	}
	fmt.Printf("%-28s %s\n", name, seconds(time.Since(began)))
	return nil
}
