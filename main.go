// Command nvdra runs NVIDIA GPUs on Kubernetes through Dynamic Resource
// Allocation. One program has all the roles: nvdra --help lists them.
package main

import (
	"context"
	"os"

	"nvdra/roles"
)

func main() {
	role, args, err := roles.Parse(os.Args)
	if err == nil {
		err = RunPlugin(role, args)
	}
	os.Exit(roles.ExitCode(os.Stderr, err)) // the only one in the program
}

// RunPlugin runs a role until it is done. Its name is what people, and tests of
// NVIDIA's driver, look for in a dump of the stacks (SIGUSR2): main.RunPlugin.
func RunPlugin(role roles.Role, args []string) error {
	return roles.Run(context.Background(), role, args, os.Stdout, os.Stderr)
}
