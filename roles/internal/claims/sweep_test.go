package claims

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// api is an API server with a few claims.
type api struct {
	mu     sync.Mutex
	claims map[string]*resourceapi.ResourceClaim
	err    error
	asked  []string
	then   func() // called before an answer is given
}

func (a *api) Get(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, namespace+"/"+name)
	if a.then != nil {
		a.then()
	}
	if a.err != nil {
		return nil, a.err
	}
	if c := a.claims[name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
}

// times returns how often the server was asked.
func (a *api) times() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

// becomes changes what the server answers.
func (a *api) becomes(claims map[string]*resourceapi.ResourceClaim, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claims, a.err = claims, err
}

// noClaims is an API server without claims.
type noClaims struct{}

func (noClaims) Get(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return (&api{}).Get(ctx, namespace, name)
}

func having(claims ...*resourceapi.ResourceClaim) *api {
	a := &api{claims: map[string]*resourceapi.ResourceClaim{}}
	for _, c := range claims {
		a.claims[c.Name] = c
	}
	return a
}

func mustSweep(t *testing.T, b *bench, reader ClaimReader) {
	t.Helper()
	if err := b.Sweep(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
}

// R009, R011, R017: claims that are gone are unprepared; live ones are not.
func TestR011GoneClaims(t *testing.T) {
	dir := fastDir(t)
	synctest.Test(t, func(t *testing.T) {
		b := open(t, newNode(dir))
		crashed, gone, live := claim("crashed", gpu("gpu-0", "act")), claim("gone", gpu("gpu-1", "act", "edit")), claim("live", gpu("gpu-2", "act"))
		reborn := claim("reborn", gpu("gpu-3", "act"))
		b.node.setHook(failing("do act gpu-0 over"))
		if _, err := b.Prepare(t.Context(), crashed); err == nil {
			t.Fatal("it succeeded")
		}
		b.node.setHook(nil)
		for _, c := range []*resourceapi.ResourceClaim{gone, live, reborn} {
			mustPrepare(t, b, c)
		}
		another := reborn.DeepCopy()
		another.UID = "uid-of-another"
		reader := having(live, another)

		mustSweep(t, b, reader)
		if b.state(crashed.UID) != StateAborted {
			t.Errorf("the crashed claim is %s", b.state(crashed.UID))
		}
		if b.state(gone.UID) != StatePrepared || b.state(reborn.UID) != StatePrepared {
			t.Errorf("kubelet was given no time: %s, %s", b.state(gone.UID), b.state(reborn.UID))
		}
		time.Sleep(b.cfg.Grace)
		time.Sleep(2 * time.Minute)
		mustSweep(t, b, reader)
		for _, c := range []*resourceapi.ResourceClaim{crashed, gone, reborn} {
			if b.record(c.UID) != nil {
				t.Errorf("%s is %s", c.Name, b.state(c.UID))
			}
		}
		if b.state(live.UID) != StatePrepared || len(b.node.things()) != 1 {
			t.Errorf("the live claim is %s, on the node is %q", b.state(live.UID), b.node.things())
		}
		if r := b.reported(); len(r) != 3 || r[0].Reason != ReasonStale {
			t.Errorf("reports: %+v", r)
		}
		mustUnprepare(t, b, live)
		mustBeEmpty(t, b)
		reader.asked = nil
		mustSweep(t, b, reader)
		if len(reader.asked) > 0 {
			t.Errorf("an idle node asked for %q", reader.asked)
		}
	})
}

// Claims that exist but are of no use to anybody here go after the grace period,
// unless somebody turns up.
func TestUnusedClaims(t *testing.T) {
	for name, change := range map[string]func(*resourceapi.ResourceClaim){
		"not allocated": func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil },
		"not reserved":  func(c *resourceapi.ResourceClaim) { c.Status.ReservedFor = nil },
		"elsewhere":     func(c *resourceapi.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Pool = "another-node" },
	} {
		t.Run(name, func(t *testing.T) {
			dir := fastDir(t)
			synctest.Test(t, func(t *testing.T) {
				b := open(t, newNode(dir))
				c := claim("job", gpu("gpu-0", "act"))
				mustPrepare(t, b, c)
				unused := c.DeepCopy()
				change(unused)
				mustSweep(t, b, having(unused))
				time.Sleep(b.Engine.cfg.Grace)
				mustSweep(t, b, having(c)) // somebody turned up
				mustSweep(t, b, having(unused))
				time.Sleep(b.Engine.cfg.Grace - time.Second)
				mustSweep(t, b, having(unused))
				mustPrepare(t, b, c) // so did kubelet
				time.Sleep(time.Second)
				mustSweep(t, b, having(unused))
				if b.state(c.UID) != StatePrepared {
					t.Fatalf("state %s", b.state(c.UID))
				}
				time.Sleep(b.Engine.cfg.Grace)
				mustSweep(t, b, having(unused))
				mustBeEmpty(t, b)
			})
		})
	}
}

