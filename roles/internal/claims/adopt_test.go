package claims

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// foreign is a claim that another program prepared, whose name it has forgotten.
func foreign(uid types.UID, device string, steps ...string) Adopted {
	p := gpu(device, steps...)
	return Adopted{
		Ref: Ref{UID: uid},
		Devices: []Prepared{{
			Device: p.Devices[0], CDIDevices: []string{"k8s.gpu.example.com/claim=" + string(uid) + "-" + device},
		}},
		Steps: p.Steps,
	}
}

// writtenByAnother writes the CDI spec of the other program, which differs from
// what we would write.
func writtenByAnother(t *testing.T, b *bench, uid types.UID, device string) string {
	t.Helper()
	edits := cdispec.ContainerEdits{Env: []string{"WRITTEN_BY=another"}}
	if err := b.specs.Write(string(uid), []cdispec.Device{{Name: string(uid) + "-" + device, ContainerEdits: edits}}, cdispec.ContainerEdits{}); err != nil {
		t.Fatal(err)
	}
	return b.specText(uid)
}

func mustAdopt(t *testing.T, b *bench, a Adopted, want bool) {
	t.Helper()
	got, err := b.Adopt(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("adopted: %v, want %v", got, want)
	}
}

// neverAsked is an API server that must not be asked.
type neverAsked struct{ t *testing.T }

func (n neverAsked) Get(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	n.t.Errorf("the API server was asked for claim %q in namespace %q", name, namespace)
	return nil, errors.New("there is no such name")
}

// A claim that another program prepared keeps its CDI spec as it is, is guarded
// like one of ours, is given to kubelet again, and ends like one of ours.
func TestAdopt(t *testing.T) {
	b := setUp(t)
	theirs := writtenByAnother(t, b, "uid-old", "gpu-0")
	mustAdopt(t, b, foreign("uid-old", "gpu-0", "check", "edit"), true)
	for range 2 { // a restart changes nothing
		b = b.reopen(t)
		if got := b.specText("uid-old"); got != theirs {
			t.Errorf("the spec of the other program was changed:\n%s", cmp.Diff(theirs, got))
		}
	}
	if err := b.Sweep(t.Context(), neverAsked{t}); err != nil {
		t.Error(err)
	}
	_, err := b.Prepare(t.Context(), claim("new", gpu("gpu-0", "edit")))
	wantError(t, err, ErrConflict, "claim uid-old has gpu-0 and is prepared")

	// Kubelet knows the name.
	old := claim("old", gpu("gpu-0", "edit"))
	if diff := cmp.Diff(foreign("uid-old", "gpu-0").Devices, mustPrepare(t, b, old)); diff != "" {
		t.Error(diff)
	}
	if got := b.specText("uid-old"); got != theirs {
		t.Error("the spec was changed by a repeated prepare")
	}
	mustUnprepare(t, b, old)
	mustBeEmpty(t, b)
	mustPrepare(t, b, claim("new", gpu("gpu-0", "edit")))
	if r := b.reported(); len(r) > 0 {
		t.Errorf("reports %v", r)
	}
}

// A spec that is gone, damaged or lacks a device is written by our own steps,
// and so is one that has to say something else by now.
func TestAdoptedSpecIsRepaired(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *bench){
		"gone":    func(*testing.T, *bench) {},
		"another": func(t *testing.T, b *bench) { writtenByAnother(t, b, "uid-old", "gpu-9") },
		"damaged": func(t *testing.T, b *bench) {
			writtenByAnother(t, b, "uid-old", "gpu-0")
			path, err := b.specs.Path("uid-old")
			if err == nil {
				err = os.Truncate(path, 20)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setUp(t)
			spoil(t, b)
			mustAdopt(t, b, foreign("uid-old", "gpu-0", "edit"), true)
			b = b.reopen(t)
			if got := b.specText("uid-old"); !strings.Contains(got, "DEVICE=gpu-0") || !strings.Contains(got, "uid-old-gpu-0") {
				t.Errorf("spec:\n%s", got)
			}
		})
	}
	t.Run("outdated", func(t *testing.T) {
		b := setUp(t)
		writtenByAnother(t, b, "uid-old", "gpu-0")
		mustAdopt(t, b, foreign("uid-old", "gpu-0", "edit"), true)
		b.node.setNumber("gpu-0", "5")
		b = b.reopen(t)
		if got := b.specText("uid-old"); !strings.Contains(got, "/dev/null5") {
			t.Errorf("spec:\n%s", got)
		}
	})
}

