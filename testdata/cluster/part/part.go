// Package part builds the programs a cluster is made of from their Go modules,
// and keeps them in a cache.
//
// Each part has a module of its own under parts/, whose go.mod pins it. A part is
// built once: its directory in the cache carries the version and a hash of
// everything that decides what the programs are (pins, sums, build command). It
// is built beside its place and renamed into it, under a lock, so that a build
// that was interrupted leaves nothing that looks finished, and two launchers do
// not build the same part twice.
package part

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// A Part is a few programs built from one module.
type Part struct {
	Name     string   // directory of its pins under parts/
	Dir      string   // name of its programs' directory in a box
	Module   string   // the module whose version is the part's
	Packages []string // main packages
	CGO      bool
	Args     []string // more arguments of go build
	Stamp    bool     // tell the programs their version, as Kubernetes' own build does
	FirstRun string   // how long it takes when nothing is cached, for people
}

// Kubernetes is the part for a minor version such as 1.37.
func Kubernetes(minor string) Part {
	p := Part{
		Name: "kubernetes-" + minor, Dir: "kubernetes", Module: "k8s.io/kubernetes", Stamp: true,
		FirstRun: "about 20 minutes on two processors",
	}
	for _, c := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"} {
		p.Packages = append(p.Packages, "k8s.io/kubernetes/cmd/"+c)
	}
	return p
}

// Others are the parts that do not depend on the version of Kubernetes.
var Others = []Part{
	{Name: "etcd", Dir: "etcd", Module: "go.etcd.io/etcd/server/v3", Packages: []string{"go.etcd.io/etcd/server/v3"}, FirstRun: "about 1 minute"},
	{Name: "containerd", Dir: "containerd", Module: "github.com/containerd/containerd/v2", Packages: []string{
		"github.com/containerd/containerd/v2/cmd/containerd",
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		"github.com/containerd/containerd/v2/cmd/ctr",
	}, FirstRun: "about 2 minutes"},
	// Without seccomp, containerd's default profile would be refused.
	{Name: "runc", Dir: "runc", Module: "github.com/opencontainers/runc", Packages: []string{"github.com/opencontainers/runc"}, CGO: true, Args: []string{"-tags", "seccomp"}, FirstRun: "half a minute"},
}

// A Pin is what a part's go.mod and go.sum fix.
type Pin struct {
	Version string
	Hash    string
}

// ErrUnknown is the kind of error of a part without pins.
var ErrUnknown = errors.New("no such part")

