package claims

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// twin is what a claim should be like, kept by the simplest means.
type twin struct {
	claim    *resourceapi.ResourceClaim
	plan     Plan
	prepared bool // the last call was a successful prepare
	touched  bool // a call was made since the last successful unprepare or reboot
}

// model is an engine under random use, and a dumb twin of each claim.
type model struct {
	t     *testing.T
	r     *rand.Rand
	b     *bench
	boot  int
	twins []*twin
	steps []string // what was done, for whoever has to understand a failure
}

var errInjected = errors.New("injected")

// TestModel uses the engine at random, with failing writes and steps, and with
// processes that die anywhere, and compares with the twins after each call.
func TestModel(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for seed := range rounds {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			m := &model{t: t, r: rand.New(rand.NewPCG(uint64(seed), 7)), b: setUp(t), boot: 1}
			m.makeClaims()
			for range 40 {
				m.step()
				if t.Failed() {
					t.Fatalf("after:\n%s", strings.Join(m.steps, "\n"))
				}
			}
			m.end()
			if t.Failed() {
				t.Fatalf("after:\n%s", strings.Join(m.steps, "\n"))
			}
		})
	}
}

// makeClaims makes claims that get into each other's way: whole GPUs, halves of
// them, an onlooker, and steps that some of them share and disagree about.
func (m *model) makeClaims() {
	plans := []Plan{
		gpu("gpu-0", "check", "act=x", "edit"),
		gpu("gpu-0", "edit"),
		gpu("gpu-1", "act:ts=Long", "edit", "keep=x"),
		gpu("gpu-2", "keep=y", "act:ts=Long"),
		gpu("gpu-3", "act:ts=Short", "check"),
		gpu("gpu-0-half", "act=h", "keep=h", "edit"),
		gpu("gpu-0-other", "act=o"),
		gpu("gpu-0", "edit"),
		{Devices: slices.Concat(gpu("gpu-1").Devices, gpu("gpu-3").Devices), Steps: slices.Concat(stepsOf("gpu-1", "edit", "keep=z"), stepsOf("gpu-3", "act=z"))},
	}
	plans[5].Devices[0].Occupies = []string{"gpu-0/1"}
	plans[6].Devices[0].Occupies = []string{"gpu-0/2"}
	plans[7].Devices[0].Admin = true
	for i, p := range plans {
		m.twins = append(m.twins, &twin{claim: claim(strconv.Itoa(i), p), plan: p})
	}
}

func (m *model) step() {
	x := m.twins[m.r.IntN(len(m.twins))]
	switch n := m.r.IntN(20); {
	case n < 8:
		m.prepare(x, m.fault())
	case n < 14:
		m.unprepare(x, m.fault())
	case n < 16:
		m.restart()
	case n < 17:
		m.reboot()
	case n < 18:
		m.steps = append(m.steps, "wipe CDI")
		if err := os.RemoveAll(filepath.Join(m.b.node.root, "cdi")); err != nil {
			m.t.Fatal(err)
		}
		m.restart() // which is to repair it
	default:
		m.replan(x)
	}
	m.check()
}

// fault is nothing, an error, or the death of the process, at some point of the
// next call.
func (m *model) fault() string {
	at := m.r.IntN(18)
	switch m.r.IntN(4) {
	case 0:
		m.inject(at, func() error { return errInjected })
		return fmt.Sprintf(", error at %d", at)
	case 1:
		m.inject(at, func() error { runtime.Goexit(); return nil })
		return fmt.Sprintf(", death at %d", at)
	}
	m.b.node.setHook(nil)
	return ""
}

func (m *model) inject(at int, fault func() error) {
	n := 0
	m.b.node.setHook(func(context.Context, string) error {
		if n++; n == at+1 {
			return fault()
		}
		return nil
	})
}

// call runs f as a process would and reports whether it lived to return.
func (m *model) call(what string, f func() error) (lived bool, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
		lived = true
	}()
	<-done
	m.b.node.setHook(nil)
	m.steps = append(m.steps, fmt.Sprintf("%s: lived %v, %v", what, lived, err))
	if !lived {
		m.restart()
	}
	return lived, err
}

func (m *model) prepare(x *twin, fault string) {
	// Each call has a newer version, as if a pod had reserved the claim.
	version, _ := strconv.Atoi(x.claim.ResourceVersion)
	x.claim.ResourceVersion = strconv.Itoa(version + 1)
	why := m.conflict(x)
	var got []Prepared
	lived, err := m.call("prepare "+x.claim.Name+fault, func() (err error) {
		got, err = m.b.Prepare(context.Background(), x.claim)
		return err
	})
	x.touched = true
	switch {
	case !lived:
	case err == nil:
		x.prepared = true
		if len(got) != len(x.plan.Devices) {
			m.t.Errorf("claim %s got %d devices", x.claim.Name, len(got))
		}
	case errors.Is(err, errInjected):
	case why != "":
		if !errors.Is(err, ErrConflict) {
			m.t.Errorf("claim %s conflicts with %s, but the error is %v", x.claim.Name, why, err)
		}
	default:
		m.t.Errorf("claim %s was refused for nothing: %v", x.claim.Name, err)
	}
}