// A claim that is asked for while the API server answers is not unprepared.
func TestSweepRacesPrepare(t *testing.T) {
	dir := fastDir(t)
	synctest.Test(t, func(t *testing.T) {
		b := open(t, newNode(dir))
		c := claim("job", gpu("gpu-0", "act"))
		mustPrepare(t, b, c)
		unused := c.DeepCopy()
		unused.Status.ReservedFor = nil
		mustSweep(t, b, having(unused))
		time.Sleep(time.Hour)
		reader := having(unused)
		reader.then = func() { mustPrepare(t, b, c) }
		mustSweep(t, b, reader)
		if b.state(c.UID) != StatePrepared {
			t.Errorf("state %s", b.state(c.UID))
		}
	})
}

// An API server that does not answer changes nothing.
func TestSweepWithoutAnswer(t *testing.T) {
	b := setUp(t, func(c *Config) { c.Grace = 1 })
	mustPrepare(t, b, claim("a", gpu("gpu-0", "act")))
	mustPrepare(t, b, claim("b", gpu("gpu-1", "act")))
	reader := &api{err: errors.New("connection refused")}
	for range 3 {
		wantError(t, b.Sweep(t.Context(), reader), nil, "claim train/a (uid-a): get it: connection refused", "claim train/b")
	}
	if n := len(b.node.things()); n != 2 {
		t.Errorf("%d claims are left", n)
	}
}

// An undo that failed is tried again, and tombstones end.
func TestSweepFinishes(t *testing.T) {
	dir := fastDir(t)
	synctest.Test(t, func(t *testing.T) {
		b := open(t, newNode(dir))
		c := claim("job", gpu("gpu-0", "act", "edit"))
		mustPrepare(t, b, c)
		b.node.setHook(failing("undo act gpu-0"))
		wantError(t, b.Unprepare(t.Context(), RefOf(c)), nil, "busy")
		wantError(t, b.Sweep(t.Context(), noClaims{}), nil, "claim train/job", "busy")
		b.node.setHook(failing("do act gpu-1"))
		if _, err := b.Prepare(t.Context(), claim("failed", gpu("gpu-1", "act"))); err == nil {
			t.Fatal("it succeeded")
		}
		mustUnprepare(t, b, claim("failed", Plan{}))
		mustSweep(t, b, noClaims{})
		mustBeEmpty(t, b)
		if n := len(b.Records()); n != 1 {
			t.Fatalf("%d records, want the tombstone", n)
		}
		time.Sleep(b.Engine.cfg.TombstoneAge)
		mustSweep(t, b, noClaims{})
		if n := len(b.Records()); n != 0 {
			t.Errorf("%d records", n)
		}
	})
}

func TestSweepRepairsSpecs(t *testing.T) {
	b := setUp(t)
	c := claim("job", gpu("gpu-0", "edit"))
	mustPrepare(t, b, c)
	path, err := b.specs.Path(string(c.UID))
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	mustSweep(t, b, having(c))
	if b.specText(c.UID) == "" {
		t.Error("the spec is missing")
	}
}

// Run sweeps at once, then at long intervals, sooner if something is suspicious.
func TestRun(t *testing.T) {
	dir := fastDir(t)
	synctest.Test(t, func(t *testing.T) {
		b := open(t, newNode(dir))
		c := claim("job", gpu("gpu-0", "act"))
		mustPrepare(t, b, c)
		reader := having(c)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var problems []error
		done := make(chan error)
		go func() {
			done <- b.Run(ctx, reader, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, err)
			})
		}()
		time.Sleep(time.Second)
		if n := reader.times(); n != 1 {
			t.Errorf("asked %d times at the start", n)
		}
		time.Sleep(time.Hour)
		if n := reader.times(); n < 6 || n > 7 {
			t.Errorf("asked %d times in an hour", n)
		}
		reader.becomes(reader.claims, errors.New("no route to host"))
		time.Sleep(11 * time.Minute)
		mu.Lock()
		if len(problems) != 1 || !strings.Contains(problems[0].Error(), "no route") {
			t.Errorf("problems: %v", problems)
		}
		mu.Unlock()
		reader.becomes(nil, nil)
		time.Sleep(11*time.Minute + b.Engine.cfg.Grace + time.Minute)
		mustBeEmpty(t, b)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
