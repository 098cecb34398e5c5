// Package process is what every role is as a process: flags and their
// environment variables, logging, feature gates, the HTTP endpoint for metrics
// and health, signals, and named tasks that stand and fall together.
//
// A role describes itself with a Program and hands it to Main:
//
//	type config struct {
//		process.Common
//		process.Node
//		Image string
//	}
//
//	func Run(ctx context.Context, env process.Env, args []string) error {
//		var cfg config
//		return process.Main(ctx, env, process.Program{
//			Role:   "gpu-plugin",
//			Doc:    "advertise and prepare GPUs on a node",
//			Common: &cfg.Common,
//			Node:   &cfg.Node,
//			Flags: []cli.Flag{
//				&cli.StringFlag{Name: "image-name", EnvVars: []string{"IMAGE_NAME"}, Destination: &cfg.Image, Usage: "…"},
//			},
//			Start: func(ctx context.Context, p *process.Process) error {
//				… build the parts …
//				p.SetReady(plugin.Ready)
//				return p.Run(ctx,
//					process.Task{Name: "serve kubelet", Run: plugin.Serve},
//					process.Task{Name: "publish slices", Run: publisher.Run},
//				)
//			},
//		}, args)
//	}
//
// Main returns; it never exits. Errors that wrap ErrUsage are mistakes of
// whoever wrote the command line or the environment.
package process

import "io"

// Env is what a process has been given besides its arguments. Environment
// variables are read where a flag declares them and nowhere else.
type Env struct {
	Stdout io.Writer // help and version
	Stderr io.Writer // logs and errors
}
