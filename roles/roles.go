// Package roles is the table of what the binary can be, and what main needs to
// pick from it.
//
// To add a role, write its package with a function
//
//	func Run(ctx context.Context, env process.Env, args []string) error
//
// add its row to All, and run `go test ./roles -update` for its help.
package roles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"nvdra/nvml/driver"
	"nvdra/roles/gpuplugin"
	"nvdra/roles/internal/process"
)

// A Role is one personality of the binary.
type Role struct {
	Name string // value of --role
	Doc  string // one line for --help
	Run  func(ctx context.Context, env process.Env, args []string) error
}

// All is every role, in the order --help prints them.
var All = []Role{
	{"gpu-plugin", "advertise and prepare GPUs and MIG devices on a node", gpuplugin.Run},
}

// Parse picks what to be from the arguments of the process, its name
// included, and returns the arguments that are left for it. --role comes first,
// and what is behind it belongs to the role.
func Parse(argv []string) (role Role, args []string, err error) {
	if driver.IsChild() { // started by a role that looks at GPUs, to load NVML apart from it
		return Role{Name: driver.ChildName, Run: serveChild}, nil, nil
	}
	args = argv[min(1, len(argv)):]
	if len(args) == 0 {
		return Role{}, nil, process.Usagef("choose a role: nvdra --role=NAME, where NAME is %s", names())
	}
	first, args := args[0], args[1:]
	flag, name, hasName := strings.Cut(first, "=")
	switch flag {
	case "-h", "-help", "--help":
		return Role{Name: "help", Run: printHelp}, args, nil
	case "-version", "--version":
		return Role{Name: "version", Run: printVersion}, args, nil
	case "-role", "--role":
		if !hasName {
			if len(args) == 0 {
				return Role{}, nil, process.Usagef("flag --role needs a value: %s", names())
			}
			name, args = args[0], args[1:]
		}
		for _, role := range All {
			if role.Name == name {
				return role, args, nil
			}
		}
		return Role{}, nil, process.Usagef("unknown role %q: want %s", name, names())
	}
	return Role{}, nil, process.Usagef("unexpected %q: --role=NAME comes first, where NAME is %s; nvdra --help tells more", first, names())
}

// Run runs role until it is done.
func Run(ctx context.Context, role Role, args []string, stdout, stderr io.Writer) error {
	return role.Run(ctx, process.Env{Stdout: stdout, Stderr: stderr}, args)
}

// ExitCode writes err, if there is one, to stderr as one line, and returns the
// status to exit with: 0 for success, 2 for a command line or environment that
// cannot work, 1 for everything else.
func ExitCode(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "nvdra: %s\n", strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
	if errors.Is(err, process.ErrUsage) {
		return 2
	}
	return 1
}

// serveChild talks to the NVIDIA driver for the process that has started this
// one.
func serveChild(context.Context, process.Env, []string) error { return driver.ServeChild() }

func printHelp(_ context.Context, env process.Env, _ []string) error {
	var b strings.Builder
	b.WriteString("nvdra runs NVIDIA GPUs on Kubernetes through Dynamic Resource Allocation.\n\nUsage: nvdra --role=NAME [flags]\n\nRoles:\n")
	for _, role := range All {
		fmt.Fprintf(&b, "  %-16s %s\n", role.Name, role.Doc)
	}
	b.WriteString("\nnvdra --role=NAME --help shows the flags of a role; nvdra --version says which version this is.\n")
	if _, err := io.WriteString(env.Stdout, b.String()); err != nil {
		return fmt.Errorf("print help: %w", err)
	}
	return nil
}

func printVersion(_ context.Context, env process.Env, _ []string) error {
	if _, err := fmt.Fprintln(env.Stdout, process.ThisBuild()); err != nil {
		return fmt.Errorf("print version: %w", err)
	}
	return nil
}

// names lists the roles for a sentence.
func names() string {
	list := make([]string, len(All))
	for i, role := range All {
		list[i] = role.Name
	}
	if len(list) == 1 {
		return list[0]
	}
	return strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
}
