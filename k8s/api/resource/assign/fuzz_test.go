package assign

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"nvdra/k8s/api/resource/v1beta1"
)

// slow answers the same question as Assign, one result at a time and without
// any cleverness: it numbers every configuration with its precedence, throws
// out what does not apply, and looks for the highest number. It returns the
// index of the configuration that a result gets, -1 for the defaults, and
// ok=false where Assign must refuse.
func slow(claim *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult) (winner int, ok bool) {
	kind, err := kindOf(r)
	if err != nil {
		return 0, false
	}
	admin := r.AdminAccess != nil && *r.AdminAccess
	type candidate struct {
		index, precedence int
		mistake           bool
	}
	var candidates []candidate
	for i, a := range claim.Status.Allocation.Devices.Config {
		if a.Opaque.Driver != r.Driver {
			continue
		}
		cfg, err := v1beta1.DecodeConfig(a.Opaque.Parameters.Raw)
		if err != nil {
			return 0, false
		}
		exact, broad := false, len(a.Requests) == 0
		for _, name := range a.Requests {
			exact = exact || name == r.Request
			for cut := range r.Request {
				broad = broad || r.Request[cut] == '/' && name == r.Request[:cut]
			}
		}
		fromClaim := a.Source == resourceapi.AllocationConfigSourceClaim
		if admin {
			gpu, isGPU := cfg.(*v1beta1.GpuConfig)
			mig, isMIG := cfg.(*v1beta1.MigDeviceConfig)
			harmless := isGPU && gpu.Sharing == nil || isMIG && mig.Sharing == nil
			if exact && fromClaim && !harmless {
				return 0, false
			}
			continue
		}
		var forKind DeviceKind
		switch cfg.(type) {
		case *v1beta1.GpuConfig:
			forKind = GPU
		case *v1beta1.MigDeviceConfig:
			forKind = MIG
		case *v1beta1.VfioDeviceConfig:
			forKind = VFIO
		}
		precedence := i
		if fromClaim {
			precedence += 1000
		}
		switch {
		case !exact && !broad:
		case forKind == kind:
			candidates = append(candidates, candidate{i, precedence, false})
		case exact && fromClaim:
			candidates = append(candidates, candidate{i, precedence, true})
		}
	}
	if len(candidates) == 0 {
		return -1, true
	}
	best := slices.MaxFunc(candidates, func(a, b candidate) int { return a.precedence - b.precedence })
	return best.index, !best.mistake
}

// random makes a claim that may or may not be acceptable.
func random(rng *rand.Rand) *resourceapi.ResourceClaim {
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	var results []string
	for range rng.IntN(5) {
		results = append(results, pick("a", "b", "a/x", "a/y", "b/x")+"="+
			pick("gpu-0", "gpu-1", "gpu-0-mig-1g10gb-19-0", "gpu-vfio-0")+pick("", "", "", "!"))
	}
	var configs []resourceapi.DeviceAllocationConfiguration
	for range rng.IntN(5) {
		var requests []string
		for range rng.IntN(3) {
			requests = append(requests, pick("a", "b", "a/x", "a/y", "b/x"))
		}
		make := user
		if rng.IntN(2) == 0 {
			make = class
		}
		configs = append(configs, make(pick(gpuPlain, gpuShort, gpuLong, migMPS, vfioFD), requests...))
		if rng.IntN(5) == 0 {
			configs[len(configs)-1].Opaque.Driver = "nic.example.com"
		}
	}
	c := claimOf(results, configs...)
	for i := range c.Status.Allocation.Devices.Results {
		if rng.IntN(8) == 0 {
			c.Status.Allocation.Devices.Results[i].Driver = "nic.example.com"
		}
	}
	return c
}

func TestAssignAgainstSlowTwin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	accepted, refused := 0, 0
	for range 20_000 {
		claim := random(rng)
		groups, err := Assign(claim, driver, kindOf)
		var want []string // per result of the driver
		ok := true
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver != driver {
				continue
			}
			winner, fine := slow(claim, r)
			ok = ok && fine
			origin := "the defaults"
			switch {
			case r.AdminAccess != nil:
				origin = "admin access"
			case winner >= 0 && claim.Status.Allocation.Devices.Config[winner].Source == resourceapi.AllocationConfigSourceClaim:
				origin = fmt.Sprintf("config %d (from claim)", winner)
			case winner >= 0:
				origin = fmt.Sprintf("config %d (from class)", winner)
			}
			want = append(want, r.Request+"="+r.Device+" "+origin)
		}
		if ok != (err == nil) {
			t.Fatalf("Assign says %v, the slow twin says acceptable=%v: %s", err, ok, asJSON(t, claim))
		}
		if err != nil {
			refused++
			continue
		}
		accepted++
		var got []string
		for _, g := range groups {
			for _, r := range g.Results {
				got = append(got, r.Request+"="+r.Device+" "+g.Origin)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-slow twin +Assign)\n%s\n%s", d, asJSON(t, claim))
		}
	}
	if accepted < 2000 || refused < 2000 {
		t.Errorf("%d accepted and %d refused: the random claims are too one-sided to mean anything", accepted, refused)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func FuzzAssign(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 30 {
		raw, err := json.Marshal(random(rng))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"status":{"allocation":{}}}`))
	f.Add([]byte(`{"status":{"allocation":{"devices":{"config":[{}],"results":[{}]}}}}`))
	f.Add([]byte(`{"status":{"allocation":{"devices":{"config":[{"source":"FromClaim","opaque":{"driver":"gpu.nvidia.com","parameters":null}}]}}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var claim resourceapi.ResourceClaim
		if json.Unmarshal(raw, &claim) != nil {
			return
		}
		before := claim.DeepCopy()
		groups, err := Assign(&claim, driver, kindOf)
		again, errAgain := Assign(&claim, driver, kindOf)
		if fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Fatalf("two answers: %v and %v", err, errAgain)
		}
		if d := cmp.Diff(groups, again); d != "" {
			t.Fatalf("two answers: %s", d)
		}
		if d := cmp.Diff(before, &claim); d != "" {
			t.Fatalf("the claim was changed: %s", d)
		}
		if err != nil {
			return
		}
		ours, grouped := 0, 0
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver == driver {
				ours++
			}
		}
		for _, g := range groups {
			if len(g.Results) == 0 {
				t.Fatal("a group without results")
			}
			grouped += len(g.Results)
			for _, r := range g.Results {
				if isAdmin := r.AdminAccess != nil && *r.AdminAccess; isAdmin != g.Admin {
					t.Fatalf("result %s: admin access %v in a group with admin access %v", r.Device, isAdmin, g.Admin)
				}
				if g.Admin {
					continue
				}
				if kind, name := fits(g.Config); kind != r.Kind {
					t.Fatalf("%s for a %s", name, r.Kind)
				}
				if err := g.Config.Validate(); err != nil {
					t.Fatalf("an invalid configuration was given out: %v", err)
				}
			}
		}
		if ours != grouped {
			t.Fatalf("%d results of this driver, %d in groups", ours, grouped)
		}
	})
}
