package part

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEveryPartHasPins(t *testing.T) {
	for _, p := range append([]Part{Kubernetes("1.37"), Kubernetes("1.34")}, Others...) {
		pin, err := p.ReadPin("../parts")
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		if !strings.HasPrefix(pin.Version, "v") || len(pin.Hash) != 12 {
			t.Errorf("%s: pin is %+v", p.Name, pin)
		}
	}
	_, err := Kubernetes("1.2").ReadPin("../parts")
	if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "kubernetes-1.37") {
		t.Errorf("unknown version: %v, want one that names those there are", err)
	}
}

func TestCommand(t *testing.T) {
	got := Kubernetes("1.37").command("v1.37.2", "OUT")
	want := []string{
		"CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags",
		"-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37",
		"-o", "OUT",
		"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler",
		"k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kube-proxy", "k8s.io/kubernetes/cmd/kubectl",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("command (-want +got):\n%s", d)
	}
	for _, p := range Others {
		if p.Name == "runc" && p.command("v1", "OUT")[0] != "CGO_ENABLED=1" {
			t.Error("runc is built without cgo, so without seccomp")
		}
	}
}

func TestRequired(t *testing.T) {
	const mod = "module x\n\nrequire a/b v1.2.3 // indirect\n\nrequire (\n\tc/d v0.1.0\n)\nreplace c/d => e/f v9.9.9\n"
	for module, want := range map[string]string{"a/b": "v1.2.3", "c/d": "v0.1.0"} {
		if got, err := required(mod, module); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", module, got, err, want)
		}
	}
	if _, err := required(mod, "e/f"); err == nil {
		t.Error("a module that is not required: accepted")
	}
}

func FuzzRequired(f *testing.F) {
	f.Add("require a/b v1.2.3", "a/b")
	f.Add("require (\n\ta/b v1\n)", "a/b")
	f.Fuzz(func(t *testing.T, mod, module string) {
		if v, err := required(mod, module); err == nil && !strings.HasPrefix(v, "v") {
			t.Errorf("version is %q", v)
		}
	})
}

// small is a part that builds in a moment: a module with one program, beside
// which stands what it requires.
func small(t *testing.T) (Part, string) {
	t.Helper()
	parts := t.TempDir()
	for path, text := range map[string]string{
		"small/go.mod":       "module small\n\ngo 1.26.0\n\nrequire example.test/prog v1.0.0\n\nreplace example.test/prog => ./prog\n",
		"small/go.sum":       "",
		"small/prog/go.mod":  "module example.test/prog\n\ngo 1.26.0\n",
		"small/prog/main.go": "package main\n\nfunc main() { println(\"hello\") }\n",
	} {
		path = filepath.Join(parts, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Part{Name: "small", Dir: "small", Module: "example.test/prog", Packages: []string{"example.test/prog"}, FirstRun: "a moment"}, parts
}

func TestEnsureBuildsOnce(t *testing.T) {
	p, parts := small(t)
	cache := t.TempDir()
	var wg sync.WaitGroup
	var words [2]bytes.Buffer
	var dirs [2]string
	for i := range 2 { // two launchers at once
		wg.Go(func() {
			dir, err := p.Ensure(t.Context(), &words[i], parts, cache)
			if err != nil {
				t.Error(err)
			}
			dirs[i] = dir
		})
	}
	wg.Wait()
	if both := words[0].String() + words[1].String(); strings.Count(both, "built in") != 1 {
		t.Errorf("two launchers at once said:\n%s", both)
	}
	if dirs[0] != dirs[1] {
		t.Errorf("directories are %q", dirs)
	}
	var again bytes.Buffer
	if _, err := p.Ensure(t.Context(), &again, parts, cache); err != nil || again.Len() > 0 {
		t.Errorf("a part that is there: %v, %q", err, again.String())
	}
	// A changed pin is another part.
	if err := os.WriteFile(filepath.Join(parts, "small/go.sum"), []byte("\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, err := p.Ensure(t.Context(), &again, parts, cache)
	if err != nil || dir == dirs[0] {
		t.Errorf("after its pins changed: %q, %v", dir, err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "parts", "building-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestEnsureSaysWhatTheCompilerSaid(t *testing.T) {
	p, parts := small(t)
	if err := os.WriteFile(filepath.Join(parts, "small/prog/main.go"), []byte("package main\n\nfunc main() { nonsense() }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	_, err := p.Ensure(t.Context(), new(bytes.Buffer), parts, cache)
	if err == nil || !strings.Contains(err.Error(), "undefined: nonsense") || !strings.Contains(err.Error(), "build small v1.0.0") {
		t.Errorf("got %v", err)
	}
	if entries, _ := filepath.Glob(filepath.Join(cache, "parts", "*-*")); len(entries) > 0 {
		t.Errorf("a failed build left %q", entries)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(path); !errors.Is(err, ErrBusy) {
		t.Errorf("second: %v, want %v", err, ErrBusy)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	waited := 0
	if _, err := Lock(ctx, path, func() { waited++ }); !errors.Is(err, context.DeadlineExceeded) || waited != 1 {
		t.Errorf("waiting: %v, announced %d times", err, waited)
	}
	// Whoever holds it may remove it; the next one gets a lock that counts.
	if err := errors.Join(os.Remove(path), first.Close()); err != nil {
		t.Fatal(err)
	}
	second, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, err := TryLock(path); !errors.Is(err, ErrBusy) {
		t.Errorf("after it was removed: %v, want %v", err, ErrBusy)
	}
}
