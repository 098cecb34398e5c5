package claims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPrepareAndUnprepare(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "act=a", "edit", "keep=b"))
	got := mustPrepare(t, b, c)
	want := []Prepared{{
		Device:     gpu("gpu-0").Devices[0],
		CDIDevices: []string{"k8s.gpu.example.com/claim=uid-job-gpu-0"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("prepared (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"act gpu-0", "keep gpu-0"}, b.node.things()); diff != "" {
		t.Errorf("on the node (-want +got):\n%s", diff)
	}
	if spec := b.specText(c.UID); !strings.Contains(spec, "DEVICE=gpu-0") {
		t.Errorf("CDI spec: %q", spec)
	}
	b.node.calls()
	mustUnprepare(t, b, c)
	if diff := cmp.Diff([]string{"undo keep gpu-0", "undo act gpu-0"}, b.node.calls()); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
	mustBeEmpty(t, b)
	if b.record(c.UID) != nil {
		t.Error("an ordinary unprepare left a tombstone")
	}
}

// R012: any number of prepares and unprepares, with restarts between them.
func TestR012Idempotence(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "act=a", "edit"))
	first := mustPrepare(t, b, c)
	for range 2 {
		b = b.reopen(t)
		b.node.calls()
		if diff := cmp.Diff(first, mustPrepare(t, b, c)); diff != "" {
			t.Errorf("another answer (-first +now):\n%s", diff)
		}
		if calls := b.node.calls(); len(calls) > 0 {
			t.Errorf("a repeated prepare did something: %q", calls)
		}
	}
	for range 2 {
		mustUnprepare(t, b, c)
		b = b.reopen(t)
	}
	mustBeEmpty(t, b)
}

// R013: a device is never given to two claims, nor a part and its whole.
func TestR013DoubleAllocation(t *testing.T) {
	b := setUp(t)
	a := claim("a", gpu("gpu-0", "act"))
	mustPrepare(t, b, a)
	part := gpu("gpu-0-mig-1", "edit")
	part.Devices[0].Occupies = []string{"gpu-0/1"}
	for _, second := range []*resourceapi.ResourceClaim{claim("b", gpu("gpu-0", "act")), claim("c", part), claim("d", gpu("gpu-0", "edit"))} {
		_, err := b.Prepare(t.Context(), second)
		wantError(t, err, ErrConflict, "prepare claim train/"+second.Name, "train/a (uid-a)", second.Status.Allocation.Devices.Results[0].Device)
		if b.state(second.UID) != StateAbsent || b.specText(second.UID) != "" {
			t.Errorf("the refused claim %s left something", second.Name)
		}
	}
	admin := gpu("gpu-0", "edit")
	admin.Devices[0].Admin = true
	mustPrepare(t, b, claim("admin", admin))
	mustUnprepare(t, b, a)
	mustPrepare(t, b, claim("b", gpu("gpu-0", "act")))
}

// R013, second half: two processes prepare two claims for one device at once.
func TestOneOfTwoProcessesGetsTheDevice(t *testing.T) {
	for _, steps := range [][]string{{"edit"}, {"act", "edit"}} {
		one := setUp(t)
		two := open(t, one.node)
		for range 30 {
			a, b := claim("a", gpu("gpu-0", steps...)), claim("b", gpu("gpu-0", steps...))
			var errs [2]error
			var group sync.WaitGroup
			group.Go(func() { _, errs[0] = one.Prepare(t.Context(), a) })
			group.Go(func() { _, errs[1] = two.Prepare(t.Context(), b) })
			group.Wait()
			won := 0
			for _, err := range errs {
				if err == nil {
					won++
				} else {
					wantError(t, err, ErrConflict)
				}
			}
			if won != 1 {
				t.Fatalf("%d claims got the device: %v", won, errs)
			}
			mustUnprepare(t, two, a)
			mustUnprepare(t, one, b)
			mustBeEmpty(t, one)
		}
	}
}

// R014: a claim with nothing for this driver.
func TestR014NothingForUs(t *testing.T) {
	b := setUp(t)
	c := claim("other", Plan{})
	if got := mustPrepare(t, b, c); len(got) != 0 {
		t.Errorf("prepared %v", got)
	}
	if b.record(c.UID) != nil {
		t.Error("it left a record")
	}
	mustUnprepare(t, b, c)
}

