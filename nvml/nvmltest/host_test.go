package nvmltest_test

import (
	"errors"
	"io/fs"
	"testing"

	"nvdra/nvml"
	"nvdra/nvml/host"
	"nvdra/nvml/nvmltest"
	"nvdra/nvml/sim/driverroot"
)

// What NVML and the kernel say of one machine must fit together: this is how
// the roles put both into one device.
func TestHostOfSimulatedMachine(t *testing.T) {
	for _, machine := range []string{"h100x8", "gb200", "mixed"} {
		t.Run(machine, func(t *testing.T) {
			root := t.TempDir()
			s, _ := whole(t, machine, root)
			box := host.At(root)
			profile := nvmltest.Profile(t, machine)
			if version, err := box.DriverVersion(); err != nil || version != profile.Driver {
				t.Errorf("driver version %q, %v, want %q", version, err, profile.Driver)
			}
			for _, name := range []string{"nvidia", "nvidia-caps", "nvidia-uvm"} {
				if major, err := box.CharMajor(name); err != nil || major == 0 {
					t.Errorf("major of %s: %d, %v", name, major, err)
				}
			}
			if _, err := box.BootID(); err != nil {
				t.Error(err)
			}
			scan, err := s.Node.Scan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, g := range scan.GPUs {
				want := profile.GPUs[i]
				pcie, err := box.PCIERoot(g.PCI)
				if err != nil || len(want.Parent) < len(pcie) || want.Parent[:len(pcie)] != pcie {
					t.Errorf("%s: PCIe root %q, %v, want the start of %q", g.UUID, pcie, err, want.Parent)
				}
				numa, ok, err := box.NUMANode(g.PCI)
				if err != nil || ok != (want.NUMA >= 0) || ok && numa != want.NUMA {
					t.Errorf("%s: NUMA node %d, %v, %v, want %d", g.UUID, numa, ok, err, want.NUMA)
				}
				for _, d := range g.MIGDevices {
					if _, _, err := box.MIGCapabilities(g.Minor, d.GPUInst, d.CompInst); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// whole is a simulated machine with all that a driver root shows of it. Files
// stand in for device nodes, which not every test may make.
func whole(t *testing.T, machine, root string) (nvmltest.Subject, func(name string, args ...string) ([]string, error)) {
	t.Helper()
	r, err := driverroot.Open(root, "", driverroot.Options{PlainNodes: true})
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, machine, root, r.Show)
}

// A MIG device that comes and goes is seen in the fingerprint, and its nodes
// are known exactly as long as it is there.
func TestHostFollowsMIG(t *testing.T) {
	root := t.TempDir()
	s, _ := whole(t, "h100x8", root)
	box := host.At(root)
	fingerprint := func() string {
		t.Helper()
		f, err := box.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	scan, err := s.Node.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := scan.GPUs[3]
	if _, err := s.Node.SetMIGMode(t.Context(), g.UUID, true); err != nil {
		t.Fatal(err)
	}
	before := fingerprint()
	d, err := s.Node.CreateMIG(t.Context(), nvml.Placement{GPU: g.UUID, ProfileID: 9, Start: 4})
	if err != nil {
		t.Fatal(err)
	}
	during := fingerprint()
	gi, ci, err := box.MIGCapabilities(d.ParentMin, d.GPUInst, d.CompInst)
	if err != nil || gi.Minor == ci.Minor || gi.Mode == 0 || ci.Mode == 0 {
		t.Errorf("capabilities %+v, %+v, %v", gi, ci, err)
	}
	if err := s.Node.DestroyMIG(t.Context(), d.UUID); err != nil {
		t.Fatal(err)
	}
	if before == during || fingerprint() != before {
		t.Errorf("fingerprint before %s, with a MIG device %s, after %s", before, during, fingerprint())
	}
	if _, _, err := box.MIGCapabilities(d.ParentMin, d.GPUInst, d.CompInst); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("capabilities of a device that is gone: %v", err)
	}
	if _, err := s.Control("remove", string(g.UUID)); err != nil {
		t.Fatal(err)
	}
	if fingerprint() == before {
		t.Error("the fingerprint did not change with a GPU")
	}
}
