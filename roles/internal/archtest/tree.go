// Package archtest holds the rules about this repository's shape that a
// compiler does not check: who may import whom, which files only think and
// never act, where a goroutine may start and where the process may end.
//
// It reads the sources with go/parser, so a rule costs milliseconds, and
// `go test` notices a changed file. Each rule is a row in a table in the file
// named after it; a message says where, what, and why. When a rule is in the
// way, change the table in the same commit and say there why the exception is
// right.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// module is the prefix of our own import paths.
const module = "nvdra"

// A tree is all sources of the module, without nested modules and testdata.
type tree struct {
	fset  *token.FileSet
	files []*file
	texts map[string]string // README.md files by path
	paths map[string]bool   // every file and directory there is
}

// A file is one Go source.
type file struct {
	path string // from the root of the module, with slashes
	dir  string // "" for the root
	test bool
	ast  *ast.File
}

// A violation is one place where a rule is broken.
type violation struct {
	path string
	line int
	what string
	why  string
}

func (v violation) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", v.path, v.line, v.what, v.why)
}

// load reads the module whose root is a directory on disk.
func load(root string) (*tree, error) {
	sources := map[string]string{}
	paths := map[string]bool{}
	var nested []string // modules of their own: they exist, and their sources follow their own rules
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel == "." {
				return nil
			}
			if strings.HasPrefix(d.Name(), ".") || rel == "build" || strings.HasSuffix(name, "testdata/fuzz") {
				return fs.SkipDir
			}
			paths[rel] = true
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				nested = append(nested, rel)
			}
			return nil
		}
		paths[rel] = true
		goSource := strings.HasSuffix(rel, ".go") && !strings.HasPrefix(rel, "testdata/") && !strings.Contains(rel, "/testdata/")
		if !goSource && d.Name() != "README.md" || withinAny(rel, nested) && goSource {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		sources[rel] = string(text)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read module in %s: %w", root, err)
	}
	t, err := parse(sources)
	if err != nil {
		return nil, err
	}
	t.paths = paths
	return t, nil
}

// parse makes a tree of sources by path.
func parse(sources map[string]string) (*tree, error) {
	t := &tree{fset: token.NewFileSet(), texts: map[string]string{}, paths: map[string]bool{}}
	var names []string
	for name := range sources {
		names = append(names, name)
		for p := name; p != "."; p = path.Dir(p) {
			t.paths[p] = true
		}
	}
	sort.Strings(names)
	for _, name := range names {
		if !strings.HasSuffix(name, ".go") {
			t.texts[name] = sources[name]
			continue
		}
		parsed, err := parser.ParseFile(t.fset, name, sources[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		t.files = append(t.files, &file{path: name, dir: strings.TrimSuffix(path.Dir(name), "."), test: strings.HasSuffix(name, "_test.go"), ast: parsed})
	}
	return t, nil
}

// product returns the files that are not tests.
func (t *tree) product() []*file {
	var list []*file
	for _, f := range t.files {
		if !f.test {
			list = append(list, f)
		}
	}
	return list
}

func (t *tree) at(f *file, n ast.Node, what, why string) violation {
	return violation{f.path, t.fset.Position(n.Pos()).Line, what, why}
}

// An imported is one import of a file.
type imported struct {
	path string
	name string // as the file calls it
	spec *ast.ImportSpec
}

func (f *file) imports() []imported {
	var list []imported
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil { // the parser has accepted it
			continue
		}
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		list = append(list, imported{p, name, spec})
	}
	return list
}

// calls visits every use pkg.Name of an imported package, with the import path
// of the package.
func (f *file) uses(visit func(n ast.Node, pkg, name string)) {
	paths := map[string]string{}
	for _, imp := range f.imports() {
		paths[imp.name] = imp.path
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && paths[id.Name] != "" {
				visit(sel, paths[id.Name], sel.Sel.Name)
			}
		}
		return true
	})
}

// within reports whether path is prefix or below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// withinAny reports whether path is below one of prefixes, or a file that
// matches one of them as a pattern.
func withinAny(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if within(name, p) {
			return true
		}
		if ok, err := path.Match(p, name); ok && err == nil {
			return true
		}
	}
	return false
}