// conflict names a claim that may stand in the way of another: one that has had
// a call since it was last known to be absent.
func (m *model) conflict(x *twin) string {
	for _, o := range m.twins {
		if o == x || !o.touched {
			continue
		}
		for _, a := range x.plan.Devices {
			for _, b := range o.plan.Devices {
				if !a.Admin && !b.Admin && strings.HasPrefix(a.Occupies[0]+"/", b.Occupies[0]+"/") ||
					!a.Admin && !b.Admin && strings.HasPrefix(b.Occupies[0]+"/", a.Occupies[0]+"/") {
					return o.claim.Name
				}
			}
		}
		for _, a := range x.plan.Steps {
			for _, b := range o.plan.Steps {
				if a.Kind == b.Kind && a.Key == b.Key && string(a.Want) != string(b.Want) && (a.Kind == "act" || a.Kind == "keep") {
					return o.claim.Name
				}
			}
		}
	}
	return ""
}

func (m *model) unprepare(x *twin, fault string) {
	lived, err := m.call("unprepare "+x.claim.Name+fault, func() error {
		return m.b.Unprepare(context.Background(), RefOf(x.claim))
	})
	switch {
	case !lived:
		x.prepared = false
	case err == nil:
		x.prepared, x.touched = false, false
	case errors.Is(err, errInjected):
		x.prepared = false
	default:
		m.t.Errorf("unprepare %s: %v", x.claim.Name, err)
	}
}

// replan gives a claim that is not prepared another plan, as if it had been
// allocated anew.
func (m *model) replan(x *twin) {
	o := m.twins[m.r.IntN(len(m.twins))]
	if x.prepared || x.touched {
		return
	}
	m.steps = append(m.steps, fmt.Sprintf("claim %s gets the plan of %s", x.claim.Name, o.claim.Name))
	version := x.claim.ResourceVersion
	x.claim, x.plan = claim(x.claim.Name, o.plan), o.plan
	x.claim.ResourceVersion = version
}

func (m *model) restart() {
	m.steps = append(m.steps, "restart")
	m.b = m.b.reopen(m.t, bootID(fmt.Sprint("boot-", m.boot)))
}

func (m *model) reboot() {
	m.boot++
	m.b.node.reboot()
	m.restart()
	for _, x := range m.twins {
		x.prepared, x.touched = false, false
	}
}

// check compares records, node and specs with each other and with the twins.
func (m *model) check() {
	records := map[string]Record{}
	begun := map[string]bool{}
	for _, r := range m.b.Records() {
		records[r.Name] = r
		for _, s := range r.Steps {
			begun[s.Kind+" "+s.Key] = begun[s.Kind+" "+s.Key] || s.Begun
		}
	}
	things := m.b.node.things()
	for _, thing := range things {
		if !begun[thing] {
			m.t.Errorf("%s is on the node, and no record knows", thing)
		}
	}
	for _, x := range m.twins {
		r, recorded := records[x.claim.Name]
		if x.prepared && r.State != StatePrepared {
			m.t.Errorf("claim %s was prepared and is %q", x.claim.Name, r.State)
		}
		if !x.touched && recorded && r.State.live() {
			m.t.Errorf("claim %s was unprepared and is %q", x.claim.Name, r.State)
		}
		if !x.touched && m.b.specText(x.claim.UID) != "" {
			m.t.Errorf("claim %s was unprepared and has a spec", x.claim.Name)
		}
		if r.State != StatePrepared {
			continue
		}
		// After a failed unprepare the spec may be gone already; a prepare call
		// would write it again.
		if x.prepared && !m.b.specFits(&r) {
			m.t.Errorf("claim %s is prepared without a spec", x.claim.Name)
		}
		for _, s := range r.Steps {
			if s.Begun && !slices.Contains(things, s.Kind+" "+s.Key) {
				m.t.Errorf("claim %s is prepared without %s %s", x.claim.Name, s.Kind, s.Key)
			}
		}
	}
	m.checkPairs(records)
}

// checkPairs makes sure that no two prepared claims have the same.
func (m *model) checkPairs(records map[string]Record) {
	parts := map[string]string{}
	for name, r := range records {
		if r.State != StatePrepared {
			continue
		}
		for _, d := range r.Devices {
			for _, key := range d.Occupies {
				if d.Admin {
					continue
				}
				atoms := []string{key}
				if key == "gpu-0" {
					atoms = []string{"gpu-0/1", "gpu-0/2"}
				}
				for _, atom := range atoms {
					if other, taken := parts[atom]; taken && other != name {
						m.t.Errorf("claims %s and %s both have %s", name, other, atom)
					}
					parts[atom] = name
				}
			}
		}
	}
}

// end unprepares everything; nothing may be left.
func (m *model) end() {
	for _, x := range m.twins {
		m.b.node.setHook(nil)
		m.unprepare(x, "")
	}
	m.check()
	mustBeEmpty(m.t, m.b)
	m.b = m.b.reopen(m.t, func(c *Config) { c.TombstoneAge = time.Nanosecond }, bootID(fmt.Sprint("boot-", m.boot)))
	mustSweep(m.t, m.b, noClaims{})
	if n := len(m.b.Records()); n > 0 {
		m.t.Errorf("%d records are left", n)
	}
}
