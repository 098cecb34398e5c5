package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nvdra/nvml"
)

func encodeState(t testing.TB, m *Machine) []byte {
	t.Helper()
	data, err := json.Marshal(m.View().State)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// gpuAt is the UUID of a GPU by index.
func gpuAt(t testing.TB, m *Machine, index int) nvml.UUID {
	t.Helper()
	uuid, err := m.FindGPU(fmt.Sprint(index))
	if err != nil {
		t.Fatal(err)
	}
	return uuid
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

func TestScan(t *testing.T) {
	m := load(t, "dgx-a100")
	scan, err := m.Scan(t.Context())
	must(t, err)
	if len(scan.GPUs) != 8 || len(scan.Broken) != 0 || scan.Driver != (nvml.Driver{Version: "580.95.05", CUDAVersion: 13000}) {
		t.Fatalf("%d GPUs, broken %v, driver %v", len(scan.GPUs), scan.Broken, scan.Driver)
	}
	g := scan.GPUs[6]
	var shape []string
	for _, d := range g.MIGDevices {
		shape = append(shape, fmt.Sprintf("%s@%d gi%d ci%d id%d", d.Profile, d.Start, d.GPUInst, d.CompInst, d.ProfileID))
	}
	want := []string{"4g.40gb@0 gi1 ci0 id5", "2g.20gb@4 gi5 ci0 id14", "1g.10gb@6 gi13 ci0 id19"}
	if diff := cmp.Diff(want, shape); diff != "" {
		t.Errorf("MIG devices of GPU 6 (-want +got):\n%s", diff)
	}
	if g.Minor != 4 || g.MIGDevices[0].ParentMin != 4 || g.MemoryBytes != 81920<<20 || g.ComputeMajor != 8 || !g.MIG.Enabled {
		t.Errorf("GPU 6 is %+v", g)
	}
}

// A dumb twin of the rules: a set of taken memory slices.
func TestRandomMIGAgainstEnumerator(t *testing.T) {
	for _, name := range []string{"a30a100", "h100x8"} {
		t.Run(name, func(t *testing.T) {
			m := load(t, name)
			rng := rand.New(rand.NewPCG(1, 2))
			uuid := gpuAt(t, m, 0)
			_, err := m.SetMIGMode(t.Context(), uuid, true)
			must(t, err)
			profiles, err := m.MIGProfiles(t.Context(), uuid)
			must(t, err)
			type device struct {
				p     nvml.MIGProfile
				start int
			}
			exist := map[nvml.UUID]device{}
			seen := map[nvml.UUID]bool{}
			for range 3000 {
				if len(exist) > 0 && rng.IntN(3) == 0 {
					victim := slices.SortedFunc(mapKeys(exist), func(a, b nvml.UUID) int { return strings.Compare(string(a), string(b)) })[rng.IntN(len(exist))]
					must(t, m.DestroyMIG(t.Context(), victim))
					delete(exist, victim)
					continue
				}
				p := profiles[rng.IntN(len(profiles))]
				start := rng.IntN(9)
				fits, me := slices.Contains(p.Placements, start), strings.HasSuffix(p.Name, "+me")
				free := true
				for _, d := range exist {
					for i := range p.Size {
						for j := range d.p.Size {
							free = free && start+i != d.start+j
						}
					}
					// There is one of the engines that +me and the whole GPU have.
					free = free && (!me || d.p.Resources.OFAEngines == 0)
				}
				d, err := m.CreateMIG(t.Context(), nvml.Placement{GPU: uuid, ProfileID: p.ProfileID, Start: start})
				switch {
				case !fits:
					wantErr(t, err, InvalidArgument)
				case !free:
					wantErr(t, err, nvml.ErrInUse)
				default:
					must(t, err)
					if seen[d.UUID] || d.Start != start || d.Size != p.Size || d.Profile != p.Name {
						t.Fatalf("made %+v", d)
					}
					seen[d.UUID] = true
					exist[d.UUID] = device{p, start}
				}
				s := m.View().State
				must(t, s.fits(m.Profile()))
			}
			g, err := m.GPU(t.Context(), uuid)
			must(t, err)
			if len(g.MIGDevices) != len(exist) {
				t.Errorf("%d MIG devices, want %d", len(g.MIGDevices), len(exist))
			}
		})
	}
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestMIGMode(t *testing.T) {
	hopper := load(t, "h100x8")
	uuid := gpuAt(t, hopper, 0)
	mode, err := hopper.SetMIGMode(t.Context(), uuid, true)
	must(t, err)
	if mode != (nvml.MIGMode{Capable: true, Enabled: true, Pending: true}) {
		t.Errorf("Hopper after enabling: %+v", mode)
	}
	d, err := hopper.CreateMIG(t.Context(), nvml.Placement{GPU: uuid, ProfileID: 9, Start: 4})
	must(t, err)
	_, err = hopper.SetMIGMode(t.Context(), uuid, false)
	wantErr(t, err, nvml.ErrInUse)
	must(t, hopper.Busy(d.UUID, Process{PID: 7, Memory: 1 << 20}))
	wantErr(t, hopper.DestroyMIG(t.Context(), d.UUID), nvml.ErrInUse)
	must(t, hopper.Idle(d.UUID, 7))
	must(t, hopper.DestroyMIG(t.Context(), d.UUID))
	wantErr(t, hopper.DestroyMIG(t.Context(), d.UUID), nvml.ErrNotFound)
	_, err = hopper.SetMIGMode(t.Context(), uuid, false)
	must(t, err)

	ampere := load(t, "dgx-a100")
	uuid = gpuAt(t, ampere, 0)
	mode, err = ampere.SetMIGMode(t.Context(), uuid, true)
	must(t, err)
	if mode != (nvml.MIGMode{Capable: true, Enabled: false, Pending: true}) {
		t.Errorf("Ampere after enabling: %+v", mode)
	}
	_, err = ampere.CreateMIG(t.Context(), nvml.Placement{GPU: uuid, ProfileID: 9})
	wantErr(t, err, nvml.ErrUnsupported)
	must(t, ampere.Reset(uuid))
	_, err = ampere.CreateMIG(t.Context(), nvml.Placement{GPU: uuid, ProfileID: 9})
	must(t, err)

	_, err = load(t, "t4x1").SetMIGMode(t.Context(), gpuAt(t, load(t, "t4x1"), 0), true)
	wantErr(t, err, nvml.ErrUnsupported)
}

func TestLostStaysLostUntilReset(t *testing.T) {
	m := load(t, "h100x8")
	uuid := gpuAt(t, m, 3)
	must(t, m.Lose(uuid))
	for range 2 {
		_, err := m.GPU(t.Context(), uuid)
		wantErr(t, err, nvml.ErrLost)
	}
	scan, err := m.Scan(t.Context())
	must(t, err)
	if len(scan.GPUs) != 7 || len(scan.Broken) != 1 || scan.Broken[0].Index != 3 {
		t.Fatalf("%d GPUs, broken %v", len(scan.GPUs), scan.Broken)
	}
	wantErr(t, scan.Broken[0].Err, nvml.ErrLost)
	must(t, m.Reset(uuid))
	_, err = m.GPU(t.Context(), uuid)
	must(t, err)
}

func TestFaults(t *testing.T) {
	m := load(t, "h100x8")
	uuid := gpuAt(t, m, 0)
	must(t, m.Fail("nvmlDeviceGetMemoryInfo_v2", uuid, NotSupported, 0))
	must(t, m.Fail("GetName", gpuAt(t, m, 1), Unknown, 1))
	scan, err := m.Scan(t.Context())
	must(t, err)
	if scan.GPUs[0].MemoryBytes != 0 || len(scan.Broken) != 1 || !errors.Is(scan.Broken[0].Err, Unknown) || scan.Broken[0].UUID != gpuAt(t, m, 1) {
		t.Fatalf("memory %d, broken %v", scan.GPUs[0].MemoryBytes, scan.Broken)
	}
	if scan, err = m.Scan(t.Context()); err != nil || len(scan.Broken) != 0 {
		t.Fatalf("a fault for one time came again: %v %v", scan.Broken, err)
	}
	must(t, m.Clear(""))
	if g, err := m.GPU(t.Context(), uuid); err != nil || g.MemoryBytes == 0 {
		t.Fatalf("after clear: %d, %v", g.MemoryBytes, err)
	}

	// GI ok, CI refused: nothing must be left.
	_, err = m.SetMIGMode(t.Context(), uuid, true)
	must(t, err)
	must(t, m.Fail("CreateComputeInstance", uuid, InsufficientResources, 0))
	_, err = m.CreateMIG(t.Context(), nvml.Placement{GPU: uuid, ProfileID: 19})
	wantErr(t, err, InsufficientResources)
	if n := len(m.View().GPUs()[0].Instances); n != 0 {
		t.Errorf("%d GPU instances are left", n)
	}

	must(t, m.Unload())
	_, err = m.Scan(t.Context())
	wantErr(t, err, nvml.ErrDriver)
	must(t, m.Load("590.44.01"))
	scan, err = m.Scan(t.Context())
	must(t, err)
	if scan.Driver.Version != "590.44.01" || scan.GPUs[0].MIG.Enabled {
		t.Errorf("after the driver changed: %v, MIG %v", scan.Driver, scan.GPUs[0].MIG)
	}
}

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := load(t, "h100x8")
		uuid := gpuAt(t, m, 0)
		_, err := m.SetMIGMode(t.Context(), uuid, true)
		must(t, err)
		create := func() chan error {
			done := make(chan error, 1)
			go func() {
				_, err := m.CreateMIG(context.Background(), nvml.Placement{GPU: uuid, ProfileID: 9})
				done <- err
			}()
			synctest.Wait()
			return done
		}
		instances := func() int { return len(m.View().GPUs()[0].Instances) }
		held := func() int {
			n, err := m.Held("CreateGpuInstance")
			must(t, err)
			return n
		}

		must(t, m.Hold("CreateGpuInstance", "", false))
		done := create()
		if held() != 1 || instances() != 0 {
			t.Fatalf("%d held, %d instances", held(), instances())
		}
		must(t, m.Release("CreateGpuInstance", Unknown))
		wantErr(t, <-done, Unknown)

		must(t, m.Hold("CreateGpuInstance", uuid, true))
		done = create()
		if held() != 1 || instances() != 1 {
			t.Fatalf("hold after: %d held, %d instances", held(), instances())
		}
		must(t, m.Release("", Success))
		must(t, <-done)

		must(t, m.Delay("DeviceGetName", "", time.Minute))
		start := time.Now()
		_, err = m.GPU(t.Context(), uuid)
		must(t, err)
		if d := time.Since(start); d != time.Minute {
			t.Errorf("a call delayed by a minute took %v", d)
		}
	})
}

