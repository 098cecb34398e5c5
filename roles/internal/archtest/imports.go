package archtest

import (
	"sort"
	"strings"
)

// A fence says what of ours a tree may import.
type fence struct {
	dir  string   // and everything below it that has no fence of its own
	may  []string // trees of ours; its own is not implied
	why  string
	only bool // the standard library and nothing else from outside
}

// fences is the picture in roles/README.md as data: arrows point down. A
// directory without a fence is an error, so a new one has to find its place.
var fences = []fence{
	{dir: "", may: []string{"roles"}, why: "main only picks a role"},
	{dir: "roles", may: []string{"roles", "nvml/driver"}, why: "the table of roles does nothing itself"},
	{dir: "roles/gpuplugin", may: []string{"roles/gpuplugin", "roles/internal", "k8s", "cdi", "nvml", "featuregates"}, why: noRole},
	{dir: "roles/cdplugin", may: []string{"roles/cdplugin", "roles/internal", "k8s", "cdi", "nvml", "featuregates"}, why: noRole},
	{dir: "roles/validator", may: []string{"roles/validator", "roles/internal/process", "k8s", "nvml", "featuregates"}, why: noRole},
	{dir: "roles/operator", may: []string{"roles/operator", "roles/internal/process", "k8s", "featuregates"}, why: noGPU},
	{dir: "roles/cdcontroller", may: []string{"roles/cdcontroller", "roles/internal/process", "k8s", "featuregates"}, why: noGPU},
	{dir: "roles/imexdaemon", may: []string{"roles/imexdaemon", "roles/internal/process", "k8s", "featuregates"}, why: noGPU},
	{dir: "roles/e2e", may: []string{"nvml/sim", "roles/e2e"}, why: "it tests the built binary, not its packages"},
	{dir: "roles/internal/process", may: []string{"k8s/client", "featuregates"}, why: "a process knows nothing of what it does"},
	{dir: "roles/internal/claims", may: []string{"cdi"}, why: "the engine knows no GPU, no gate and no API server"},
	{dir: "roles/internal/kubelet", may: []string{"roles/internal/claims", "k8s"}, why: "kubelet is on one side and the engine on the other"},
	{dir: "roles/internal/archtest", why: "it reads sources and runs none", only: true},
	{dir: "nvml", why: library, only: true},
	{dir: "nvml/host", may: []string{"nvml"}, why: library, only: true},
	{dir: "nvml/driver", may: []string{"nvml", "nvml/host"}, why: library},
	{dir: "nvml/sim", may: []string{"nvml", "nvml/sim"}, why: "the simulator plays the driver and knows nothing of who asks it"},
	{dir: "nvml/nvmltest", may: []string{"nvml"}, why: "the contract of nvml.Node, for all that implement it"},
	{dir: "cdi", may: []string{"cdi"}, why: library},
	{dir: "featuregates", why: library, only: true},
	{dir: "k8s", may: []string{"k8s"}, why: library},
}

const (
	noRole  = "no role imports another; what two need lies in roles/internal, k8s, cdi, nvml or featuregates"
	noGPU   = "this role runs where no GPU is, and no role imports another"
	library = "the libraries at the bottom do not know each other, nor who uses them"
)

// A lock says who may import something from outside.
type lock struct {
	path  string   // and everything below it
	users []string // directories, or patterns of files; none if nobody may
	why   string
}

