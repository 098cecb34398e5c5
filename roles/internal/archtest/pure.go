package archtest

import (
	"go/ast"
	"path"
)

// pureFiles only think: they turn values into values. What they decide can
// then be tested with literals, and read without knowing a machine. The names
// are the same in every role.
var pureFiles = map[string]bool{"plan.go": true, "fsm.go": true, "decide.go": true, "publish.go": true}

// pureTrees only think, in all of their files.
var pureTrees = []string{"roles/gpuplugin/device"}

// notPure are the imports that a pure file cannot have.
var notPure = []string{"os", "net", "syscall", "io/ioutil", "golang.org/x/sys", "k8s.io/client-go", module + "/k8s/client", module + "/nvml/driver", module + "/nvml/host"}

// clock are the functions of package time that look at the clock or wait.
var clock = map[string]bool{"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Sleep": true, "Tick": true, "NewTimer": true, "NewTicker": true}

// checkPure keeps files, network, clock, clients and goroutines out of pure
// files.
func checkPure(t *tree) []violation {
	const why = "this file only decides; what it needs to know is passed in, and what it wants done is returned"
	var found []violation
	for _, f := range t.product() {
		if !pureFiles[path.Base(f.path)] && !withinAny(f.path, pureTrees) {
			continue
		}
		for _, imp := range f.imports() {
			if withinAny(imp.path, notPure) {
				found = append(found, t.at(f, imp.spec, "imports "+imp.path, why))
			}
		}
		f.uses(func(n ast.Node, pkg, name string) {
			if pkg == "time" && clock[name] {
				found = append(found, t.at(f, n, "uses time."+name, why))
			}
		})
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				found = append(found, t.at(f, g, "starts a goroutine", why))
			}
			return true
		})
	}
	return found
}