func TestHotplugAndReboot(t *testing.T) {
	m := load(t, "gb200")
	uuid := gpuAt(t, m, 1)
	must(t, m.Remove(uuid))
	_, err := m.GPU(t.Context(), uuid)
	wantErr(t, err, nvml.ErrNotFound)
	must(t, m.Add(uuid))
	before := m.View().State.BootID
	_, err = m.Control(strings.Fields("reboot minors=3,2,1,0"))
	must(t, err)
	g, err := m.GPU(t.Context(), uuid)
	must(t, err)
	if g.Minor != 2 || m.View().State.BootID == before {
		t.Errorf("minor %d, boot id %s as before", g.Minor, before)
	}
	for _, bad := range []string{"reboot minors=0,0,1,2", "reboot minors=0", "reboot minors=a", "lose 9", "lose", "fail GetMemory UNKNOWN",
		"fail GetMemoryInfo WRONG", "hold Create", "busy 0", "xid 0 x", "explode", "load banana", "fail GetName SUCCESS", "add " + string(uuid)} {
		if out, err := m.Control(strings.Fields(bad)); err == nil {
			t.Errorf("%s was accepted: %v", bad, out)
		}
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := load(t, "dgx-a100")
		call := func(name string, args ...string) ([]string, error) { return m.Call(t.Context(), "", name, args) }
		seq, err := call("EventSetCreate")
		must(t, err)
		uuid := string(gpuAt(t, m, 4))
		_, err = call("EventSetWait", seq[0], "1000", uuid, "8")
		wantErr(t, err, Timeout)
		mig := m.View().GPUs()[4].Instances[2].Compute[0].UUID
		go func() {
			time.Sleep(time.Second)
			must(t, m.RaiseXID(gpuAt(t, m, 0), 13)) // nobody asked for this one
			must(t, m.RaiseXID(mig, 48))
		}()
		got, err := call("EventSetWait", seq[0], "5000", uuid, "8")
		must(t, err)
		if diff := cmp.Diff([]string{uuid, "8", "48", "9", "0"}, got[1:]); diff != "" {
			t.Errorf("event (-want +got):\n%s", diff)
		}
	})
}