// ReadPin reads the pins of a part. The hash covers the toolchain too.
func (p Part) ReadPin(parts string) (Pin, error) {
	dir := filepath.Join(parts, p.Name)
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if errors.Is(err, os.ErrNotExist) {
		return Pin{}, fmt.Errorf("%w: %s has no go.mod; there are %s", ErrUnknown, dir, strings.Join(list(parts), ", "))
	}
	if err != nil {
		return Pin{}, fmt.Errorf("read pins of %s: %w", p.Name, err)
	}
	sum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return Pin{}, fmt.Errorf("read pins of %s: %w", p.Name, err)
	}
	version, err := required(string(mod), p.Module)
	if err != nil {
		return Pin{}, fmt.Errorf("read pins of %s: %w", p.Name, err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%d %s\n%d %s\n", runtime.Version(), strings.Join(p.command(version, "OUT"), "\x00"), len(mod), mod, len(sum), sum)
	return Pin{Version: version, Hash: hex.EncodeToString(h.Sum(nil))[:12]}, nil
}

func list(parts string) []string {
	mods, _ := filepath.Glob(filepath.Join(parts, "*", "go.mod")) // the pattern is well-formed
	names := make([]string, len(mods))
	for i, m := range mods {
		names[i] = filepath.Base(filepath.Dir(m))
	}
	return names
}

// required finds the version that a go.mod requires of a module.
func required(mod, module string) (string, error) {
	for line := range strings.Lines(mod) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(f) >= 2 && f[0] == module && strings.HasPrefix(f[1], "v") {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("go.mod does not require %s", module)
}

// command is the build command, environment first. What it says is part of the hash.
func (p Part) command(version, out string) []string {
	cgo := "CGO_ENABLED=0"
	if p.CGO {
		cgo = "CGO_ENABLED=1"
	}
	flags := "-s -w"
	if p.Stamp {
		major, minor := majorMinor(version)
		const pkg = "k8s.io/component-base/version."
		flags += fmt.Sprintf(" -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", pkg, version, pkg, major, pkg, minor)
	}
	cmd := []string{cgo, "go", "build", "-trimpath"}
	cmd = append(cmd, p.Args...)
	return append(append(cmd, "-ldflags", flags, "-o", out), p.Packages...)
}

func majorMinor(version string) (major, minor string) {
	f := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(f) < 2 {
		return f[0], "0"
	}
	return f[0], f[1]
}

// Programs are the names of the part's programs.
func (p Part) Programs() []string {
	var names []string
	for _, pkg := range p.Packages {
		name := path.Base(pkg)
		if p.Name == "etcd" {
			name = "etcd" // its main package is the module's root, server/v3
		}
		names = append(names, name)
	}
	return names
}

// Ensure returns the directory of the part's programs, building them if need be.
// It writes one line about what it did to w.
func (p Part) Ensure(ctx context.Context, w io.Writer, parts, cache string) (string, error) {
	pin, err := p.ReadPin(parts)
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "parts", fmt.Sprintf("%s-%s-%s", p.Name, pin.Version, pin.Hash))
	bin := filepath.Join(home, "bin")
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil {
		return "", fmt.Errorf("create cache: %w", err)
	}
	lock, err := Lock(ctx, filepath.Join(cache, "parts", p.Name+".lock"), func() {
		fmt.Fprintf(w, "%-28s waiting for another launcher that builds it\n", p.Name+" "+pin.Version)
	})
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if p.complete(bin) == nil {
		return bin, nil
	}
	fmt.Fprintf(w, "%-28s building (%s the first time)\n", p.Name+" "+pin.Version, p.FirstRun)
	began := time.Now()
	tmp, err := os.MkdirTemp(filepath.Dir(home), "building-")
	if err != nil {
		return "", fmt.Errorf("create cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := p.build(ctx, parts, pin.Version, filepath.Join(tmp, "bin")); err != nil {
		return "", fmt.Errorf("build %s %s: %w", p.Name, pin.Version, err)
	}
	if err := os.RemoveAll(home); err != nil {
		return "", fmt.Errorf("clear cache: %w", err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("fill cache: %w", err)
	}
	if err := os.Rename(tmp, home); err != nil {
		return "", fmt.Errorf("fill cache: %w", err)
	}
	fmt.Fprintf(w, "%-28s built in %s\n", p.Name+" "+pin.Version, time.Since(began).Round(time.Second))
	return bin, nil
}

// complete says whether all programs are there.
func (p Part) complete(bin string) error {
	for _, name := range p.Programs() {
		if st, err := os.Stat(filepath.Join(bin, name)); err != nil || st.Mode()&0o111 == 0 {
			return errors.Join(fmt.Errorf("program %s is not in %s", name, bin), err)
		}
	}
	return nil
}

func (p Part) build(ctx context.Context, parts, version, bin string) error {
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	dir, err := filepath.Abs(filepath.Join(parts, p.Name))
	if err != nil {
		return err
	}
	out := bin + string(filepath.Separator)
	if p.Name == "etcd" {
		out = filepath.Join(bin, "etcd")
	}
	args := p.command(version, out)
	cmd := exec.CommandContext(ctx, args[1], args[2:]...)
	cmd.Dir = dir
	// A work file or flags of the surroundings must not change what is built.
	cmd.Env = append(os.Environ(), args[0], "GOWORK=off", "GOFLAGS=", "GOTOOLCHAIN=local")
	if words, err := cmd.CombinedOutput(); err != nil {
		if cerr := context.Cause(ctx); cerr != nil {
			return cerr
		}
		return fmt.Errorf("%w: %s", err, lastLines(string(words), 20))
	}
	return p.complete(bin)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
