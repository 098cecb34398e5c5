package archtest

import (
	"sort"
	"strings"
	"testing"
)

// rules are all there are.
var rules = map[string]func(*tree) []violation{
	"fences":  checkFences,
	"locks":   checkLocks,
	"binary":  checkBinary,
	"pure":    checkPure,
	"conduct": checkConduct,
	"words":   checkWords,
	"readmes": checkReadmes,
}

func TestThisModule(t *testing.T) {
	tr, err := load("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.files) < 20 || tr.files[0].path == "" || fenceOf("roles/gpuplugin/step") == nil {
		t.Fatalf("only %d files: the module was not found", len(tr.files))
	}
	for name, check := range rules {
		t.Run(name, func(t *testing.T) {
			found := check(tr)
			sort.Slice(found, func(i, j int) bool { return found[i].String() < found[j].String() })
			for _, v := range found {
				t.Error(v)
			}
		})
	}
}

// TestRulesCanFail shows each rule a source that breaks it, and one beside it
// that does not.
func TestRulesCanFail(t *testing.T) {
	for name, test := range map[string]struct {
		rule string
		bad  map[string]string // what breaks the rule: exactly one violation
		want string
		good map[string]string // what does not
	}{
		"role imports role": {"fences",
			one("roles/gpuplugin/a.go", "package a\n\nimport _ \"nvdra/roles/operator\"\n"), "roles/gpuplugin/a.go:3: imports nvdra/roles/operator: no role imports another",
			one("roles/gpuplugin/a.go", "package a\n\nimport _ \"nvdra/roles/internal/claims\"\n")},
		"below a role": {"fences",
			one("roles/gpuplugin/step/a.go", "package a\nimport _ \"nvdra/roles/cdplugin/step\"\n"), "roles/gpuplugin/step/a.go:2: imports",
			one("roles/gpuplugin/step/a.go", "package a\nimport _ \"nvdra/roles/gpuplugin/device\"\n")},
		"operator and NVML": {"fences",
			one("roles/operator/a.go", "package a\nimport _ \"nvdra/nvml\"\n"), "runs where no GPU is",
			one("roles/operator/a.go", "package a\nimport _ \"nvdra/k8s/client\"\n")},
		"engine and gates": {"fences",
			one("roles/internal/claims/a.go", "package a\nimport _ \"nvdra/featuregates\"\n"), "the engine knows no GPU",
			one("roles/internal/claims/a.go", "package a\nimport _ \"nvdra/cdi\"\n")},
		"library and library": {"fences",
			one("cdi/a.go", "package a\nimport _ \"nvdra/nvml\"\n"), "do not know each other",
			one("cdi/a_test.go", "package a\nimport _ \"nvdra/nvml\"\n")},
		"main": {"fences",
			one("main.go", "package main\nimport _ \"nvdra/nvml\"\n"), "main only picks a role",
			one("main.go", "package main\nimport _ \"nvdra/roles\"\n")},
		"no fence": {"fences",
			one("pkg/a.go", "package a\n"), "pkg/a.go:1: no fence",
			one("k8s/control/a.go", "package a\n")},
		"standard library only": {"fences",
			one("nvml/a.go", "package a\nimport _ \"k8s.io/api/core/v1\"\n"), "standard library only",
			one("nvml/a.go", "package a\nimport _ \"encoding/json\"\n")},
		"go-nvml": {"locks",
			one("roles/gpuplugin/a.go", "package a\nimport _ \"github.com/NVIDIA/go-nvml/pkg/nvml\"\n"), "only nvml/driver talks to NVML",
			one("nvml/driver/a.go", "package a\nimport _ \"github.com/NVIDIA/go-nvml/pkg/nvml\"\n")},
		"flags": {"locks",
			one("roles/gpuplugin/plan.go", "package a\nimport _ \"github.com/urfave/cli/v2\"\n"), "role.go",
			one("roles/gpuplugin/role.go", "package a\nimport _ \"github.com/urfave/cli/v2\"\n")},
		"logging library": {"locks",
			one("k8s/client/a.go", "package a\nimport _ \"go.uber.org/zap\"\n"), "libraries return errors",
			one("roles/gpuplugin/a.go", "package a\nimport _ \"go.uber.org/zap\"\n")},
		"metrics": {"locks",
			one("roles/gpuplugin/a.go", "package a\nimport _ \"github.com/prometheus/client_golang/prometheus\"\n"), "metrics.go",
			one("roles/gpuplugin/metrics.go", "package a\nimport _ \"github.com/prometheus/client_golang/prometheus\"\n")},
		"engine and API server": {"locks",
			one("roles/internal/claims/a.go", "package a\nimport _ \"k8s.io/client-go/kubernetes\"\n"), "the API server",
			one("roles/internal/kubelet/a.go", "package a\nimport _ \"k8s.io/client-go/kubernetes\"\n")},
		"never": {"locks",
			one("k8s/a.go", "package a\nimport _ \"k8s.io/kubernetes/pkg/features\"\n"), "it is not a library",
			one("k8s/a.go", "package a\nimport _ \"k8s.io/kubernetesque\"\n")},
		"simulator": {"locks",
			one("nvml/driver/a.go", "package a\nimport _ \"nvdra/nvml/sim\"\n"), "never be part of the product",
			one("nvml/driver/a_test.go", "package a\nimport _ \"nvdra/nvml/sim\"\n")},
		"simulator by a detour": {"binary",
			map[string]string{
				"main.go": "package main\nimport _ \"nvdra/roles\"\n", "roles/roles.go": "package roles\nimport _ \"nvdra/roles/x\"\n",
				"roles/x/x.go": "package x\nimport _ \"nvdra/nvml/sim/wire\"\n",
			}, "roles/x/x.go:2: is part of the program (main.go → roles → roles/x → nvml/sim/wire)",
			map[string]string{"main.go": "package main\nimport _ \"nvdra/roles\"\n", "nvml/sim/gpusim/main.go": "package main\nimport _ \"nvdra/nvml/sim\"\n"}},
		"pure file reads": {"pure",
			one("roles/gpuplugin/plan.go", "package a\nimport \"os\"\nvar _ = os.Args\n"), "roles/gpuplugin/plan.go:2: imports os: this file only decides",
			one("roles/gpuplugin/inventory.go", "package a\nimport \"os\"\nvar _ = os.Args\n")},
		"pure file runs": {"pure",
			one("roles/x/fsm.go", "package a\nimport _ \"os/exec\"\n"), "imports os/exec",
			one("roles/x/fsm.go", "package a\nimport _ \"errors\"\n")},
		"pure file talks": {"pure",
			one("roles/x/decide.go", "package a\nimport _ \"k8s.io/client-go/kubernetes\"\n"), "imports k8s.io/client-go/kubernetes",
			one("roles/x/decide.go", "package a\nimport _ \"k8s.io/api/core/v1\"\n")},
		"pure file looks at the clock": {"pure",
			one("roles/x/decide.go", "package a\nimport clock \"time\"\n\nvar _ = clock.Now\n"), "roles/x/decide.go:4: uses time.Now",
			one("roles/x/decide.go", "package a\nimport \"time\"\nfunc f(now time.Time) time.Time { return now.Add(time.Second) }\n")},
		"pure file goes": {"pure",
			one("roles/x/publish.go", "package a\nfunc f() { go f() }\n"), "starts a goroutine",
			one("roles/x/publish.go", "package a\nfunc f() { f() }\n")},
		"pure tree": {"pure",
			one("roles/gpuplugin/device/any.go", "package a\nimport _ \"net/http\"\n"), "imports net/http",
			one("roles/gpuplugin/device/any_test.go", "package a\nimport _ \"net/http\"\n")},
		"goroutine": {"conduct",
			one("cdi/a.go", "package a\nfunc f() {\n\tgo f()\n}\n"), "cdi/a.go:3: starts a goroutine",
			one("roles/internal/process/a.go", "package a\nfunc f() {\n\tgo f()\n}\n")},
		"exit": {"conduct",
			one("roles/a.go", "package a\nimport \"os\"\nfunc f() { os.Exit(1) }\n"), "only main.go",
			one("main.go", "package a\nimport \"os\"\nfunc f() { os.Exit(1) }\n")},
		"fatal": {"conduct",
			one("roles/a.go", "package a\nimport \"log\"\nfunc f() { log.Fatalf(\"\") }\n"), "uses Fatalf of log",
			one("roles/a.go", "package a\nimport \"log\"\nfunc f() { log.Print() }\n")},
		"environment": {"conduct",
			one("k8s/client/a.go", "package a\nimport \"os\"\nvar _ = os.Getenv(\"X\")\n"), "a setting is a flag",
			one("roles/internal/process/a.go", "package a\nimport \"os\"\nvar _ = os.Getenv(\"X\")\n")},
		"panic": {"conduct",
			one("cdi/a.go", "package a\nfunc f() { panic(1) }\n"), "return an error",
			one("cdi/a.go", "package a\nfunc f() { recover() }\n")},
		"file name": {"words",
			one("cdi/utils.go", "// Package a is.\npackage a\n"), "named after the thing in it",
			one("cdi/store.go", "// Package a is.\npackage a\n")},
		"type name": {"words",
			one("cdi/a.go", "// Package a is.\npackage a\ntype ClaimManager struct{}\n"), "cdi/a.go:3: declares ClaimManager",
			one("cdi/a.go", "// Package a is.\npackage a\ntype Store struct{}\n")},
		"error text": {"words",
			one("cdi/a.go", "// Package a is.\npackage a\nimport \"fmt\"\nvar _ = fmt.Errorf(\"failed to open: %w\", nil)\n"), "says failed to",
			one("cdi/a.go", "// Package a is.\npackage a\nimport \"fmt\"\nvar _ = fmt.Errorf(\"open: %w\", nil)\n")},
		"package comment": {"words",
			one("cdi/a.go", "package a\n"), "package a has no comment",
			map[string]string{"cdi/a.go": "package a\n", "cdi/b.go": "// Package a is.\npackage a\n"}},
		"map": {"readmes",
			one("README.md", "| I want to… | Go to |\n|---|---|\n| fly | `roles/wings.go` |\n"), "README.md:3: names roles/wings.go",
			map[string]string{
				"README.md":    "| I want to… | Go to |\n|---|---|\n| `x` | `roles/fsm.go`, then `engine.go`; `make test`; `k8s/api/…` |\n\n| other | `nowhere` |\n",
				"roles/fsm.go": "package a\n", "roles/engine.go": "package a\n", "k8s/api/a.go": "package a\n",
			}},
		"link": {"readmes",
			one("cdi/README.md", "see [there](there.md#part)\n"), "cdi/README.md:1: links to there.md#part",
			map[string]string{"cdi/README.md": "see [there](../there/README.md#part), [out](https://example.com/x) and [here](#here)\n", "there/README.md": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			bad, err := parse(test.bad)
			if err != nil {
				t.Fatal(err)
			}
			found := rules[test.rule](bad)
			if len(found) != 1 || !strings.Contains(found[0].String(), test.want) {
				t.Errorf("found %q, want one that says %q", found, test.want)
			}
			good, err := parse(test.good)
			if err != nil {
				t.Fatal(err)
			}
			if found := rules[test.rule](good); len(found) > 0 {
				t.Errorf("the good one is refused: %q", found)
			}
		})
	}
}

func one(name, text string) map[string]string { return map[string]string{name: text} }

// TestTablesAreAlive keeps exceptions from outliving what they were for: a
// place that may do something must exist. Roles that are yet to come are no
// exceptions, so fences are not looked at.
func TestTablesAreAlive(t *testing.T) {
	tr, err := load("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]string{mayStartGoroutine, mayExit, mayReadEnvironment, mayPanic, pureTrees} {
		for _, p := range list {
			if !strings.Contains(p, "*") && !tr.paths[p] {
				t.Errorf("%s does not exist; take it off its list", p)
			}
		}
	}
}