// Every verb's example works, so that the documentation does not rot.
func TestVerbExamples(t *testing.T) {
	m := load(t, "dgx-a100")
	mig := string(m.View().GPUs()[4].Instances[0].Compute[0].UUID)
	removed := string(gpuAt(t, m, 3))
	for _, v := range Verbs() {
		line := strings.ReplaceAll(strings.ReplaceAll(v.Example, "MIG-…", mig), "GPU-…", removed)
		if v.Name == "reboot" {
			line = "reboot minors=1,0,3,2,7,6,5,4"
		}
		if !strings.HasPrefix(v.Example, v.Name) {
			t.Errorf("the example of %s is %q", v.Name, v.Example)
		}
		if _, err := m.Control(strings.Fields(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if v.Name == "fail" || v.Name == "delay" {
			must(t, m.Clear(""))
		}
	}
}

// The calls the in-process node makes are NVML calls that can be named in a fault.
func TestNodeUsesCallsOfTheTable(t *testing.T) {
	m := load(t, "dgx-a100")
	_, err := m.Scan(t.Context())
	must(t, err)
	_, err = m.MIGProfiles(t.Context(), gpuAt(t, m, 0))
	must(t, err)
	d, err := m.CreateMIG(t.Context(), nvml.Placement{GPU: gpuAt(t, m, 7), ProfileID: 0})
	must(t, err)
	must(t, m.DestroyMIG(t.Context(), d.UUID))
	_, err = m.SetMIGMode(t.Context(), gpuAt(t, m, 7), false)
	must(t, err)
	for call := range m.counts {
		if _, ok := calls[call]; !ok {
			t.Errorf("%s is in no table", call)
		}
	}
}

func TestSessions(t *testing.T) {
	m := load(t, "t4x1")
	init, err := m.Call(t.Context(), "", "Init", nil)
	must(t, err)
	count := func() error { _, err := m.Call(t.Context(), init[0], "DeviceGetCount", nil); return err }
	must(t, count())
	must(t, m.Unload())
	wantErr(t, count(), DriverNotLoaded)
	must(t, m.Load(""))
	wantErr(t, count(), Uninitialized)
	must(t, m.Load("590.44.01"))
	wantErr(t, count(), LibRMVersionMismatch)
}

func TestStateOutlivesMachine(t *testing.T) {
	m := load(t, "h100x8")
	uuid := gpuAt(t, m, 2)
	_, err := m.SetMIGMode(t.Context(), uuid, true)
	must(t, err)
	d, err := m.CreateMIG(t.Context(), nvml.Placement{GPU: uuid, ProfileID: 14, Start: 2})
	must(t, err)
	s, err := ParseState(m.Profile(), encodeState(t, m))
	must(t, err)
	g, err := Restore(m.Profile(), s).GPU(t.Context(), uuid)
	must(t, err)
	if diff := cmp.Diff([]nvml.MIGDevice{d}, g.MIGDevices); diff != "" {
		t.Errorf("MIG devices after a restart (-want +got):\n%s", diff)
	}
	if _, err := ParseState(load(t, "t4x1").Profile(), encodeState(t, m)); err == nil {
		t.Error("the state of another machine was accepted")
	}
}

func TestManyAtOnce(t *testing.T) {
	m := load(t, "h100x8")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			uuid := gpuAt(t, m, i)
			if _, err := m.SetMIGMode(t.Context(), uuid, true); err != nil {
				t.Error(err)
			}
			for range 20 {
				d, err := m.CreateMIG(t.Context(), nvml.Placement{GPU: uuid, ProfileID: 0})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := m.Scan(t.Context()); err != nil {
					t.Error(err)
				}
				if err := m.DestroyMIG(t.Context(), d.UUID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
