// Command nvidia-cdi-hook is the program that the CDI specs of package cdi
// name as a hook. The container runtime starts it on the host, outside our
// image, for every container that gets a GPU and before the container's own
// program runs: it makes the driver's symbolic links in the container, brings
// the container's loader cache up to date and hides what the container must
// not change.
//
// What the hooks do is NVIDIA's (the commands of nvidia-container-toolkit);
// this is only the program around them, because its toolkit cannot be expected
// on the host.
//
// It must start on any host, whatever C library that has or lacks, so it is
// linked statically. cgo cannot be switched off: the toolkit's packages contain
// go-nvml. One command line builds it (the C library's .a files are needed,
// they come with libc6-dev or glibc-static):
//
//	CGO_ENABLED=1 go build -trimpath -tags netgo,osusergo \
//	    -ldflags '-s -w -linkmode external -extldflags "-static"' \
//	    -o nvidia-cdi-hook ./cdi/nvidia-cdi-hook
//
// A static program cannot load NVML (go-nvml's calls then lead to address 0),
// so the one command that would, apply-cuda-memory-limits, is left out here and
// never named in our specs. This is also why the plugins, which do load NVML,
// are a program of their own, linked dynamically.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/urfave/cli/v3"
)

func main() {
	if err := run(context.Background(), os.Args, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "nvidia-cdi-hook: %v\n", err)
		os.Exit(1)
	}
}

// run performs one hook. The runtime shows what is written to stderr when the
// hook fails.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	log := &printer{to: stderr}
	command := commands.ConfigureCDIHookCommand(log, &cli.Command{
		Name:      "nvidia-cdi-hook",
		Usage:     "prepare a container for the NVIDIA driver; started by the container runtime as named in a CDI spec",
		ErrWriter: stderr,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "debug", Usage: "say more", Sources: cli.EnvVars("NVIDIA_CTK_DEBUG"), Destination: &log.debug},
			&cli.BoolFlag{Name: "quiet", Usage: "say nothing but errors", Sources: cli.EnvVars("NVIDIA_CTK_QUIET"), Destination: &log.quiet},
		},
	})
	command.Commands = slices.DeleteFunc(command.Commands, func(c *cli.Command) bool { return c.Name == "apply-cuda-memory-limits" })
	return command.Run(ctx, args)
}

// A printer is the plain log the toolkit's commands ask for.
type printer struct {
	to           io.Writer
	debug, quiet bool
}

// Debugf prints in debug mode.
func (p *printer) Debugf(format string, args ...any) {
	p.print(p.debug && !p.quiet, "debug", format, args)
}

// Tracef prints in debug mode.
func (p *printer) Tracef(format string, args ...any) {
	p.print(p.debug && !p.quiet, "trace", format, args)
}

// Infof prints in debug mode: nobody reads what a successful hook says.
func (p *printer) Infof(format string, args ...any) {
	p.print(p.debug && !p.quiet, "info", format, args)
}

// Warningf prints unless told to be quiet.
func (p *printer) Warningf(format string, args ...any) { p.print(!p.quiet, "warning", format, args) }

// Errorf always prints.
func (p *printer) Errorf(format string, args ...any) { p.print(true, "error", format, args) }

func (p *printer) print(on bool, level, format string, args []any) {
	if on {
		fmt.Fprintf(p.to, "nvidia-cdi-hook: %s: %s\n", level, fmt.Sprintf(format, args...))
	}
}
