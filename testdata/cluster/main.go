// Command cluster runs a real Kubernetes cluster on this machine, without Docker
// and without a registry: for the tests, and for trying things out.
//
//	go run . up --nodes 2 --machine h100x8
//	go run . kubectl get nodes
//	go run . down
//
// See README.md for all commands, and for how it is done.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"nvdra.test/cluster/box"
)

// A command is one word that can follow the program's name.
type command struct {
	name, args, doc string
	// plain says that only --cluster and --dir, and only before everything else,
	// are ours; the rest belongs to another program.
	plain bool
	run   func(ctx context.Context, p place, args []string) error
}

func commands() []command {
	return []command{
		{"up", "[flags]", "start the cluster, building its parts the first time", false, runUp},
		{"down", "", "end the cluster and remove everything of it", false, runDown},
		{"status", "", "say what runs", false, runStatus},
		{"kubectl", "ARGS…", "run kubectl as the cluster's administrator", true, runKubectl},
		{"exec", "MACHINE CMD…", "run a command on a machine: 1, node-1 or control-plane", true, runExec},
		{"load", "DIR|ARCHIVE --name IMAGE [flags]", "make an image out of a directory and give it to every node", false, runLoad},
		{"logs", "[PART] [-n LINES]", "show what a part wrote, or list the parts", false, runLogs},
		{"node-restart-kubelet", "MACHINE [--kill]", "end a node's kubelet and start it again", false, runRestartKubelet},
		{"parts", "[--k8s MINOR]", "only build the parts", false, runParts},
		{"images", "", "only make the images every cluster has, and print their archives", false, runImages},
	}
}

// errUsage is the kind of error of a command line that says too little or too much.
var errUsage = errors.New("usage")

func main() {
	box.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, errTheirs) {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(exitCode(err))
}

// exitCode says how this program ends. A command on a machine ends it with its own status.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errTheirs) && errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case errors.Is(err, errUsage):
		return 2
	case errors.Is(err, errNotUp):
		return 3
	default:
		return 1
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "--help"}, args[0]) {
		fmt.Print(help())
		return nil
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		return fmt.Errorf("%w: there is no command %q\n%s", errUsage, args[0], help())
	}
	c, args := all[i], args[1:]
	p := defaultPlace()
	var err error
	if c.plain {
		p, args, err = ownFlags(p, args)
	} else {
		p, args, err = takePlace(p, args)
	}
	if err != nil {
		return err
	}
	if p, err = p.resolve(); err != nil {
		return err
	}
	return c.run(ctx, p, args)
}

func help() string {
	var b strings.Builder
	b.WriteString("A real Kubernetes cluster on this machine.\n\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-52s %s\n", c.name+" "+c.args, c.doc)
	}
	b.WriteString("\nEvery command takes --cluster NAME (default nvdra, or $NVDRA_CLUSTER) and --dir DIR, where the cluster keeps its state.\n")
	return b.String()
}

// ownFlags takes our flags from the front and leaves the rest as it is.
func ownFlags(p place, args []string) (place, []string, error) {
	for len(args) > 0 {
		word, value, glued := strings.Cut(args[0], "=")
		if word != "--cluster" && word != "--dir" {
			break
		}
		args = args[1:]
		if !glued {
			if len(args) == 0 {
				return p, nil, fmt.Errorf("%w: %s needs a value", errUsage, word)
			}
			value, args = args[0], args[1:]
		}
		p.set(word, value)
	}
	return p, args, nil
}

// takePlace takes our flags from anywhere.
func takePlace(p place, args []string) (place, []string, error) {
	var rest []string
	for len(args) > 0 {
		before := len(args)
		var err error
		if p, args, err = ownFlags(p, args); err != nil {
			return p, nil, err
		}
		if len(args) == before {
			rest, args = append(rest, args[0]), args[1:]
		}
	}
	return p, rest, nil
}

// parseMixed parses flags that may stand before, between and after plain words,
// and returns the words.
func parseMixed(fs *flag.FlagSet, args []string) ([]string, error) {
	fs.SetOutput(new(strings.Builder)) // what it says, the error says too
	var words []string
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				var b strings.Builder
				fs.SetOutput(&b)
				fs.PrintDefaults()
				return nil, fmt.Errorf("%w: flags of %s:\n%s", errUsage, fs.Name(), b.String())
			}
			return nil, fmt.Errorf("%w: %s: %w", errUsage, fs.Name(), err)
		}
		args = fs.Args()
		if len(args) == 0 {
			return words, nil
		}
		words, args = append(words, args[0]), args[1:]
	}
}
