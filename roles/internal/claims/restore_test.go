package claims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// failing makes one operation fail.
func failing(op string) func(context.Context, string) error {
	return func(_ context.Context, at string) error {
		if at == op {
			return errors.New("the driver is busy")
		}
		return nil
	}
}

// R003: after a reboot a claim prepares afresh, although it was prepared.
func TestR003Reboot(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "act", "keep", "edit"))
	crashed := claim("crashed", gpu("gpu-1", "act"))
	mustPrepare(t, b, c)
	b.node.setHook(failing("do act gpu-1 over"))
	if _, err := b.Prepare(t.Context(), crashed); err == nil {
		t.Fatal("it succeeded")
	}
	b.node.setHook(nil)
	if err := os.RemoveAll(filepath.Join(b.node.root, "cdi")); err != nil {
		t.Fatal(err)
	}
	b.node.reboot()
	b.node.calls()
	b = b.reopen(t, bootID("boot-2"))
	if diff := cmp.Diff([]string{"undo keep gpu-0"}, b.node.calls()); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
	mustBeEmpty(t, b)
	if n := len(b.Records()); n != 0 {
		t.Errorf("%d records are left", n)
	}
	mustPrepare(t, b, c)
	if !strings.Contains(b.specText(c.UID), "DEVICE=gpu-0") {
		t.Errorf("spec: %q", b.specText(c.UID))
	}
	if r := b.record(c.UID); r.BootID != "boot-2" {
		t.Errorf("boot %s", r.BootID)
	}
}

// R003 with a CDI directory that outlives the reboot.
func TestRebootRemovesPersistentSpecs(t *testing.T) {
	b := setUp(t)
	mustPrepare(t, b, claim("job", gpu("gpu-0", "edit")))
	b = b.reopen(t, bootID("boot-2"))
	mustBeEmpty(t, b)
}

// R003: a record that does not say of which boot it is counts as of this one.
func TestRecordWithoutBoot(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "edit"))
	mustPrepare(t, b, c)
	r := b.record(c.UID)
	r.BootID = ""
	if err := b.save(r, false); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(b.node.root, "cdi")); err != nil {
		t.Fatal(err)
	}
	b = b.reopen(t, bootID("boot-2"))
	mustPrepare(t, b, c)
	if b.specText(c.UID) == "" {
		t.Error("it has no spec")
	}
}

// A step that outlives a reboot and cannot be undone keeps its claim, but does
// not make others believe in what the reboot took away.
func TestRebootWithFailingUndo(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "keep", "act:ts=Long"))
	mustPrepare(t, b, c)
	b.node.reboot()
	b.node.setHook(failing("undo keep gpu-0"))
	b = b.reopen(t, bootID("boot-2"))
	if r := b.reported(); len(r) != 1 || r[0].Reason != ReasonUndo || r[0].Ref != RefOf(c) {
		t.Errorf("reports: %+v", r)
	}
	_, err := b.Prepare(t.Context(), c)
	wantError(t, err, nil, "undo what outlived a reboot: undo step keep: the driver is busy")
	other := claim("other", gpu("gpu-1", "act:ts=Short"))
	mustPrepare(t, b, other)
	mustUnprepare(t, b, other)
	if diff := cmp.Diff([]string{"keep gpu-0"}, b.node.things()); diff != "" {
		t.Errorf("on the node (-want +got):\n%s", diff)
	}
	b.node.setHook(nil)
	if err := b.Sweep(t.Context(), noClaims{}); err != nil {
		t.Fatal(err)
	}
	mustBeEmpty(t, b)
	mustPrepare(t, b, c)
}

// Unprepares that were under way are finished at the start, each on its own.
func TestRestoreFinishesUnprepares(t *testing.T) {
	b := setUp(t)
	one, two := claim("one", gpu("gpu-0", "act", "edit")), claim("two", gpu("gpu-1", "act"))
	three := claim("three", gpu("gpu-2", "act"))
	mustPrepare(t, b, one)
	mustPrepare(t, b, two)
	mustPrepare(t, b, three)
	for _, c := range []string{"gpu-0", "gpu-1"} {
		b.node.setHook(failing("undo act " + c))
		ref := RefOf(one)
		if c == "gpu-1" {
			ref = RefOf(two)
		}
		wantError(t, b.Unprepare(t.Context(), ref), nil, "unprepare claim train/"+ref.Name+": undo step act: the driver is busy")
	}
	b = b.reopen(t) // gpu-1 is still busy
	if s := []State{b.state(one.UID), b.state(two.UID), b.state(three.UID)}; s[0] != StateAbsent || s[1] != StateUnpreparing || s[2] != StatePrepared {
		t.Errorf("states %v", s)
	}
	_, err := b.Prepare(t.Context(), two)
	wantError(t, err, nil, "finish the unprepare that came first", "busy")
	b.node.setHook(nil)
	mustPrepare(t, b, two) // finishes it, and prepares afresh
	mustUnprepare(t, b, two)
	mustUnprepare(t, b, three)
	mustBeEmpty(t, b)
}

