package archtest

import (
	"go/ast"
	"go/token"
	"strings"
)

// What code does, apart from what it imports. Each list holds the places where
// it is right; everybody else is told why not.
var (
	mayStartGoroutine = []string{
		"roles/internal/process", // where tasks are run and awaited
		"nvml/driver",            // a call into the driver may hang and has to be given up
		"nvml/sim",               // a program of its own
	}
	mayExit = []string{
		"main.go",
		"cdi/nvidia-cdi-hook/main.go", // a program of its own
		"nvml/sim",                    // programs of their own
		"roles/e2e/bench/main.go",     // a program of its own
	}
	mayReadEnvironment = []string{
		"roles/internal/process",
		"nvml/driver/*.go", // marks its own child by a variable
		"nvml/sim",
	}
	mayPanic = []string{"nvml/sim", "nvml/nvmltest"} // neither is part of the product
)

// checkConduct looks at goroutines, exits, the environment and panics.
func checkConduct(t *tree) []violation {
	var found []violation
	for _, f := range t.product() {
		forbid := func(allowed []string, n ast.Node, what, why string) {
			if !withinAny(f.path, allowed) {
				found = append(found, t.at(f, n, what, why))
			}
		}
		f.uses(func(n ast.Node, pkg, name string) {
			switch {
			case pkg == "os" && name == "Exit", pkg == "syscall" && name == "Exit":
				forbid(mayExit, n, "uses "+pkg+".Exit", "only main.go ends the process; return an error")
			case (pkg == "log" || strings.HasPrefix(pkg, "k8s.io/klog")) && (strings.HasPrefix(name, "Fatal") || strings.HasPrefix(name, "Exit")):
				forbid(mayExit, n, "uses "+name+" of "+pkg, "only main.go ends the process; return an error")
			case pkg == "os" && (name == "Getenv" || name == "LookupEnv" || name == "Environ"):
				forbid(mayReadEnvironment, n, "uses os."+name, "a setting is a flag with an environment variable, declared in role.go")
			}
		})
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				forbid(mayStartGoroutine, n, "starts a goroutine", "long-running work is a process.Task, and short work in parallel a sync.WaitGroup.Go that is awaited")
			case *ast.CallExpr:
				if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "panic" {
					forbid(mayPanic, n, "panics", "return an error")
				}
			}
			return true
		})
	}
	return found
}

// checkWords looks at names and at the text of errors.
func checkWords(t *tree) []violation {
	var found []violation
	documented := map[string]bool{}
	first := map[string]*file{}
	for _, f := range t.product() {
		if f.ast.Doc != nil {
			documented[f.dir] = true
		}
		if first[f.dir] == nil {
			first[f.dir] = f
		}
		switch name := f.path[strings.LastIndexByte(f.path, '/')+1:]; name {
		case "util.go", "utils.go", "helper.go", "helpers.go", "types.go", "misc.go":
			found = append(found, t.at(f, f.ast.Name, "is called "+name, "a file is named after the thing in it"))
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				for _, word := range []string{"Manager", "Helper", "Util", "Utils"} {
					if strings.HasSuffix(n.Name.Name, word) {
						found = append(found, t.at(f, n, "declares "+n.Name.Name, "say what it is; "+word+" says nothing"))
					}
				}
			case *ast.CallExpr:
				if text, ok := errorText(f, n); ok {
					for _, phrase := range []string{"failed to", "unable to", "could not", "error "} {
						if strings.HasPrefix(strings.ToLower(text), phrase) {
							found = append(found, t.at(f, n, "says "+strings.TrimSpace(phrase), "an error reads `verb object: cause`; that something went wrong is known"))
						}
					}
				}
			}
			return true
		})
	}
	for dir, f := range first {
		if !documented[dir] {
			found = append(found, t.at(f, f.ast.Name, "package "+f.ast.Name.Name+" has no comment", "a package opens with what it is for"))
		}
	}
	return found
}

// errorText returns the literal that an error is made of.
func errorText(f *file, call *ast.CallExpr) (string, bool) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return "", false
	}
	pkg, ok := sel.X.(*ast.Ident)
	if !ok || (pkg.Name != "fmt" || sel.Sel.Name != "Errorf") && (pkg.Name != "errors" || sel.Sel.Name != "New") {
		return "", false
	}
	lit, ok := call.Args[0].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	return strings.Trim(lit.Value, "`\""), true
}
