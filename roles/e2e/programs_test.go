package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// moduleRoot is where the module is, seen from here, where go test runs us.
const moduleRoot = "../.."

// programs are the files a test run starts.
type programs struct {
	nvdra  string // the product
	hook   string // nvidia-cdi-hook, which its CDI specs name
	gpusim string // the simulator, with its files beside it
}

// lookAtSources looks at every file the programs are built from. The go command
// remembers which files a test has looked at, and runs it again when one has
// changed; of what a go build within a test reads it knows nothing. It must be
// called by a test: what TestMain does is not noticed.
func lookAtSources() error {
	return filepath.WalkDir(moduleRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != moduleRoot {
			return cmp.Or(err, filepath.SkipDir)
		}
		switch filepath.Ext(path) {
		case ".go", ".c", ".h", ".mod", ".sum", ".txtar":
			_, err = os.Stat(path)
		}
		return err
	})
}

// buildPrograms builds what is ours into dir.
func buildPrograms(ctx context.Context, dir string) (programs, error) {
	p := programs{nvdra: filepath.Join(dir, "nvdra"), hook: filepath.Join(dir, "nvidia-cdi-hook"), gpusim: filepath.Join(dir, "gpusim")}
	for _, build := range [][]string{
		{"-o", p.nvdra, "."},
		{"-tags", "netgo,osusergo", "-ldflags", `-s -w -linkmode external -extldflags "-static"`, "-o", p.hook, "./cdi/nvidia-cdi-hook"},
	} {
		args := append([]string{"build", "-buildvcs=false"}, build...)
		if err := run(ctx, moduleRoot, "go", args...); err != nil {
			return p, err
		}
	}
	return p, run(ctx, moduleRoot, "go", "run", "./nvml/sim/gpusim", "build", dir)
}

// run runs a program to its end. What it says is part of the error.
func run(ctx context.Context, dir, program string, args ...string) error {
	_, err := output(ctx, dir, program, args...)
	return err
}

// output is what a program writes to its standard output.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		said := string(out)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			said += string(exit.Stderr)
		}
		return string(out), fmt.Errorf("run %s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(said))
	}
	return string(out), nil
}

// partsVar names the environment variable with the directories that have etcd
// and kube-apiserver.
const partsVar = "NVDRA_PARTS"

// findParts finds etcd and the API server: in the directories NVDRA_PARTS
// names, or where the launcher of the local cluster has them. It builds them if
// they are not there yet.
func findParts(ctx context.Context) (etcd, apiserver string, err error) {
	dirs := filepath.SplitList(os.Getenv(partsVar))
	if len(dirs) == 0 {
		said, err := output(ctx, filepath.Join(moduleRoot, "testdata/cluster"), "go", "run", ".", "parts")
		if err != nil {
			return "", "", fmt.Errorf("find etcd and kube-apiserver: %w\nbuild them with: cd testdata/cluster && go run . parts", err)
		}
		// Its last lines are pairs of a part and its directory.
		for line := range strings.Lines(said) {
			if f := strings.Fields(line); len(f) == 2 && filepath.IsAbs(f[1]) {
				dirs = append(dirs, f[1])
			}
		}
	}
	find := func(name string) string {
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return path
			}
		}
		err = errors.Join(err, fmt.Errorf("find %s: it is in none of %q (%s); build it with: cd testdata/cluster && go run . parts", name, dirs, partsVar))
		return ""
	}
	etcd, apiserver = find("etcd"), find("kube-apiserver")
	return etcd, apiserver, err
}
