package gpuplugin

import (
	"fmt"
	"path/filepath"
	"testing"

	"nvdra/cdi"
	"nvdra/nvml/host"
	"nvdra/nvml/sim/simtest"
	"nvdra/roles/gpuplugin/step"
	"nvdra/roles/internal/claims"
)

// BenchmarkPrepareUnprepare is what one claim on one GPU costs, without kubelet
// and API server: plan, record, driver files, CDI spec.
func BenchmarkPrepareUnprepare(b *testing.B) {
	root := simtest.Play(b, "h100x8")
	box := host.At(root.Dir)
	n, err := loadNames(filepath.Join(b.TempDir(), "names.json"))
	if err != nil {
		b.Fatal(err)
	}
	m := newMachine(root.Machine, box, n)
	if err := m.Scan(b.Context()); err != nil {
		b.Fatal(err)
	}
	files, err := cdi.NewDriver(cdi.Config{ContainerRoot: root.Dir, HostRoot: "/run/nvidia/driver", HookPath: "/plugins/nvidia-cdi-hook", MachineRoot: root.Dir})
	if err != nil {
		b.Fatal(err)
	}
	store, err := cdi.OpenStore(b.TempDir(), cdi.ClaimVendor, cdi.ClaimClass)
	if err != nil {
		b.Fatal(err)
	}
	engine, err := claims.Open(claims.Config{
		Dir: filepath.Join(b.TempDir(), "claims"), BootID: "b",
		Planner:  planner{pool: "n1", inventory: m.Inventory},
		Handlers: step.Handlers(step.Deps{Files: files, Machine: m, Host: box}),
		Specs:    store,
	})
	if err != nil {
		b.Fatal(err)
	}
	e := freshEngine{engine, m}
	for i := 0; b.Loop(); i++ {
		c := allocated("", result("gpu", fmt.Sprintf("gpu-%d", i%8)))
		if _, err := e.Prepare(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		if err := e.Unprepare(b.Context(), claims.RefOf(c)); err != nil {
			b.Fatal(err)
		}
	}
}
