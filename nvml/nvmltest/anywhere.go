package nvmltest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"nvdra/nvml"
)

// RunAnywhere is the part of the contract that holds on every machine and
// changes none: what real hardware can be asked for while others use it.
func RunAnywhere(t *testing.T, node nvml.Node) {
	t.Run("Fields", func(t *testing.T) {
		s := scan(t, node)
		if len(s.GPUs) == 0 {
			t.Errorf("no GPU, broken: %v", s.Broken)
		}
		t.Logf("driver %+v", s.Driver)
		for _, g := range s.GPUs {
			t.Logf("%+v", g)
		}
		checkAnywhere(t, node)
	})
	t.Run("UnknownUUIDs", func(t *testing.T) { checkUnknown(t, node) })
	t.Run("Concurrency", func(t *testing.T) { checkConcurrency(t, node) })
	t.Run("CloseAndUseAgain", func(t *testing.T) { checkReuse(t, node) })
}

var (
	uuidForm    = regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	pciForm     = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	versionForm = regexp.MustCompile(`^[0-9]+(\.[0-9]+)+$`)
	profileForm = regexp.MustCompile(`^[1-8]g\.[0-9]+gb(\+me|\+me\.all|\+gfx|-me)?$`)
)

// checkAnywhere checks what must be true of every machine.
func checkAnywhere(t *testing.T, node nvml.Node) {
	t.Helper()
	s := scan(t, node)
	if !versionForm.MatchString(s.Driver.Version) {
		t.Errorf("driver version %q", s.Driver.Version)
	}
	if !slices.IsSortedFunc(s.GPUs, func(a, b nvml.GPU) int { return strings.Compare(a.PCI, b.PCI) }) {
		t.Error("the GPUs are not in order of PCI address")
	}
	uuids, minors := map[nvml.UUID]bool{}, map[int]bool{}
	for _, g := range s.GPUs {
		if !uuidForm.MatchString(string(g.UUID)) || uuids[g.UUID] {
			t.Errorf("UUID %q is none, or there twice", g.UUID)
		}
		if minors[g.Minor] || g.Minor < 0 {
			t.Errorf("%s: minor %d is none, or there twice", g.UUID, g.Minor)
		}
		if !pciForm.MatchString(g.PCI) {
			t.Errorf("%s: PCI address %q", g.UUID, g.PCI)
		}
		uuids[g.UUID], minors[g.Minor] = true, true
		checkMIG(t, node, g, uuids)
	}
}

// checkMIG checks the MIG devices and profiles of one GPU.
func checkMIG(t *testing.T, node nvml.Node, g nvml.GPU, uuids map[nvml.UUID]bool) {
	t.Helper()
	profiles, err := node.MIGProfiles(call(t), g.UUID)
	if err != nil {
		t.Error(err)
	}
	if g.MIG.Capable != (len(profiles) > 0) {
		t.Errorf("%s: MIG %+v, but %d profiles", g.UUID, g.MIG, len(profiles))
	}
	for i, p := range profiles {
		if !profileForm.MatchString(p.Name) || p.Slices < 1 || p.Size < 1 || len(p.Placements) == 0 || p.Resources.MemoryMiB == 0 || p.Resources.Multiprocessors == 0 {
			t.Errorf("%s: profile %+v", g.UUID, p)
		}
		if i > 0 && profiles[i-1].ProfileID >= p.ProfileID {
			t.Errorf("%s: profiles are not in order of their id", g.UUID)
		}
	}
	if len(g.MIGDevices) > 0 && !g.MIG.Enabled {
		t.Errorf("%s: has MIG devices, but is not in MIG mode", g.UUID)
	}
	end := 0
	for _, d := range g.MIGDevices {
		if !uuidForm.MatchString(string(d.UUID)) || uuids[d.UUID] || d.Parent != g.UUID || d.ParentMin != g.Minor || d.ParentPCI != g.PCI {
			t.Errorf("%s: MIG device %+v", g.UUID, d)
		}
		uuids[d.UUID] = true
		if d.Start < end {
			t.Errorf("%s: MIG device %s starts at %d, before %d", g.UUID, d.UUID, d.Start, end)
		}
		end = d.Start + d.Size
		if !slices.ContainsFunc(profiles, func(p nvml.MIGProfile) bool {
			return p.ProfileID == d.ProfileID && p.Name == d.Profile && p.Size == d.Size && p.Resources == d.Resources && slices.Contains(p.Placements, d.Start)
		}) {
			t.Errorf("%s: MIG device %+v fits none of the profiles", g.UUID, d)
		}
	}
}