var locks = []lock{
	{"github.com/NVIDIA/go-nvml", []string{"nvml/driver", "cdi"},
		"only nvml/driver talks to NVML (cdi has to open it for nvcdi); everybody else uses nvml.Node"},
	{"github.com/NVIDIA/nvidia-container-toolkit", []string{"cdi"}, "package cdi knows what a container needs"},
	{"github.com/urfave/cli/v2", []string{"roles/internal/process", "roles/*/role.go"}, "flags are declared in a role's role.go; the rest sees a plain struct"},
	{"github.com/urfave/cli/v3", []string{"cdi/nvidia-cdi-hook"}, "it is the toolkit's; ours is v2"},
	{"go.uber.org/zap", []string{"roles"}, "libraries return errors, and roles log them"},
	{"github.com/prometheus/client_golang", []string{"roles/internal", "roles/*/metrics.go"}, "a role declares its metrics in metrics.go"},
	{"k8s.io/client-go", []string{"k8s", "roles/gpuplugin", "roles/cdplugin", "roles/cdcontroller", "roles/imexdaemon", "roles/operator", "roles/validator", "roles/internal/kubelet", "roles/e2e"},
		"the API server is reached through k8s/client, by roles only"},
	{"k8s.io/dynamic-resource-allocation/kubeletplugin", []string{"roles/internal/kubelet", "roles/e2e/bench"}, "kubelet is spoken to in one place; the benchmark has a plugin of its own to compare with"},
	{"k8s.io/component-base", nil, "our own gates and logging cost less"},
	{"k8s.io/kubernetes", nil, "it is not a library"},
	{"sigs.k8s.io/controller-runtime", nil, "k8s/control is the whole framework we need"},
	{"github.com/stretchr/testify", nil, "the standard library and go-cmp are enough"},
	{module + "/nvml/sim", []string{"nvml/sim", "nvml/nvmltest", "roles/e2e"}, "the simulator must never be part of the product"},
	{module + "/nvml/nvmltest", []string{"nvml"}, "it is for tests"},
}

// checkFences looks at imports of ours, and at trees that use the standard
// library only.
func checkFences(t *tree) []violation {
	var found []violation
	for _, f := range t.product() {
		fence := fenceOf(f.dir)
		if fence == nil {
			found = append(found, t.at(f, f.ast.Name, "no fence says what this directory may import", "add a row to fences in roles/internal/archtest/imports.go"))
			continue
		}
		for _, imp := range f.imports() {
			rel, ours := strings.CutPrefix(imp.path, module+"/")
			switch {
			case ours && !withinAny(rel, fence.may):
				found = append(found, t.at(f, imp.spec, "imports "+imp.path, fence.why))
			case !ours && fence.only && strings.Contains(strings.Split(imp.path, "/")[0], ".") && imp.path != "golang.org/x/sys/unix":
				found = append(found, t.at(f, imp.spec, "imports "+imp.path, "this tree uses the standard library only"))
			}
		}
	}
	return found
}

// fenceOf finds the innermost fence around dir. The root's is for the root
// alone.
func fenceOf(dir string) *fence {
	var best *fence
	for i, f := range fences {
		if f.dir == dir || f.dir != "" && within(dir, f.dir) {
			if best == nil || len(f.dir) > len(best.dir) {
				best = &fences[i]
			}
		}
	}
	return best
}

// checkLocks looks at imports that only some may have.
func checkLocks(t *tree) []violation {
	var found []violation
	for _, f := range t.product() {
		for _, imp := range f.imports() {
			for _, l := range locks {
				if within(imp.path, l.path) && !withinAny(f.path, l.users) {
					found = append(found, t.at(f, imp.spec, "imports "+imp.path, l.why))
				}
			}
		}
	}
	return found
}

// checkBinary follows the imports of the program in the root directory and
// reports how the simulator gets into it.
func checkBinary(t *tree) []violation {
	byDir := map[string][]*file{}
	for _, f := range t.product() {
		byDir[f.dir] = append(byDir[f.dir], f)
	}
	var found []violation
	seen := map[string]bool{}
	var follow func(dir, how string)
	follow = func(dir, how string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		for _, f := range byDir[dir] {
			for _, imp := range f.imports() {
				rel, ours := strings.CutPrefix(imp.path, module+"/")
				if !ours {
					continue
				}
				way := how + " → " + rel
				if within(rel, "nvml/sim") || within(rel, "nvml/nvmltest") {
					found = append(found, t.at(f, imp.spec, "is part of the program ("+way+")", "the product must not contain the simulator"))
					continue
				}
				follow(rel, way)
			}
		}
	}
	follow("", "main.go")
	sort.Slice(found, func(i, j int) bool { return found[i].path < found[j].path })
	return found
}
