package claims

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func device(name string, admin bool, occupies ...string) Prepared {
	return Prepared{Device: Device{Name: name, Pool: "node", Admin: admin, Occupies: occupies}}
}

func TestOverlap(t *testing.T) {
	const bus = "0000:65:00.0"
	for _, test := range []struct {
		name         string
		mine, theirs Prepared
		state        State
		conflict     bool
	}{
		{"same GPU", device("gpu-0", false, bus), device("gpu-0", false, bus), StatePrepared, true},
		{"whole GPU and its part", device("gpu-0", false, bus), device("mig", false, bus+"/3"), StatePrepared, true},
		{"part and its whole", device("mig", false, bus+"/3"), device("gpu-0", false, bus), StatePrepared, true},
		{"two parts", device("mig-a", false, bus+"/3"), device("mig-b", false, bus+"/4"), StatePrepared, false},
		{"number that begins alike", device("mig-a", false, bus+"/1"), device("mig-b", false, bus+"/10"), StatePrepared, false},
		{"other GPU that begins alike", device("a", false, "0000:65:00.0"), device("b", false, "0000:65:00.01"), StatePrepared, false},
		{"one of several parts", device("mig-a", false, bus+"/1", bus+"/2"), device("mig-b", false, bus+"/2", bus+"/3"), StatePrepared, true},
		{"VFIO and GPU", device("gpu-vfio-0", false, bus), device("gpu-0", false, bus), StatePrepared, true},
		{"being prepared", device("gpu-0", false, bus), device("gpu-0", false, bus), StatePreparing, true},
		{"being unprepared", device("gpu-0", false, bus), device("gpu-0", false, bus), StateUnpreparing, true},
		{"being aborted", device("gpu-0", false, bus), device("gpu-0", false, bus), StateAborting, true},
		{"tombstone", device("gpu-0", false, bus), device("gpu-0", false, bus), StateAborted, false},
		{"mine looks on", device("gpu-0", true, bus), device("gpu-0", false, bus), StatePrepared, false},
		{"the other looks on", device("gpu-0", false, bus), device("gpu-0", true, bus), StatePrepared, false},
		{"nothing physical", device("channel-0", false), device("channel-0", false), StatePrepared, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			mine := &Record{Ref: Ref{"u1", "ns", "mine"}, Devices: []Prepared{test.mine}}
			other := &Record{Ref: Ref{"u2", "ns", "other"}, State: test.state, Devices: []Prepared{test.theirs}}
			err := overlap(mine, []*Record{other})
			if !test.conflict {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			wantError(t, err, ErrConflict, test.mine.Name, "ns/other (u2)")
			if err := overlap(other, []*Record{other}); err != nil {
				t.Errorf("a claim conflicts with itself: %v", err)
			}
		})
	}
}

// within is compared with a slower way to say the same.
func TestWithinAgreesWithTwin(t *testing.T) {
	twin := func(part, whole string) bool {
		p, w := strings.Split(part, "/"), strings.Split(whole, "/")
		return len(p) >= len(w) && fmt.Sprint(p[:len(w)]) == fmt.Sprint(w)
	}
	r := rand.New(rand.NewPCG(1, 2))
	path := func() string {
		parts := make([]string, 1+r.IntN(3))
		for i := range parts {
			parts[i] = []string{"a", "ab", "b"}[r.IntN(3)]
		}
		return strings.Join(parts, "/")
	}
	for range 20000 {
		if a, b := path(), path(); within(a, b) != twin(a, b) {
			t.Fatalf("within(%q, %q) = %v", a, b, within(a, b))
		}
	}
}

func TestDisagreement(t *testing.T) {
	step := func(kind, key, want string, begun bool) Step {
		return Step{Kind: kind, Key: key, Want: []byte(want), Begun: begun}
	}
	mine := step("timeslice", "GPU-0", `"Long"`, false)
	for _, test := range []struct {
		name     string
		state    State
		theirs   Step
		conflict bool
	}{
		{"wants the same", StatePrepared, step("timeslice", "GPU-0", `"Long"`, true), false},
		{"wants another", StatePrepared, step("timeslice", "GPU-0", `"Short"`, true), true},
		{"will want another", StatePreparing, step("timeslice", "GPU-0", `"Short"`, false), true},
		{"still has another", StateUnpreparing, step("timeslice", "GPU-0", `"Short"`, true), true},
		{"had another", StateUnpreparing, step("timeslice", "GPU-0", `"Short"`, false), false},
		{"other key", StatePrepared, step("timeslice", "GPU-1", `"Short"`, true), false},
		{"other kind", StatePrepared, step("mps", "GPU-0", `"Short"`, true), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			other := &Record{Ref: Ref{"u2", "ns", "other"}, State: test.state, Steps: []Step{test.theirs}}
			err := disagreement(&Record{Ref: Ref{UID: types.UID("u1")}, Steps: []Step{mine}}, []*Record{other}, func(string) bool { return false })
			if test.conflict {
				wantError(t, err, ErrConflict, "timeslice", "GPU-0", "ns/other (u2)")
			} else if err != nil {
				t.Error(err)
			}
			if err := disagreement(&Record{Steps: []Step{mine}}, []*Record{other}, func(string) bool { return true }); err != nil {
				t.Errorf("steps that change nothing disagree: %v", err)
			}
		})
	}
}
