package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	clusterName = "nvdra-bench"
	machineName = "h100x8"
	imageName   = "localhost/nvdra:dev"

	// Where things of ours are on the node.
	nodeDir   = "/opt/bench"
	nodeBench = nodeDir + "/bench" // this program
	nodeImage = nodeDir + "/image" // the root directory of the product's image

	// Kubeconfigs, in nodeDir and in nodeImage.
	direct  = "/kubeconfig"         // to the API server
	counted = "/counted.kubeconfig" // to the counter in front of it
)

// A cluster is the one that the launcher in testdata/cluster makes for us.
type cluster struct {
	module   string // the root directory of the module
	build    string // where make puts things
	launcher string // the program
	say      func(string, ...any)

	kubeconfig string
	root       string // the root directory of the node, as this machine sees it
	cgroup     string // the control group of everything on the node
}

// newCluster builds what a cluster needs.
func newCluster(ctx context.Context, work, build string, say func(string, ...any)) (*cluster, error) {
	module, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	c := &cluster{module: module, build: build, launcher: filepath.Join(work, "cluster"), say: say, cgroup: "/nvdra-" + clusterName + "/" + nodeName + "/"}
	if !filepath.IsAbs(build) {
		c.build = filepath.Join(module, build)
	}
	say("building …")
	if err := command(ctx, module, "make", "BUILD="+build, "rootfs", "sim"); err != nil {
		return nil, err
	}
	return c, command(ctx, filepath.Join(module, "testdata/cluster"), "go", "build", "-o", c.launcher, ".")
}

// moduleRoot finds the root directory of the module above the current one.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "roles/e2e/bench")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("find the module: this is not a directory of it; run: go run ./roles/e2e/bench")
}

// up starts the cluster, installs the product and brings our files to the node.
// A cluster that an earlier run has left is ended first.
func (c *cluster) up(ctx context.Context) error {
	if err := c.down(ctx); err != nil {
		return err
	}
	c.say("starting the cluster …")
	for _, args := range [][]string{
		{"up", "--nodes", "1", "--machine", machineName, "--k8s", "1.37", "--gpusim", filepath.Join(c.build, "sim/gpusim")},
		{"load", filepath.Join(c.build, "rootfs"), "--name", imageName, "--entrypoint", "/usr/bin/nvdra"},
		{"kubectl", "apply", "-f", filepath.Join(c.module, "testdata/manifests/install")},
		{"kubectl", "-n", productNS, "rollout", "status", "daemonset/" + daemonSet, "--timeout=120s"},
	} {
		if err := c.run(ctx, args...); err != nil {
			return err
		}
	}
	var out bytes.Buffer
	status := c.command(ctx, "status")
	status.Stdout = &out
	if err := status.Run(); err != nil {
		return fmt.Errorf("ask for the cluster's status: %w", err)
	}
	_, after, found := strings.Cut(out.String(), "KUBECONFIG=")
	if c.kubeconfig, _, _ = strings.Cut(after, "\n"); !found || !filepath.IsAbs(c.kubeconfig) {
		return fmt.Errorf("find the cluster's kubeconfig: the launcher's status does not name it: %s", out.String())
	}
	c.root = filepath.Join(filepath.Dir(c.kubeconfig), "machines", nodeName)
	return c.bringFiles()
}

// bringFiles copies this program and the image's directory to the node.
func (c *cluster) bringFiles() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if err := os.MkdirAll(c.file(nodeDir), 0o755); err != nil {
		return fmt.Errorf("bring files to the node: %w", err)
	}
	if err := os.CopyFS(c.file(nodeImage), os.DirFS(filepath.Join(c.build, "rootfs"))); err != nil {
		return fmt.Errorf("bring the image to the node: %w", err)
	}
	for _, f := range [][2]string{{self, nodeBench}, {c.kubeconfig, nodeDir + direct}, {c.kubeconfig, nodeImage + direct}} {
		raw, err := os.ReadFile(f[0])
		if err == nil {
			err = os.WriteFile(c.file(f[1]), raw, 0o700)
		}
		if err != nil {
			return fmt.Errorf("bring files to the node: %w", err)
		}
	}
	return nil
}

// file is the path by which this machine reaches a path of the node. It does not
// reach what is mounted there, such as /run.
func (c *cluster) file(path string) string { return filepath.Join(c.root, path) }

// down ends the cluster, if there is one.
func (c *cluster) down(ctx context.Context) error { return c.run(ctx, "down") }

// command is a command of the launcher, for our cluster.
func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	// Commands that pass arguments on take the name of the cluster in front.
	cmd := exec.CommandContext(ctx, c.launcher, append([]string{args[0], "--cluster", clusterName}, args[1:]...)...)
	cmd.Dir = filepath.Join(c.module, "testdata/cluster")
	return cmd
}

func (c *cluster) run(ctx context.Context, args ...string) error {
	return runQuietly(c.command(ctx, args...))
}

// gpusim does something to the simulated driver.
func (c *cluster) gpusim(ctx context.Context, verb ...string) (string, error) {
	cmd := c.command(ctx, append([]string{"exec", nodeName, "/opt/nvdra/gpusim", "ctl", "--root", "/run/nvidia"}, verb...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("gpusim %s: %w: %s", strings.Join(verb, " "), err, bytes.TrimSpace(out))
	}
	return strings.TrimSpace(string(out)), nil
}

func command(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	return runQuietly(cmd)
}

// runQuietly shows what a program says only if it ends with an error.
func runQuietly(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("run %s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
