package nvmltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"nvdra/nvml"
)

func testLostGPU(t *testing.T, open Open) {
	s := open(t, "h100x8")
	before := healthy(t, s.Node)
	lost := before[2].UUID
	s.do(t, "lose", string(lost))
	now := scan(t, s.Node)
	same(t, "the others", now.GPUs, slices.Delete(slices.Clone(before), 2, 3))
	if len(now.Broken) != 1 || !errors.Is(now.Broken[0].Err, nvml.ErrLost) {
		t.Errorf("broken: %+v, want one that is lost", now.Broken)
	}
	_, err := s.Node.GPU(call(t), lost)
	wantError(t, "GPU", err, nvml.ErrLost, string(lost))
	_, err = s.Node.SetMIGMode(call(t), lost, true)
	wantError(t, "SetMIGMode", err, nvml.ErrLost, string(lost))
	_, err = s.Node.MIGProfiles(call(t), lost)
	wantError(t, "MIGProfiles", err, nvml.ErrLost, string(lost))
	for i, g := range before {
		if i != 2 {
			same(t, "another", read(t, s.Node, g.UUID), g)
		}
	}
	s.do(t, "reset", string(lost))
	same(t, "after the reset", healthy(t, s.Node), before)
}

// One query that must work and does not breaks one GPU only.
func testBrokenGPU(t *testing.T, open Open) {
	s := open(t, "h100x8")
	before := healthy(t, s.Node)
	broken := before[5]
	for _, name := range []string{"DeviceGetMinorNumber", "DeviceGetPciInfo", "DeviceGetUUID"} {
		s.do(t, "fail", name, "UNKNOWN", "gpu="+string(broken.UUID))
		now := scan(t, s.Node)
		same(t, name+": the others", now.GPUs, slices.Delete(slices.Clone(before), 5, 6))
		if len(now.Broken) != 1 || now.Broken[0].Err == nil {
			t.Errorf("%s: broken: %+v, want one", name, now.Broken)
		}
		s.do(t, "clear")
	}
	// What is known of it helps whoever has to find the board.
	s.do(t, "fail", "DeviceGetMinorNumber", "UNKNOWN", "gpu="+string(broken.UUID))
	if now := scan(t, s.Node); len(now.Broken) != 1 || now.Broken[0].UUID != broken.UUID || now.Broken[0].PCI != broken.PCI || now.Broken[0].Index != 5 {
		t.Errorf("broken: %+v, want index 5, %s and %s", now.Broken, broken.UUID, broken.PCI)
	}
}

// Every other query may be refused; then its field is empty.
func testOptionalQueries(t *testing.T, open Open) {
	s := open(t, "gb200")
	before := healthy(t, s.Node)
	if len(before) < 2 || before[0].AddressingMode == "" {
		t.Fatalf("gb200 is %+v", before)
	}
	for name, empty := range map[string]func(*nvml.GPU){
		"DeviceGetName":                  func(g *nvml.GPU) { g.Product = "" },
		"DeviceGetBrand":                 func(g *nvml.GPU) { g.Brand = "" },
		"DeviceGetArchitecture":          func(g *nvml.GPU) { g.Architecture = "" },
		"DeviceGetCudaComputeCapability": func(g *nvml.GPU) { g.ComputeMajor, g.ComputeMinor = 0, 0 },
		"DeviceGetMemoryInfo":            func(g *nvml.GPU) { g.MemoryBytes = 0 },
		"DeviceGetAddressingMode":        func(g *nvml.GPU) { g.AddressingMode = "" },
		"DeviceGetMigMode":               func(g *nvml.GPU) { g.MIG = nvml.MIGMode{} },
	} {
		for _, answer := range []string{"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"} {
			s.do(t, "fail", name, answer, "gpu="+string(before[0].UUID))
			want := slices.Clone(before)
			empty(&want[0])
			same(t, name+" "+answer, healthy(t, s.Node), want)
		}
		// An answer that is not "not supported" says nothing about the board.
		s.do(t, "fail", name, "UNKNOWN", "gpu="+string(before[0].UUID))
		now := scan(t, s.Node)
		same(t, name+" UNKNOWN: the others", now.GPUs, before[1:])
		if len(now.Broken) != 1 || now.Broken[0].UUID != before[0].UUID {
			t.Errorf("%s UNKNOWN: broken %+v, want %s", name, now.Broken, before[0].UUID)
		}
		s.do(t, "clear")
	}
}

func testDriverGone(t *testing.T, open Open) {
	s := open(t, "h100x8")
	before := healthy(t, s.Node)
	gpu := before[0].UUID
	s.do(t, "unload")
	_, err := s.Node.Scan(call(t))
	wantError(t, "Scan", err, nvml.ErrDriver, "")
	_, err = s.Node.GPU(call(t), gpu)
	wantError(t, "GPU", err, nvml.ErrDriver, "")
	_, err = s.Node.CreateMIG(call(t), nvml.Placement{GPU: gpu, ProfileID: 19})
	wantError(t, "CreateMIG", err, nvml.ErrDriver, "")
	s.do(t, "load")
	same(t, "after it is back", healthy(t, s.Node), before)
}

// A session from before an update must not be seen by anyone.
func testDriverUpdated(t *testing.T, open Open) {
	s, gpu := divided(t, open)
	create(t, s.Node, gpu, 19, 0)
	const version = "590.44.01"
	s.do(t, "load", version)
	now := scan(t, s.Node)
	if now.Driver.Version != version {
		t.Errorf("driver %+v, want %s", now.Driver, version)
	}
	for _, g := range now.GPUs {
		if len(g.MIGDevices) > 0 {
			t.Errorf("%s still has %+v", g.UUID, g.MIGDevices)
		}
	}
	s.do(t, "load") // the same version again
	if _, err := s.Node.GPU(call(t), gpu); err != nil {
		t.Error(err)
	}
}

// A reboot gives out the minor numbers anew; everything else of a GPU stays.
func testMinorsChange(t *testing.T, open Open) {
	s := open(t, "gb200")
	want := healthy(t, s.Node)
	minors := "minors="
	for i := range want {
		want[i].Minor = len(want) - 1 - i
		if i > 0 {
			minors += ","
		}
		minors += fmt.Sprint(want[i].Minor)
	}
	s.do(t, "reboot", minors)
	same(t, "after the reboot", healthy(t, s.Node), want)
}

// A driver that hangs holds nobody longer than the caller wants to wait.
func testHeldCall(t *testing.T, open Open) {
	s := open(t, "h100x8")
	before := healthy(t, s.Node)
	s.do(t, "hold", "DeviceGetName")
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := s.Node.Scan(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("held: %v, want that time ran out", err)
	}
	if took := time.Since(start); took > patience/2 {
		t.Errorf("giving up took %s", took)
	}
	s.do(t, "release")
	same(t, "after the release", healthy(t, s.Node), before)
}

func testHotPlug(t *testing.T, open Open) {
	s := open(t, "h100x8")
	before := healthy(t, s.Node)
	gone := string(before[0].UUID)
	s.do(t, "remove", gone)
	same(t, "the others", healthy(t, s.Node), before[1:])
	_, err := s.Node.GPU(call(t), before[0].UUID)
	wantError(t, "GPU", err, nvml.ErrNotFound, gone)
	s.do(t, "add", gone)
	same(t, "after it is back", healthy(t, s.Node), before)
}