// The device is gone: the plugin starts, and the claim can be unprepared.
func TestAdoptWithoutTheDevice(t *testing.T) {
	b := setUp(t)
	b.node.setNumber("gpu-0", "")
	mustAdopt(t, b, foreign("uid-old", "gpu-0", "edit"), true)
	b = b.reopen(t)
	if r := b.reported(); len(r) != 1 || r[0].Reason != ReasonSpec || !strings.Contains(r[0].Message, "no such device") {
		t.Errorf("reports %v", r)
	}
	_, err := b.Prepare(t.Context(), claim("old", gpu("gpu-0", "edit")))
	wantError(t, err, ErrPermanent, "no such device")
	mustUnprepare(t, b, claim("old", Plan{}))
	mustBeEmpty(t, b)
}

// What the other program changed on the node is undone when the claim ends, if
// there is a handler for it.
func TestAdoptedStepsAreUndone(t *testing.T) {
	b := setUp(t)
	a := foreign("uid-old", "gpu-0", "check", "act=1")
	if err := os.WriteFile(b.node.path(a.Steps[1]), a.Steps[1].Want, 0o644); err != nil {
		t.Fatal(err)
	}
	mustAdopt(t, b, a, true)
	if a.Steps[1].Begun {
		t.Error("Adopt changed the steps of its caller")
	}
	b = b.reopen(t)
	mustUnprepare(t, b, claim("old", Plan{}))
	if diff := cmp.Diff([]string{"undo act gpu-0"}, b.node.calls()); diff != "" {
		t.Error(diff)
	}
	mustBeEmpty(t, b)
}

// A claim that is known is left alone, so adopting is done once however often
// it is tried.
func TestAdoptTwice(t *testing.T) {
	b := setUp(t)
	mustPrepare(t, b, claim("a", gpu("gpu-0", "edit")))
	before := b.record("uid-a")
	mustAdopt(t, b, foreign("uid-a", "gpu-7", "edit"), false)
	if diff := cmp.Diff(before, b.record("uid-a")); diff != "" {
		t.Error(diff)
	}
	mustAdopt(t, b, foreign("uid-b", "gpu-1", "edit"), true)
	mustAdopt(t, b, foreign("uid-b", "gpu-1", "edit"), false)

	// A claim that was unprepared before it was ready is known, too.
	b.node.setHook(func(_ context.Context, op string) error {
		if op == "do act gpu-2" {
			return errors.New("not now")
		}
		return nil
	})
	c := claim("c", gpu("gpu-2", "act=1"))
	if _, err := b.Prepare(t.Context(), c); err == nil {
		t.Fatal("prepared")
	}
	mustUnprepare(t, b, c)
	mustAdopt(t, b, foreign("uid-c", "gpu-2", "edit"), false)
	if s := b.state("uid-c"); s != StateAborted {
		t.Errorf("state %s", s)
	}
}

