package nvmltest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"nvdra/nvml"
	"nvdra/nvml/sim"
)

// testMachines checks everything that is read of every known machine.
func testMachines(t *testing.T, open Open) {
	for _, name := range sim.ListProfiles(machineDir(t)) {
		t.Run(name, func(t *testing.T) {
			profile := Profile(t, name)
			node := open(t, name).Node
			s := scan(t, node)
			same(t, "driver", s.Driver, wantDriver(t, profile))
			gpus := healthy(t, node)
			same(t, "GPUs", instanceless(t, gpus), wantGPUs(profile))
			for _, g := range gpus {
				same(t, "GPU and Scan", read(t, node, g.UUID), g)
				profiles, err := node.MIGProfiles(call(t), g.UUID)
				if err != nil {
					t.Error(err)
				}
				same(t, "MIG profiles of "+string(g.UUID), profiles, wantProfiles(profile, g.UUID))
			}
			checkAnywhere(t, node)
		})
	}
}

// instanceless is the GPUs without the numbers of their instances, which are
// the driver's choice; but they must be different.
func instanceless(t *testing.T, gpus []nvml.GPU) []nvml.GPU {
	t.Helper()
	var out []nvml.GPU
	for _, g := range gpus {
		g.MIGDevices = slices.Clone(g.MIGDevices)
		seen := map[int]bool{}
		for i := range g.MIGDevices {
			d := &g.MIGDevices[i]
			if seen[d.GPUInst] {
				t.Errorf("two MIG devices of %s have GPU instance %d", g.UUID, d.GPUInst)
			}
			seen[d.GPUInst] = true
			d.GPUInst, d.CompInst = 0, 0
		}
		out = append(out, g)
	}
	return out
}

func wantDriver(t *testing.T, p *sim.Profile) nvml.Driver {
	t.Helper()
	major, minor, _ := strings.Cut(p.CUDA, ".")
	var numbers [2]int
	for i, s := range []string{major, minor} {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		numbers[i] = n
	}
	return nvml.Driver{Version: p.Driver, CUDAVersion: numbers[0]*1000 + numbers[1]*10}
}

// wantGPUs is what a Scan must say of a machine.
func wantGPUs(p *sim.Profile) []nvml.GPU {
	var gpus []nvml.GPU
	for _, b := range p.GPUs {
		product := p.Products[b.Product]
		g := nvml.GPU{
			UUID:           b.UUID,
			Minor:          b.Minor,
			PCI:            b.PCI,
			Product:        product.Name,
			Brand:          product.Brand,
			Architecture:   product.Architecture,
			MemoryBytes:    product.MemoryMiB << 20,
			AddressingMode: product.AddressingMode,
			MIG:            nvml.MIGMode{Capable: product.MIG != nil, Enabled: b.MIG, Pending: b.MIG},
		}
		// A profile whose number does not read like this does not load.
		if _, err := fmt.Sscanf(product.Compute, "%d.%d", &g.ComputeMajor, &g.ComputeMinor); err != nil {
			panic(err)
		}
		for _, d := range b.Devices {
			profile := named(product, d.Profile)
			g.MIGDevices = append(g.MIGDevices, nvml.MIGDevice{
				UUID:      d.UUID,
				Parent:    b.UUID,
				Profile:   d.Profile,
				ProfileID: profile.ProfileID,
				Start:     d.Start,
				Size:      profile.Size,
				Resources: profile.Resources,
				ParentMin: b.Minor,
				ParentPCI: b.PCI,
			})
		}
		slices.SortFunc(g.MIGDevices, func(a, b nvml.MIGDevice) int { return cmp.Compare(a.Start, b.Start) })
		gpus = append(gpus, g)
	}
	slices.SortFunc(gpus, func(a, b nvml.GPU) int { return strings.Compare(a.PCI, b.PCI) })
	return gpus
}

// wantProfiles is what MIGProfiles must say of a GPU.
func wantProfiles(p *sim.Profile, uuid nvml.UUID) []nvml.MIGProfile {
	i := slices.IndexFunc(p.GPUs, func(b sim.Board) bool { return b.UUID == uuid })
	return migProfiles(p.Products[p.GPUs[i].Product])
}

func migProfiles(product sim.Product) []nvml.MIGProfile {
	if product.MIG == nil {
		return nil
	}
	var profiles []nvml.MIGProfile
	for _, p := range product.MIG.Profiles {
		profiles = append(profiles, nvml.MIGProfile{
			Name:      p.Name,
			ProfileID: p.ID,
			Slices:    p.Slices,
			Resources: nvml.MIGResources{
				MemoryMiB:       p.MemoryMiB,
				Multiprocessors: p.SM,
				CopyEngines:     p.CE,
				Decoders:        p.Dec,
				Encoders:        p.Enc,
				JPEGEngines:     p.JPEG,
				OFAEngines:      p.OFA,
			},
			Placements: p.Starts,
			Size:       p.Size,
		})
	}
	slices.SortFunc(profiles, func(a, b nvml.MIGProfile) int { return cmp.Compare(a.ProfileID, b.ProfileID) })
	return profiles
}

// named is the profile with a name.
func named(product sim.Product, name string) nvml.MIGProfile {
	profiles := migProfiles(product)
	i := slices.IndexFunc(profiles, func(p nvml.MIGProfile) bool { return p.Name == name })
	if i < 0 {
		return nvml.MIGProfile{}
	}
	return profiles[i]
}
