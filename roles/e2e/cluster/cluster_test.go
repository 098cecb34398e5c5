package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"rsc.io/script"
)

const (
	root = "../../.."
	name = "nvdra-test"
	// startLimit includes building Kubernetes the first time.
	startLimit  = 75 * time.Minute
	scriptLimit = 6 * time.Minute
)

// launcher is the program that runs the cluster.
var launcher string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "nvdra-cluster-test")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	launcher = filepath.Join(dir, "cluster")
	if err := start(ctx); err != nil {
		return 1, err
	}
	code = m.Run()
	if os.Getenv("NVDRA_KEEP") == "1" {
		return code, nil
	}
	return code, cluster(context.Background(), "down")
}

// start builds what is needed and starts a cluster with the product installed.
func start(ctx context.Context) error {
	files, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		dir  string
		args []string
	}{
		{files, []string{"make", "rootfs", "sim"}},
		{filepath.Join(files, "testdata/cluster"), []string{"go", "build", "-o", launcher, "."}},
	} {
		if err := command(ctx, c.dir, c.args...); err != nil {
			return err
		}
	}
	if err := cluster(ctx, "down"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"up", "--nodes", "2", "--machine", "h100x8,dgx-a100", "--k8s", kubernetes(), "--gpusim", filepath.Join(files, "build/sim/gpusim")},
		{"load", filepath.Join(files, "build/rootfs"), "--name", "localhost/nvdra:dev", "--entrypoint", "/usr/bin/nvdra"},
		{"kubectl", "apply", "-f", filepath.Join(files, "testdata/manifests/install")},
		{"kubectl", "-n", "nvdra", "rollout", "status", "daemonset/nvidia-dra-driver-kubelet-plugin", "--timeout=180s"},
	} {
		if err := cluster(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// kubernetes is the version under test.
func kubernetes() string {
	if v := os.Getenv("NVDRA_K8S"); v != "" {
		return v
	}
	return "1.37"
}

// cluster runs the launcher for the cluster of the tests.
func cluster(ctx context.Context, args ...string) error {
	return command(ctx, filepath.Join(root, "testdata/cluster"), append([]string{launcher}, withName(args)...)...)
}

// withName adds which cluster is meant. Commands that pass arguments on take it
// in front of them.
func withName(args []string) []string {
	return append([]string{args[0], "--cluster", name}, args[1:]...)
}

// command runs a program and shows what it says only if it fails, except
// progress of the launcher, which takes long.
func command(ctx context.Context, dir string, args ...string) error {
	var out bytes.Buffer
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Dir, c.Stdout, c.Stderr = dir, &out, &out
	if len(args) > 1 && args[1] == "up" {
		c.Stdout, c.Stderr = os.Stderr, os.Stderr
	}
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out.String())
	}
	return nil
}

// TestScripts runs every script. They share the cluster's GPUs, so one after
// the other.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "testdata/scripts/cluster/*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) { runScript(t, f) })
	}
}

// TestDemo plays what `make demo` plays, which checks what pods see.
func TestDemo(t *testing.T) {
	files, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	shim := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(shim, []byte("#!/bin/sh\nexec "+launcher+" kubectl --cluster "+name+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), scriptLimit)
	defer cancel()
	c := exec.CommandContext(ctx, "go", "run", "./demo", "--kubectl", shim,
		"--manifests", filepath.Join(files, "testdata/manifests"),
		"--smi", launcher+" exec --cluster "+name+" node-1 /run/nvidia/driver/usr/bin/nvidia-smi")
	c.Dir = filepath.Join(files, "testdata/cluster")
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	cleanUp(t)
	for _, args := range [][]string{{"mig", "-i", "7", "-dci"}, {"mig", "-i", "7", "-dgi"}, {"-i", "7", "-mig", "0"}} {
		if err := cluster(ctx, append([]string{"exec", "node-1", "/run/nvidia/driver/usr/bin/nvidia-smi"}, args...)...); err != nil {
			t.Error(err)
		}
	}
}

func runScript(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), scriptLimit)
	defer cancel()
	work := t.TempDir()
	state, err := script.NewState(ctx, work, append(os.Environ(), "MANIFESTS="+filepath.Join(dir, "testdata/manifests")))
	if err != nil {
		t.Fatal(err)
	}
	if err := state.ExtractFiles(archive); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cleanUp(t) })
	var log bytes.Buffer
	engine := &script.Engine{Cmds: verbs(), Conds: conditions()}
	err = engine.Execute(state, file, bufio.NewReader(bytes.NewReader(archive.Comment)), &log)
	err = errors.Join(err, state.CloseAndWait(&log))
	if err != nil || testing.Verbose() {
		t.Logf("%s", &log)
	}
	if err != nil {
		describe(t)
		t.Error(err)
	}
}

// cleanUp removes the namespaces that a script or the demo has made, and waits
// until their claims are gone.
func cleanUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	out, err := kubectl(ctx, "get", "namespaces", "-o", "name")
	if err != nil {
		t.Error(err)
		return
	}
	var mine []string
	for _, ns := range strings.Fields(out) {
		n := strings.TrimPrefix(ns, "namespace/")
		if n != "default" && n != "nvdra" && !strings.HasPrefix(n, "kube-") {
			mine = append(mine, n)
		}
	}
	if len(mine) == 0 {
		return
	}
	if _, err := kubectl(ctx, append([]string{"delete", "namespace", "--wait"}, mine...)...); err != nil {
		t.Error(err)
	}
}

// describe shows what an engineer would look at first.
func describe(t *testing.T) {
	for _, args := range [][]string{
		{"get", "pods,resourceclaims", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"-n", "nvdra", "logs", "-l", "dra-driver-nvidia-gpu-component=kubelet-plugin", "--tail=40", "--prefix"},
	} {
		out, err := kubectl(context.Background(), args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, launcher, withName(append([]string{"kubectl"}, args...))...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
