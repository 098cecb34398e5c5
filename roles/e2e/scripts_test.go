package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/util/rand"
	"rsc.io/script"

	"nvdra/roles/gpuplugin/step"
)

const (
	scriptsDir = "../../testdata/scripts"

	// scriptLimit ends a script that hangs.
	scriptLimit = 2 * time.Minute
)

var update = flag.Bool("update", false, "rewrite the files in testdata/scripts/golden")

// shared is what all scripts of a test run use.
var shared struct {
	dir      string
	programs programs
	api      *apiServer
}

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil {
		// A script mostly waits for something, so more of them than there are
		// processors can run at once.
		explicit := false
		flag.Visit(func(f *flag.Flag) { explicit = explicit || f.Name == "test.parallel" })
		if !explicit {
			f.Value.Set("6") //nolint:errcheck // a number is a number
		}
	}
	status, err := testMain(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// testMain builds and starts what is shared, runs the tests and ends it.
func testMain(m *testing.M) (status int, err error) {
	if flag.Lookup("test.list").Value.String() != "" {
		return m.Run(), nil
	}
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "nvdra-e2e-")
	if err != nil {
		return 1, fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var both sync.WaitGroup
	var buildErr, serverErr error
	both.Go(func() { shared.programs, buildErr = buildPrograms(ctx, dir) })
	both.Go(func() { shared.api, serverErr = startAPIServer(ctx, dir) })
	both.Wait()
	if shared.api != nil {
		defer func() { err = errors.Join(err, shared.api.stop()) }()
	}
	if err := errors.Join(buildErr, serverErr); err != nil {
		return 1, err
	}
	shared.dir = dir
	return m.Run(), nil
}

// TestScripts runs every script.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(scriptsDir, "*", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts in %s: %v", len(files), scriptsDir, err)
	}
	if err := lookAtSources(); err != nil {
		t.Fatalf("look at sources: %v", err)
	}
	t.Cleanup(func() { // after all of them
		if err := refusals(shared.dir); err != nil {
			t.Error(err)
		}
	})
	for _, file := range files {
		role, name := filepath.Base(filepath.Dir(file)), strings.TrimSuffix(filepath.Base(file), ".txtar")
		if role == "cluster" {
			continue // these want whole nodes, and have a test of their own
		}
		t.Run(role+"/"+name, func(t *testing.T) {
			t.Parallel()
			// With -count a script runs again on the same API server.
			runScript(t, file, role+"-"+strings.ReplaceAll(name, "_", "-")+"-"+rand.String(5))
		})
	}
}

func runScript(t *testing.T, file, node string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// t.TempDir has the test's name in it, and a socket's path must be short.
	dir, err := os.MkdirTemp("", "nv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), scriptLimit)
	defer cancel()
	w, err := newWorld(ctx, dir, node, shared.programs, shared.api)
	if err != nil {
		t.Fatal(err)
	}
	w.update = *update
	t.Cleanup(func() {
		if t.Failed() {
			w.logTails(t)
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	state, err := script.NewState(ctx, dir, w.environ())
	if err != nil {
		t.Fatal(err)
	}
	if err := state.ExtractFiles(archive); err != nil {
		t.Fatal(err)
	}
	log := new(bytes.Buffer)
	engine := w.engine(log)
	err = engine.Execute(state, file, bufio.NewReader(bytes.NewReader(archive.Comment)), log)
	err = errors.Join(err, state.CloseAndWait(log))
	if err != nil || testing.Verbose() {
		t.Logf("%s", log)
	}
	if err != nil {
		t.Error(err)
	}
}

// logTails shows what the processes of a failed script said last.
func (w *world) logTails(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(w.plugins)) {
		if c := w.plugins[name].child; c != nil {
			t.Logf("log of %s:\n%s", name, c.tail())
		}
	}
	if w.sim != nil {
		t.Logf("log of gpusim:\n%s", w.sim.tail())
	}
}

// Every kind of step has a script that does and undoes it, and one in which the
// plugin is killed before, while and after it does.
func TestEveryStepHasAScript(t *testing.T) {
	for kind := range step.Handlers(step.Deps{}) {
		for _, name := range []string{kind, kind + "_crash"} {
			if _, err := os.Stat(filepath.Join(scriptsDir, "gpuplugin", name+".txtar")); err != nil {
				t.Errorf("step %q has no script: %v", kind, err)
			}
		}
	}
}

// Every verb says what it does, and shows how it is used.
func TestEveryVerbIsExplained(t *testing.T) {
	for name, cmd := range (&world{}).verbs(new(bytes.Buffer)) {
		u := cmd.Usage()
		if u.Summary == "" || len(u.Detail) == 0 || !strings.Contains(strings.Join(u.Detail, "\n"), name) {
			t.Errorf("verb %s: summary %q and detail %q do not explain it", name, u.Summary, u.Detail)
		}
	}
}