// R005: device numbers are looked up when the spec is written, not remembered.
func TestR005DeviceNumbers(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "edit"))
	b.node.setNumber("gpu-0", "0")
	mustPrepare(t, b, c)
	b.node.setNumber("gpu-0", "3")
	b = b.reopen(t)
	if spec := b.specText(c.UID); !strings.Contains(spec, "/dev/null3") || strings.Contains(spec, "/dev/null0") {
		t.Errorf("after a restart the spec is %q", spec)
	}
	b.node.setNumber("gpu-0", "4")
	mustPrepare(t, b, c)
	if spec := b.specText(c.UID); !strings.Contains(spec, "/dev/null4") {
		t.Errorf("after another prepare the spec is %q", spec)
	}
}

// R006: a GPU that is gone takes only its own claim with it.
func TestR006DeviceGone(t *testing.T) {
	b := setUp(t)
	good, bad := claim("good", gpu("gpu-0", "edit")), claim("bad", gpu("gpu-1", "act", "edit"))
	mustPrepare(t, b, good)
	mustPrepare(t, b, bad)
	b.node.setNumber("gpu-1", "")
	b = b.reopen(t)
	if r := b.reported(); len(r) != 1 || r[0].Ref != RefOf(bad) || r[0].Reason != ReasonSpec {
		t.Errorf("reports: %+v", r)
	}
	if b.specText(bad.UID) != "" {
		t.Error("the spec of a device that is gone is still there")
	}
	if b.specText(good.UID) == "" {
		t.Error("the spec of the other claim is gone")
	}
	_, err := b.Prepare(t.Context(), bad)
	wantError(t, err, ErrPermanent, "gpu-1: no such device")
	mustUnprepare(t, b, bad)
	mustUnprepare(t, b, good)
	mustBeEmpty(t, b)
}

// A spec that somebody removed or damaged is there again after a prepare.
func TestPrepareRepairsSpec(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "edit"))
	mustPrepare(t, b, c)
	want := b.specText(c.UID)
	path, err := b.specs.Path(string(c.UID))
	if err != nil {
		t.Fatal(err)
	}
	for _, damage := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.WriteFile(path, []byte("cdiVersion: "), 0o644) },
		func() error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		mustPrepare(t, b, c)
		if got := b.specText(c.UID); got != want {
			t.Errorf("spec is %q, was %q", got, want)
		}
	}
}

func TestFailedStepIsResumed(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "check", "act=1", "keep=2", "act:second=3", "edit"))
	b.node.setHook(func(_ context.Context, op string) error {
		if op == "do keep gpu-0" {
			return errors.New("insufficient resources")
		}
		return nil
	})
	_, err := b.Prepare(t.Context(), c)
	wantError(t, err, nil, "prepare claim train/job: step keep: insufficient resources")
	if s := b.state(c.UID); s != StatePreparing {
		t.Errorf("state %s", s)
	}
	b = b.reopen(t) // a claim that was being prepared is not lost
	b.node.setHook(nil)
	b.node.calls()
	mustPrepare(t, b, c)
	if diff := cmp.Diff([]string{"do keep gpu-0", "do act second", "do edit gpu-0"}, b.node.calls()); diff != "" {
		t.Errorf("resumed with (-want +got):\n%s", diff)
	}
	mustUnprepare(t, b, c)
	mustBeEmpty(t, b)
}

// Only what has begun is undone, in reverse, and what another claim holds stays.
func TestUnprepareAfterFailure(t *testing.T) {
	b := setUp(t)
	other := claim("other", gpu("gpu-1", "keep:shared=s"))
	mustPrepare(t, b, other)
	c := claim("job", gpu("gpu-0", "act:a", "keep:shared=s", "act:c", "act:d"))
	b.node.setHook(func(_ context.Context, op string) error {
		if op == "do act c" {
			return errors.New("no")
		}
		return nil
	})
	if _, err := b.Prepare(t.Context(), c); err == nil {
		t.Fatal("it succeeded")
	}
	b.node.calls()
	mustUnprepare(t, b, c)
	if diff := cmp.Diff([]string{"undo act c", "undo act a"}, b.node.calls()); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
	mustUnprepare(t, b, other)
	mustBeEmpty(t, b)
}