// R022: prepared claims survive a restart, also as far as others are concerned.
func TestR022Restart(t *testing.T) {
	b := setUp(t)
	mustPrepare(t, b, claim("a", gpu("gpu-0", "act")))
	mustPrepare(t, b, claim("b", gpu("gpu-1", "edit")))
	b = b.reopen(t)
	if n := len(b.Records()); n != 2 {
		t.Errorf("%d records", n)
	}
	_, err := b.Prepare(t.Context(), claim("c", gpu("gpu-1", "edit")))
	wantError(t, err, ErrConflict, "train/b")
}

// Specs that are missing or damaged are written at the start, specs of unknown
// claims and temporary files are removed, and files of others stay.
func TestRestoreTidies(t *testing.T) {
	b := setUp(t)
	missing, damaged := claim("missing", gpu("gpu-0", "edit")), claim("damaged", gpu("gpu-1", "edit"))
	mustPrepare(t, b, missing)
	mustPrepare(t, b, damaged)
	spec := func(uid string) string {
		path, err := b.specs.Path(uid)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	orphan := spec("uid-orphan")
	foreign := filepath.Join(b.node.root, "cdi", "vendor.com-gpu.yaml")
	temp := b.dir.path("uid-temp", tempSuffix)
	if err := errors.Join(
		os.Remove(spec("uid-missing")),
		os.WriteFile(spec("uid-damaged"), []byte("cdi"), 0o644),
		os.WriteFile(orphan, []byte("cdi"), 0o644),
		os.WriteFile(foreign, []byte("cdi"), 0o644),
		os.WriteFile(temp, []byte("half"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	b = b.reopen(t)
	for _, c := range []string{"missing", "damaged"} {
		if text := b.specText(claim(c, Plan{}).UID); !strings.Contains(text, "DEVICE=") {
			t.Errorf("spec of %s: %q", c, text)
		}
	}
	for path, there := range map[string]bool{orphan: false, temp: false, foreign: true} {
		if _, err := os.Stat(path); (err == nil) != there {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
	if r := b.reported(); len(r) > 0 {
		t.Errorf("reports: %+v", r)
	}
}

// A claim another process works on is left to it.
func TestRestoreLeavesBusyClaims(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "act", "edit"))
	held, release := make(chan struct{}), make(chan struct{})
	b.node.setHook(func(_ context.Context, op string) error {
		if op == "spec write uid-job over" {
			close(held)
			<-release
		}
		return nil
	})
	prepared := make(chan error)
	go func() {
		_, err := b.Prepare(t.Context(), c)
		prepared <- err
	}()
	<-held
	other := open(t, newNode(b.node.root))
	if err := other.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if other.specText(c.UID) == "" {
		t.Error("the other process's spec was taken for an orphan")
	}
	close(release)
	if err := <-prepared; err != nil {
		t.Error(err)
	}
}

// R009, R015, R017: what a crash left is undone by unprepare alone, with nobody
// to ask about the claim. R018: a step that changed nothing is not undone (its
// handler here panics if it is).
func TestR009UnprepareAfterCrash(t *testing.T) {
	b := setUp(t, func(c *Config) { c.TombstoneAge = 1 })
	c := claim("job", gpu("gpu-0", "edit", "act", "keep", "check"))
	b.node.setHook(failing("do keep gpu-0 over"))
	if _, err := b.Prepare(t.Context(), c); err == nil {
		t.Fatal("it succeeded")
	}
	b.node.setHook(nil)
	b = b.reopen(t, func(cfg *Config) { cfg.Planner = plans{} })
	mustUnprepare(t, b, c)
	mustBeEmpty(t, b)
	if err := b.Sweep(t.Context(), noClaims{}); err != nil {
		t.Fatal(err)
	}
	if n := len(b.Records()); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

// R029: an unprepare for a claim that was never prepared succeeds and writes nothing.
func TestR029UnknownClaim(t *testing.T) {
	b := setUp(t)
	b.node.setHook(func(_ context.Context, op string) error {
		if strings.HasPrefix(op, "file ") || strings.HasPrefix(op, "do ") || strings.HasPrefix(op, "undo ") {
			t.Errorf("it did %q", op)
		}
		return nil
	})
	mustUnprepare(t, b, claim("unknown", Plan{}))
}

// A kind of step that this version does not know is not forgotten.
func TestUnknownKindIsKept(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "keep"))
	mustPrepare(t, b, c)
	less := func(cfg *Config) { cfg.Handlers = map[string]Handler{"edit": edit{b.node}} }
	b = b.reopen(t, less)
	wantError(t, b.Unprepare(t.Context(), RefOf(c)), nil, "undo step keep", "nothing in this version")
	if b.state(c.UID) != StateUnpreparing {
		t.Errorf("state %s", b.state(c.UID))
	}
}
