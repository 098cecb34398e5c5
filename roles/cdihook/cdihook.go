// Package cdihook makes the binary answer to the name nvidia-cdi-hook.
//
// CDI specs name that program as a hook: the container runtime runs it on the
// host, outside of any image, before a container starts, and it puts links and
// the linker's cache for the driver's libraries into the container's root. The
// commands themselves are NVIDIA's, from the same module that says which hooks
// a spec needs, so the two always fit.
package cdihook

import (
	"context"
	"fmt"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"

	"nvdra/roles/internal/process"
)

// Name is the base name of the program file that selects this package.
const Name = "nvidia-cdi-hook"

// Run runs the hook named by args, which begin with the name of the program.
// A hook that is not known is a warning only, so that a container still starts
// with a spec that is newer than this program.
func Run(ctx context.Context, env process.Env, args []string) error {
	log := logrus.New()
	log.SetOutput(env.Stderr)
	var debug, quiet bool
	app := commands.ConfigureCDIHookCommand(log, &cli.Command{
		Name:      Name,
		Usage:     "prepare the root of a container, as a hook of a container runtime that a CDI spec names",
		Version:   process.ThisBuild().String(),
		Writer:    env.Stdout,
		ErrWriter: env.Stderr,
		// The default would end the process from in here.
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "debug", Aliases: []string{"d"}, Usage: "log more", Destination: &debug,
				Sources: cli.EnvVars("NVIDIA_CTK_DEBUG", "NVIDIA_CDI_DEBUG")},
			&cli.BoolFlag{Name: "quiet", Usage: "log errors only; wins over --debug", Destination: &quiet,
				Sources: cli.EnvVars("NVIDIA_CTK_QUIET", "NVIDIA_CDI_QUIET")},
		},
		Before: func(ctx context.Context, _ *cli.Command) (context.Context, error) {
			switch {
			case quiet:
				log.SetLevel(logrus.ErrorLevel)
			case debug:
				log.SetLevel(logrus.DebugLevel)
			}
			return ctx, nil
		},
	})
	if err := app.Run(ctx, args); err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	return nil
}