func TestAnotherPlanUndoesTheFirst(t *testing.T) {
	b := setUp(t)
	b.node.setHook(func(_ context.Context, op string) error {
		if op == "do keep gpu-0" {
			return errors.New("no")
		}
		return nil
	})
	if _, err := b.Prepare(t.Context(), claim("job", gpu("gpu-0", "act=1", "keep=2"))); err == nil {
		t.Fatal("it succeeded")
	}
	b.node.setHook(nil)
	b.node.calls()
	c := claim("job", gpu("gpu-1", "act=1"))
	mustPrepare(t, b, c)
	if diff := cmp.Diff([]string{"undo keep gpu-0", "undo act gpu-0", "do act gpu-1"}, b.node.calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	mustPrepare(t, b, claim("next", gpu("gpu-0")))
	mustUnprepare(t, b, c)
}

func TestSharedStep(t *testing.T) {
	b := setUp(t)
	one, two := claim("one", gpu("gpu-0", "act:ts=Long")), claim("two", gpu("gpu-1", "act:ts=Long"))
	three := claim("three", gpu("gpu-2", "act:ts=Short"))
	mustPrepare(t, b, one)
	mustPrepare(t, b, two)
	_, err := b.Prepare(t.Context(), three)
	wantError(t, err, ErrConflict, "step act ts", "train/one (uid-one)")
	mustUnprepare(t, b, one)
	if diff := cmp.Diff([]string{"act ts"}, b.node.things()); diff != "" {
		t.Errorf("the last holder lost it:\n%s", diff)
	}
	mustUnprepare(t, b, two)
	mustBeEmpty(t, b)
	mustPrepare(t, b, three)
}

// Claims that share a step come and go in two processes. Whoever is prepared
// has it, and in the end nobody does.
func TestSharedStepComesAndGoes(t *testing.T) {
	one := setUp(t)
	both := []*bench{one, open(t, one.node)}
	one.node.setHook(func(context.Context, string) error { runtime.Gosched(); return nil })
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			name := fmt.Sprint("gpu-", i)
			c := claim(name, gpu(name, "act:ts=Long", "edit"))
			for round := range 40 {
				if _, err := both[round%2].Prepare(t.Context(), c); err != nil {
					t.Error(err)
				}
				if !slices.Contains(one.node.things(), "act ts") {
					t.Error("a prepared claim lacks the shared step")
				}
				if err := both[i%2].Unprepare(t.Context(), RefOf(c)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	mustBeEmpty(t, one)
}

// Two shares of one device in one claim have their own CDI devices, share the
// step and give it back once.
func TestTwoSharesInOneClaim(t *testing.T) {
	b := setUp(t)
	p := gpu("gpu-0", "act:ts=Long", "edit")
	p.Steps = append(p.Steps, p.Steps[0])
	p.Devices = append(p.Devices, p.Devices[0])
	for i, id := range []types.UID{"s1", "s2"} {
		p.Devices[i].ShareID = &id
		p.Devices[i].Occupies = []string{"gpu-0/share-" + string(id)}
	}
	c := claim("job", p)
	var ids []string
	for _, d := range mustPrepare(t, b, c) {
		ids = append(ids, d.CDIDevices...)
	}
	if diff := cmp.Diff([]string{"k8s.gpu.example.com/claim=uid-job-gpu-0-s1", "k8s.gpu.example.com/claim=uid-job-gpu-0-s2"}, ids); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	b.node.calls()
	mustUnprepare(t, b, c)
	if diff := cmp.Diff([]string{"undo act ts"}, b.node.calls()); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
}

func TestWholeClaimEdits(t *testing.T) {
	b := setUp(t)
	p := gpu("gpu-0", "edit")
	p.Steps = append(p.Steps, Step{Kind: "edit", Key: "common"})
	c := claim("job", p)
	mustPrepare(t, b, c)
	if spec := b.specText(c.UID); strings.Count(spec, "DEVICE=common") != 1 {
		t.Errorf("spec: %s", spec)
	}
	// A device with no edits of its own still brings those of the claim.
	bare := claim("bare", Plan{Devices: gpu("gpu-1").Devices, Steps: []Step{{Kind: "edit", Key: "common"}}})
	if got := mustPrepare(t, b, bare); len(got[0].CDIDevices) != 1 || !strings.Contains(b.specText(bare.UID), "DEVICE=common") {
		t.Errorf("prepared %v with spec %s", got, b.specText(bare.UID))
	}
	// And one with nothing at all has no CDI device.
	none := claim("none", gpu("gpu-2", "act"))
	if got := mustPrepare(t, b, none); len(got[0].CDIDevices) != 0 || b.specText(none.UID) != "" {
		t.Errorf("prepared %v with spec %s", got, b.specText(none.UID))
	}
	mustPrepare(t, b, none)
}

func TestRefusedPlans(t *testing.T) {
	admin := gpu("gpu-0", "act")
	admin.Devices[0].Admin = true
	stray := gpu("gpu-0", "edit")
	stray.Steps[0].Device = "gpu-1"
	slash := gpu("gpu-0", "edit")
	slash.Devices[0].Occupies = []string{"a//b"}
	pools := gpu("gpu-0", "edit")
	pools.Devices = append(pools.Devices, pools.Devices[0])
	pools.Devices[1].Pool = "elsewhere"
	nopool := gpu("gpu-0")
	nopool.Devices[0].Pool = ""
	for name, test := range map[string]struct {
		plan Plan
		says string
	}{
		"admin access":     {admin, "admin access"},
		"unknown step":     {gpu("gpu-0", "fly"), `"fly"`},
		"step of a device": {stray, `"gpu-1"`},
		"path as a name":   {gpu("../../etc/passwd"), "device name"},
		"bad path":         {slash, "a//b"},
		"no key":           {gpu("gpu-0", "act:"), "does not say what"},
		"two pools":        {pools, "elsewhere"},
		"no pool":          {nopool, "pool"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setUp(t)
			_, err := b.Prepare(t.Context(), claim("job", test.plan))
			wantError(t, err, ErrPermanent, test.says)
			mustBeEmpty(t, b)
		})
	}
	b := setUp(t)
	_, err := b.Prepare(t.Context(), claim("job", gpu("gpu-0", "act:k=1", "act:k=2")))
	wantError(t, err, ErrConflict, "two ways")
}

// No path from a claim reaches the file system.
func TestBadUIDs(t *testing.T) {
	b := setUp(t)
	for _, uid := range []types.UID{"", "../x", "a/b", ".", "..", "-x", ".directory", "a.b", "a\x00b", types.UID(strings.Repeat("x", 101))} {
		c := claim("job", gpu("gpu-0"))
		c.UID = uid
		_, err := b.Prepare(t.Context(), c)
		wantError(t, err, ErrPermanent, "UID")
		wantError(t, b.Unprepare(t.Context(), RefOf(c)), ErrPermanent, "UID")
	}
	if _, err := b.Prepare(t.Context(), nil); !errors.Is(err, ErrPermanent) {
		t.Errorf("no claim: %v", err)
	}
}

// A panic ends the work on one claim, with its text, and leaves things in order.
func TestPanics(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "act", "edit"))
	c.Annotations["panic"] = "planner broke"
	_, err := b.Prepare(t.Context(), c)
	wantError(t, err, ErrPanic, "planner broke", "node_test.go:")
	delete(c.Annotations, "panic")

	for _, op := range []string{"do act gpu-0", "do act gpu-0 over", "edits edit gpu-0 over"} {
		b.node.setHook(func(_ context.Context, at string) error {
			if at == op {
				panic("assignment to entry in nil map")
			}
			return nil
		})
		_, err := b.Prepare(t.Context(), c)
		wantError(t, err, ErrPanic, "nil map", "prepare_test.go:")
		if s := b.state(c.UID); s != StatePreparing {
			t.Errorf("after a panic in %q: state %s", op, s)
		}
	}
	b.node.setHook(nil)
	mustPrepare(t, b, c)
	b.node.setHook(func(_ context.Context, at string) error {
		if at == "undo act gpu-0" {
			panic("undo broke")
		}
		return nil
	})
	wantError(t, b.Unprepare(t.Context(), RefOf(c)), ErrPanic, "undo broke")
	if s := b.state(c.UID); s != StateUnpreparing {
		t.Errorf("state %s", s)
	}
	b.node.setHook(nil)
	mustUnprepare(t, b, c)
	mustBeEmpty(t, b)
}

