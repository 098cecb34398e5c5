package gpuplugin

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nvdra/featuregates"
	"nvdra/nvml"
	"nvdra/roles/internal/claims"
)

func testInventory() *inventory {
	gpus := manyGPUs(3)
	gpus[2].MIG = nvml.MIGMode{Capable: true, Enabled: true}
	gpus[2].MIGDevices = []nvml.MIGDevice{{UUID: "MIG-a", Parent: gpus[2].UUID, Profile: "1g.10gb", ProfileID: 19, Start: 2, Size: 1}}
	return newInventory(nvml.Scan{GPUs: gpus}, nil, nil)
}

func result(request, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: "gpu.nvidia.com", Pool: "n1", Device: device}
}

func allocated(config string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "train", Name: "job-7", UID: "0b1c"}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	if config != "" {
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: "gpu.nvidia.com", Parameters: runtime.RawExtension{Raw: []byte(config)},
			}},
		}}
	}
	return c
}

func plan(t *testing.T, gates string, c *resourceapi.ResourceClaim) (claims.Plan, error) {
	t.Helper()
	set, err := featuregates.Parse(gates)
	if err != nil {
		t.Fatal(err)
	}
	inv := testInventory()
	return planner{pool: "n1", gates: set, inventory: func() *inventory { return inv }}.Plan(c)
}

func stepNames(p claims.Plan) []string {
	var all []string
	for _, s := range p.Steps {
		all = append(all, s.Kind+" "+s.Key+" "+s.Device)
	}
	return all
}

func TestPlan(t *testing.T) {
	other := result("nic", "nic-0")
	other.Driver = "dra.example.com" // report R014
	p, err := plan(t, "", allocated("", result("gpu", "gpu-1"), other, result("part/small", "gpu-2-mig-1g10gb-19-2")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"driver driver ", "gpu GPU-1 gpu-1", "migdevice MIG-a gpu-2-mig-1g10gb-19-2"}, stepNames(p)); diff != "" {
		t.Error(diff)
	}
	want := []claims.Device{
		{Requests: []string{"gpu"}, Pool: "n1", Name: "gpu-1", Type: "gpu", Occupies: []string{"0000:01:00.0"}},
		{Requests: []string{"part/small"}, Pool: "n1", Name: "gpu-2-mig-1g10gb-19-2", Type: "mig", Occupies: []string{"0000:02:00.0/slice-2"}},
	}
	if diff := cmp.Diff(want, p.Devices); diff != "" {
		t.Error(diff)
	}
	p, err = plan(t, "", allocated("", other))
	if err != nil || len(p.Devices)+len(p.Steps) != 0 {
		t.Errorf("a claim with nothing of ours: %v, %v; want an empty plan", p, err)
	}
}

func TestPlanAdminAccess(t *testing.T) {
	r := result("watch", "gpu-0")
	yes := true
	r.AdminAccess = &yes
	p, err := plan(t, "", allocated("", r))
	if err != nil || len(p.Devices) != 1 || !p.Devices[0].Admin {
		t.Errorf("%v, %v; want one device with admin access", p, err)
	}
}

const (
	timeSlicing = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}}`
	typo        = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSliceInterval":"Long"}}`
	plainMIG    = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig"}`
)

// Everything that is refused says what is wrong and what to do.
func TestPlanRefuses(t *testing.T) {
	elsewhere := result("gpu", "gpu-0")
	elsewhere.Pool = "n2"
	unallocated := allocated("")
	unallocated.Status.Allocation = nil
	for name, c := range map[string]struct {
		gates string
		claim *resourceapi.ResourceClaim
		says  []string
		kind  error
	}{
		"gone":           {"", allocated("", result("gpu", "gpu-9")), []string{"gpu-9", "does not have the device now", "delete the claim"}, claims.ErrRetry},
		"GPU is divided": {"", allocated("", result("gpu", "gpu-2")), []string{"gpu-2"}, claims.ErrRetry},
		"other node":     {"", allocated("", elsewhere), []string{"another node"}, claims.ErrPermanent},
		"no allocation":  {"", unallocated, []string{"train/job-7", "not allocated"}, nil},
		"gate off":       {"", allocated(timeSlicing, result("gpu", "gpu-0")), []string{`"TimeSlicing" is selected as the GPU sharing strategy`, `"TimeSlicingSettings" is off`}, claims.ErrPermanent},
		"not there yet":  {"TimeSlicingSettings=true", allocated(timeSlicing, result("gpu", "gpu-0")), []string{"cannot do it yet"}, claims.ErrPermanent},
		"typo":           {"", allocated(typo, result("gpu", "gpu-0")), []string{"strict decoding error", "timeSliceInterval"}, nil},
	} {
		_, err := plan(t, c.gates, c.claim)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: error %q does not say %q", name, err, s)
			}
		}
		if c.kind != nil && !errors.Is(err, c.kind) {
			t.Errorf("%s: error %q is not %q", name, err, c.kind)
		}
	}
}

func TestPlanConfigWithoutSharingIsFine(t *testing.T) {
	if _, err := plan(t, "", allocated(plainMIG, result("part", "gpu-2-mig-1g10gb-19-2"))); err != nil {
		t.Error(err)
	}
}

// Whatever a claim says, the planner answers with a plan or an error.
func FuzzPlan(f *testing.F) {
	for _, config := range []string{timeSlicing, typo, plainMIG, "", "{", "null"} {
		c := allocated(config, result("a", "gpu-0"), result("b", "gpu-2-mig-1g10gb-19-2"))
		raw, err := json.Marshal(c)
		if err != nil {
			continue // a config that is not JSON cannot be part of a claim
		}
		f.Add(raw)
	}
	inv := testInventory()
	p := planner{pool: "n1", inventory: func() *inventory { return inv }}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var c resourceapi.ResourceClaim
		if json.Unmarshal(raw, &c) != nil {
			return
		}
		plan, err := p.Plan(&c)
		if err != nil {
			return
		}
		for _, s := range plan.Steps {
			if s.Key == "" || !json.Valid(s.Want) {
				t.Fatalf("step %+v", s)
			}
		}
	})
}