// Our own record of the claim was damaged: what the other program remembers is
// better than nothing.
func TestAdoptInPlaceOfADamagedRecord(t *testing.T) {
	b := setUp(t)
	mustPrepare(t, b, claim("a", gpu("gpu-0", "edit")))
	if err := os.WriteFile(b.dir.path("uid-a", recordSuffix), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustAdopt(t, b, foreign("uid-a", "gpu-0", "edit"), true)
	if s := b.reopen(t).state("uid-a"); s != StatePrepared {
		t.Errorf("state %s", s)
	}
}

// A claim of an earlier boot is forgotten at the next Restore.
func TestAdoptFromAnEarlierBoot(t *testing.T) {
	b := setUp(t)
	writtenByAnother(t, b, "uid-old", "gpu-0")
	a := foreign("uid-old", "gpu-0", "act=1")
	a.BootID = "boot-0"
	mustAdopt(t, b, a, true)
	mustBeEmpty(t, b.reopen(t))
}

func TestAdoptRefuses(t *testing.T) {
	b := setUp(t)
	for name, test := range map[string]struct {
		change func(*Adopted)
		says   string
	}{
		"path":      {func(a *Adopted) { a.UID = "../x" }, "want letters"},
		"no UID":    {func(a *Adopted) { a.UID = "" }, "want letters"},
		"half name": {func(a *Adopted) { a.Name = "job" }, "is not the name of a claim"},
		"step":      {func(a *Adopted) { a.Steps[0].Kind = "mps" }, `step "mps": nothing here handles`},
		"pool":      {func(a *Adopted) { a.Devices[0].Pool = "" }, "it has no pool"},
		"device":    {func(a *Adopted) { a.Devices[0].Name = "a/b" }, "can be in a device name"},
		"JSON":      {func(a *Adopted) { a.Steps[0].Want = []byte("{") }, "step 1"},
	} {
		a := foreign("uid-old", "gpu-0", "edit")
		test.change(&a)
		_, err := b.Adopt(t.Context(), a)
		t.Run(name, func(t *testing.T) { wantError(t, err, ErrPermanent, "adopt claim ", test.says) })
	}
	mustBeEmpty(t, b)
}

// Interrupted at any write, adopting leaves nothing behind or is complete, and
// can be repeated.
func TestAdoptInterrupted(t *testing.T) {
	for _, at := range []string{"file stage uid-old", "file publish uid-old", "file publish uid-old over", "file sync"} {
		b := setUp(t)
		theirs := writtenByAnother(t, b, "uid-old", "gpu-0")
		b.node.setHook(func(_ context.Context, op string) error {
			if op == at {
				return errors.New("the disk is full")
			}
			return nil
		})
		if _, err := b.Adopt(t.Context(), foreign("uid-old", "gpu-0", "edit")); err == nil {
			t.Errorf("%s: no error", at)
		}
		b.node.setHook(nil)
		if _, err := b.Adopt(t.Context(), foreign("uid-old", "gpu-0", "edit")); err != nil {
			t.Errorf("%s: again: %v", at, err)
		}
		b = b.reopen(t)
		if b.state("uid-old") != StatePrepared || b.specText("uid-old") != theirs {
			t.Errorf("%s: state %s, spec\n%s", at, b.state("uid-old"), b.specText("uid-old"))
		}
	}
}

// Nobody can tell what a claim was. Its spec stays as long as its pod may run.
func TestSpare(t *testing.T) {
	b := setUp(t)
	theirs := writtenByAnother(t, b, "uid-old", "gpu-0")
	writtenByAnother(t, b, "uid-orphan", "gpu-1")
	mustPrepare(t, b, claim("a", gpu("gpu-2", "edit")))
	for _, uid := range []types.UID{"uid-old", "uid-old", "uid-a", "uid-gone"} {
		if err := b.Spare(uid); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, b.Spare("../x"), ErrPermanent)
	if names, err := os.ReadDir(b.dir.dir + "/" + damagedDir); err != nil || len(names) != 2 {
		t.Errorf("notes %v, %v: want one of uid-old and one of uid-gone", names, err)
	}
	b = b.reopen(t)
	if err := b.removeOrphans(); err != nil {
		t.Fatal(err)
	}
	if got := b.specText("uid-old"); got != theirs {
		t.Errorf("spec:\n%s", got)
	}
	if b.specText("uid-orphan") != "" {
		t.Error("the spec of a claim that nobody knows is left")
	}
	mustUnprepare(t, b, claim("old", Plan{}))
	if b.specText("uid-old") != "" {
		t.Error("the spec is left after unprepare")
	}
	writtenByAnother(t, b, "uid-gone", "gpu-0")
	if b = b.reopen(t, bootID("boot-2")); b.specText("uid-gone") != "" {
		t.Error("the spec is left after a reboot")
	}
}

func TestRefWithoutName(t *testing.T) {
	if got := (Ref{UID: "uid-a"}).String(); got != "uid-a" {
		t.Errorf("%q", got)
	}
}