func TestCancelledPrepare(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "act=1", "keep=2", "edit"))
	ctx, cancel := context.WithCancel(t.Context())
	b.node.setHook(func(_ context.Context, op string) error {
		if op == "do act gpu-0 over" {
			cancel()
		}
		return nil
	})
	_, err := b.Prepare(ctx, c)
	wantError(t, err, context.Canceled)
	b.node.setHook(nil)
	b.node.calls()
	if _, err := b.Prepare(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("prepare with a context that is over: %v", err)
	}
	mustPrepare(t, b, c)
	if diff := cmp.Diff([]string{"do keep gpu-0", "do edit gpu-0"}, b.node.calls()); diff != "" {
		t.Errorf("resumed with (-want +got):\n%s", diff)
	}
}

// R016: a prepare that is under way when the claim is unprepared is ended, and
// one that arrives late is refused; a newer version of the claim is not.
func TestR016LatePrepare(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "act", "check:ready"))
	waiting := make(chan struct{})
	b.node.setHook(func(ctx context.Context, op string) error {
		if op == "do check ready" {
			close(waiting)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	prepared := make(chan error)
	go func() {
		_, err := b.Prepare(t.Context(), c)
		prepared <- err
	}()
	<-waiting
	mustUnprepare(t, b, c)
	wantError(t, <-prepared, errUnprepared, "unprepared meanwhile")
	b.node.setHook(nil)
	if s := b.state(c.UID); s != StateAborted {
		t.Fatalf("state %s", s)
	}
	mustBeEmpty(t, b)
	b = b.reopen(t)
	_, err := b.Prepare(t.Context(), c)
	wantError(t, err, ErrRefused, "unprepared")
	wantError(t, err, ErrRetry)
	mustBeEmpty(t, b)

	mustUnprepare(t, b, c) // kubelet may repeat it
	another := claim("another", gpu("gpu-0", "act"))
	mustPrepare(t, b, another)
	mustUnprepare(t, b, another)

	c.ResourceVersion = "2"
	mustPrepare(t, b, c)
	mustUnprepare(t, b, c)
	if b.record(c.UID) != nil {
		t.Error("the tombstone outlived an ordinary life")
	}
}

func TestNewer(t *testing.T) {
	seen := &Record{ResourceVersion: "99", Generation: 2}
	for _, test := range []struct {
		generation int64
		version    string
		want       bool
	}{
		{2, "99", false}, {2, "98", false}, {2, "100", true}, {3, "1", true}, {1, "99", false},
		{2, "opaque", true}, {2, "18446744073709551616", true},
	} {
		if got := newer(test.generation, test.version, seen); got != test.want {
			t.Errorf("newer(%d, %q) = %v", test.generation, test.version, got)
		}
	}
	if newer(0, "x", &Record{ResourceVersion: "x"}) {
		t.Error("the same opaque version is newer")
	}
}

// R020: claims on different devices never wait for each other. One of eight is
// held in the middle of its step until all others are prepared and unprepared.
func TestR020ClaimsDoNotWaitForEachOther(t *testing.T) {
	b := setUp(t)
	const claims = 8
	held, release := make(chan struct{}), make(chan struct{})
	b.node.setHook(func(_ context.Context, op string) error {
		if op == "do act gpu-0" {
			close(held)
			<-release
		}
		return nil
	})
	name := func(i int) string { return "gpu-" + string(rune('0'+i)) }
	first := make(chan error)
	go func() {
		_, err := b.Prepare(t.Context(), claim("job-0", gpu(name(0), "act", "edit")))
		first <- err
	}()
	<-held
	var others sync.WaitGroup
	for i := 1; i < claims; i++ {
		others.Go(func() {
			c := claim("job-"+name(i), gpu(name(i), "act", "edit"))
			if _, err := b.Prepare(t.Context(), c); err != nil {
				t.Error(err)
			}
			if err := b.Unprepare(t.Context(), RefOf(c)); err != nil {
				t.Error(err)
			}
		})
	}
	others.Wait()
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// R030: prepare and unprepare of one claim at once end in one or the other.
func TestR030PrepareAndUnprepareAtOnce(t *testing.T) {
	b := setUp(t, func(c *Config) { c.TombstoneAge = time.Nanosecond })
	other := open(t, b.node, func(c *Config) { c.TombstoneAge = time.Nanosecond })
	for round := range 200 {
		c := claim("job", gpu("gpu-0", "act", "edit"))
		by := []*bench{b, other}[round%2]
		var group sync.WaitGroup
		group.Go(func() { _, _ = b.Prepare(t.Context(), c) }) // may be ended by the other
		group.Go(func() {
			if err := by.Unprepare(t.Context(), RefOf(c)); err != nil {
				t.Error(err)
			}
		})
		group.Wait()
		switch s := b.state(c.UID); s {
		case StatePrepared:
			if len(b.node.things()) != 1 || b.specText(c.UID) == "" {
				t.Fatalf("prepared with %q and spec %q", b.node.things(), b.specText(c.UID))
			}
			mustUnprepare(t, b, c)
		case StateAbsent, StateAborted:
		default:
			t.Fatalf("round %d ended in %s", round, s)
		}
		mustBeEmpty(t, b)
	}
}

// A full disk, seen from the engine: writes fail, nothing is half there, and
// when there is room again everything works.
func TestDiskErrors(t *testing.T) {
	full := errors.New("no space left on device")
	for _, failing := range []string{"file stage", "file publish", "file sync", "spec write", "spec remove", "file remove"} {
		for _, suffix := range []string{"", " over"} {
			for _, steps := range [][]string{{"edit"}, {"act", "edit", "keep"}} {
				b := setUp(t)
				c := claim("job", gpu("gpu-0", steps...))
				disk := func(_ context.Context, op string) error {
					if strings.HasPrefix(op, failing) && strings.HasSuffix(op, " over") == (suffix != "") {
						return full
					}
					return nil
				}
				b.node.setHook(disk)
				if _, err := b.Prepare(t.Context(), c); err != nil {
					wantError(t, err, full, "prepare claim train/job")
					if b.record(c.UID) == nil && b.specText(c.UID) != "" && failing != "spec write" {
						t.Errorf("%s%s: there is a spec that nobody remembers", failing, suffix)
					}
					if s := b.state(c.UID); s == StatePrepared && failing != "file sync" && suffix == "" {
						t.Errorf("%s: state %s after an error", failing, s)
					}
				}
				b.node.setHook(nil)
				mustPrepare(t, b, c)
				b.node.setHook(disk)
				if err := b.Unprepare(t.Context(), RefOf(c)); err != nil {
					wantError(t, err, full, "unprepare claim train/job")
				}
				b.node.setHook(nil)
				mustUnprepare(t, b, c)
				mustBeEmpty(t, b)
			}
		}
	}
}

// A CDI directory that cannot be written, with and without steps to undo.
func TestUnusableCDIDirectory(t *testing.T) {
	for _, steps := range [][]string{{"edit"}, {"act", "edit"}} {
		b := setUp(t)
		c := claim("job", gpu("gpu-0", steps...))
		dir := filepath.Join(b.node.root, "cdi")
		if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		_, err := b.Prepare(t.Context(), c)
		wantError(t, err, nil, "prepare claim train/job: write CDI spec", dir)
		if s := b.state(c.UID); s == StatePrepared {
			t.Errorf("state %s", s)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		mustPrepare(t, b, c)
		mustUnprepare(t, b, c)
		mustBeEmpty(t, b)
	}
}

// The number of writes is part of the design; README.md explains it.
func TestWrites(t *testing.T) {
	for _, test := range []struct {
		steps              []string
		prepare, unprepare int
	}{
		{nil, 1, 0},
		{[]string{"edit", "check"}, 1, 0},
		{[]string{"edit", "act"}, 2, 2},
		{[]string{"act:1", "edit", "act:2", "check", "act:3"}, 4, 4},
	} {
		b := setUp(t)
		writes := 0
		b.node.setHook(func(_ context.Context, op string) error {
			if strings.HasPrefix(op, "file publish") && !strings.HasSuffix(op, " over") {
				writes++
			}
			return nil
		})
		c := claim("job", gpu("gpu-0", test.steps...))
		mustPrepare(t, b, c)
		if writes != test.prepare {
			t.Errorf("%q: prepare writes the record %d times, want %d", test.steps, writes, test.prepare)
		}
		writes = 0
		mustUnprepare(t, b, c)
		if writes != test.unprepare {
			t.Errorf("%q: unprepare writes the record %d times, want %d", test.steps, writes, test.unprepare)
		}
	}
}

// What Prepare returns belongs to the caller.
func TestAnswersAreCopies(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "edit"))
	first := mustPrepare(t, b, c)
	first[0].CDIDevices[0], first[0].Requests[0] = "x", "x"
	if got := mustPrepare(t, b, c); got[0].CDIDevices[0] == "x" || got[0].Requests[0] == "x" {
		t.Error("an answer changed with an earlier one")
	}
}

func TestObserver(t *testing.T) {
	var mu sync.Mutex
	var last map[string]int
	steps := map[string]int{}
	b := setUp(t, func(c *Config) {
		c.Observer = Observer{
			Step: func(kind, act string, _ time.Duration, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					act += " failed"
				}
				steps[kind+" "+act]++
			},
			Devices: func(n map[string]int) { last = n },
		}
	})
	c := claim("job", gpu("gpu-0", "act", "edit"))
	mustPrepare(t, b, c)
	if diff := cmp.Diff(map[string]int{"gpu": 1}, last); diff != "" {
		t.Errorf("prepared (-want +got):\n%s", diff)
	}
	mustUnprepare(t, b, c)
	if diff := cmp.Diff(map[string]int{"gpu": 0}, last); diff != "" {
		t.Errorf("unprepared (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"act do": 1, "act undo": 1, "edit do": 1}, steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}
