// Command demo shows on a running cluster what nvdra does: it applies the
// examples of testdata/manifests one after another, shows what the pods see,
// and checks it. It needs kubectl with a kubeconfig, and a way to run
// nvidia-smi on the node with the GPUs:
//
//	demo --smi "cluster exec node-1 nvidia-smi"
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

const impossible = "impossible.yaml"

func main() {
	var d demo
	flag.StringVar(&d.manifests, "manifests", "testdata/manifests", "directory of the examples")
	flag.StringVar(&d.kubectl, "kubectl", "kubectl", "kubectl program")
	smi := flag.String("smi", "", "command that runs nvidia-smi on the node with the GPUs")
	flag.StringVar(&d.next, "next", "", `what to say at the end; \n begins a new line`)
	flag.Parse()
	d.next = strings.ReplaceAll(d.next, `\n`, "\n")
	d.smi = strings.Fields(*smi)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := d.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// A demo is what the scenes are played with.
type demo struct {
	manifests, kubectl, next string
	smi                      []string
}

func (d demo) run(ctx context.Context) error {
	if len(d.smi) == 0 {
		return errors.New("flag --smi is missing: say how to run nvidia-smi on the node with the GPUs")
	}
	title("The node offers its GPUs")
	if err := d.show(ctx, "get", "resourceslices", "-o",
		`custom-columns=NODE:.spec.nodeName,DRIVER:.spec.driver,DEVICES:.spec.devices[*].name`); err != nil {
		return err
	}
	title("An administrator divides the last GPU; the slices follow")
	for _, args := range [][]string{{"-i", "7", "-mig", "1"}, {"mig", "-i", "7", "-cgi", "19,19,14", "-C"}} {
		fmt.Printf("$ nvidia-smi %s\n", strings.Join(args, " "))
		if _, err := command(ctx, append(d.smi, args...)...); err != nil && !strings.Contains(err.Error(), "Insufficient Resources") {
			return err // insufficient resources: the demo has been played here before
		}
	}
	if err := d.until(ctx, "the MIG devices are published", func() (bool, error) {
		out, err := command(ctx, d.kubectl, "get", "resourceslices", "-o", `jsonpath={.items[*].spec.devices[*].name}`)
		return strings.Contains(out, "gpu-7-mig-2g20gb-14-"), err
	}); err != nil {
		return err
	}
	if err := d.show(ctx, "get", "resourceslices", "-o", `custom-columns=NODE:.spec.nodeName,DEVICES:.spec.devices[*].name`); err != nil {
		return err
	}
	for _, s := range scenes {
		if err := d.play(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.file, err)
		}
	}
	if err := d.refuse(ctx); err != nil {
		return fmt.Errorf("%s: %w", impossible, err)
	}
	title("What is in use")
	if err := d.show(ctx, "get", "resourceclaims", "-A"); err != nil {
		return err
	}
	fmt.Printf("\nAll pods saw what they were given. They are still running.\n%s\n", d.next)
	return nil
}

// play applies one example and shows and checks what its containers see.
func (d demo) play(ctx context.Context, s scene) error {
	title(s.title)
	ns := strings.TrimSuffix(s.file, ".yaml")
	if err := d.show(ctx, "apply", "-f", filepath.Join(d.manifests, s.file)); err != nil {
		return err
	}
	if _, err := command(ctx, d.kubectl, "-n", ns, "wait", "pod", "--all", "--for=condition=Ready", "--timeout=180s"); err != nil {
		described, _ := command(ctx, d.kubectl, "-n", ns, "describe", "pods")
		return fmt.Errorf("%w\n%s", err, described)
	}
	out, err := command(ctx, d.kubectl, "-n", ns, "get", "pods", "-o",
		`jsonpath={range .items[*]}{.metadata.name}{range .spec.containers[*]} {.name}{end}{"\n"}{end}`)
	if err != nil {
		return err
	}
	seen := map[string]saw{}
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		for _, container := range words[1:] {
			log, err := d.log(ctx, ns, words[0], container)
			if err != nil {
				return err
			}
			where := words[0] + "/" + container
			seen[where] = parse(log)
			fmt.Printf("%s sees:\n", where)
			fmt.Print(indent(brief(log)))
		}
	}
	if len(seen) == 0 {
		return errors.New("it has no pods")
	}
	return s.check(seen)
}

// log waits for a container's first words.
func (d demo) log(ctx context.Context, ns, pod, container string) (log string, err error) {
	err = d.until(ctx, pod+"/"+container+" says what it sees", func() (bool, error) {
		var err error
		log, err = command(ctx, d.kubectl, "-n", ns, "logs", pod, "-c", container)
		return strings.Contains(log, "zero"), err // from ls /dev, which comes last
	})
	return log, err
}

// refuse shows what the user of a claim that cannot be met reads.
func (d demo) refuse(ctx context.Context) error {
	title("A claim that cannot be met")
	if err := d.show(ctx, "apply", "-f", filepath.Join(d.manifests, impossible)); err != nil {
		return err
	}
	ns := strings.TrimSuffix(impossible, ".yaml")
	var said string
	err := d.until(ctx, "the scheduler says why", func() (bool, error) {
		out, err := command(ctx, d.kubectl, "-n", ns, "get", "pods", "-o",
			`jsonpath={.items[*].status.phase}: {.items[*].status.conditions[?(@.type=="PodScheduled")].message}`)
		said = out
		return strings.Contains(out, "Pending: ") && strings.Contains(out, "cannot allocate"), err
	})
	fmt.Print(indent(said + "\n"))
	return err
}

// show runs kubectl as the reader could, and shows the command and its answer.
func (d demo) show(ctx context.Context, args ...string) error {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if strings.ContainsAny(a, " *[]{}?'\"") {
			quoted[i] = "'" + a + "'"
		}
	}
	fmt.Printf("$ kubectl %s\n", strings.Join(quoted, " "))
	out, err := command(ctx, append([]string{d.kubectl}, args...)...)
	fmt.Print(indent(out))
	return err
}

// until looks twice a second until something holds, for three minutes at most.
func (d demo) until(ctx context.Context, what string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		ok, err := holds()
		if ok && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait until %s: %w", what, ctx.Err()), err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// command runs a program and returns what it wrote. An error has it too.
func command(ctx context.Context, args ...string) (string, error) {
	var out, both bytes.Buffer
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Stdout = &out
	c.Stderr = &both
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(out.String()+both.String()))
	}
	return out.String(), nil
}

// brief keeps the lines that say something about GPUs.
func brief(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if strings.Contains(line, "GPU") || strings.Contains(line, "MIG") || strings.Contains(line, "nvidia") {
			b.WriteString(line)
		}
	}
	if b.Len() == 0 {
		return "no GPU\n"
	}
	return b.String()
}

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString("    " + line)
	}
	return b.String()
}

func title(s string) { fmt.Printf("\n=== %s\n", s) }
