package assign

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const driver = "gpu.nvidia.com"

// The configurations of these tests, by what they ask for.
const (
	gpuPlain  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`
	gpuShort  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Short"}}}`
	gpuLong   = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`
	gpuMPS    = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`
	migMPS    = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`
	vfioFD    = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig","iommu":{"backendPolicy":"PreferIommuFD"}}`
	gpuTypo   = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","timeSliceInterval":"Long"}`
	gpuWrong  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS","timeSlicingConfig":{}}}`
	wrongKind = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"DpuConfig"}`
)

// from builds one configuration of an allocation.
func from(source resourceapi.AllocationConfigSource, params string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests, DeviceConfiguration: opaque(driver, params)}
}

func class(params string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return from(resourceapi.AllocationConfigSourceClass, params, requests...)
}

func user(params string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return from(resourceapi.AllocationConfigSourceClaim, params, requests...)
}

func opaque(driver, params string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(params)},
	}}
}

// result builds one result: `gpu=gpu-0`, or with admin access `gpu=gpu-0!`.
func result(text string) resourceapi.DeviceRequestAllocationResult {
	text, admin := strings.CutSuffix(text, "!")
	request, device, _ := strings.Cut(text, "=")
	r := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: "node-1", Device: device}
	if admin {
		r.AdminAccess = &admin
	}
	return r
}

func claimOf(results []string, configs ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "train", Name: "job-7"}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Config = configs
	for _, r := range results {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, result(r))
	}
	return c
}

// kindOf goes by the name of the device.
func kindOf(r resourceapi.DeviceRequestAllocationResult) (DeviceKind, error) {
	switch {
	case strings.HasPrefix(r.Device, "gpu-vfio-"):
		return VFIO, nil
	case strings.Contains(r.Device, "-mig-"):
		return MIG, nil
	case strings.HasPrefix(r.Device, "gpu-"):
		return GPU, nil
	}
	return 0, errors.New("no such device on this node")
}

// show writes groups as tests want them: `config 1 (from claim): gpu-0 gpu-1`.
func show(groups []Group) []string {
	var lines []string
	for _, g := range groups {
		line := g.Origin + ":"
		for _, r := range g.Results {
			line += " " + r.Device
		}
		if g.Admin != (g.Config == nil) {
			line += fmt.Sprintf(" (admin %v, but configuration %v)", g.Admin, g.Config)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestAssign(t *testing.T) {
	const mig0, mig1, vfio0 = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-1", "gpu-vfio-0"
	for name, c := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  []string
	}{
		"nothing allocated from this driver": {claimOf(nil), nil},
		"no configuration: one group per kind, in order of the results": {
			claimOf([]string{"a=" + mig0, "b=gpu-1", "a=" + mig1, "c=" + vfio0}),
			[]string{"the defaults: " + mig0 + " " + mig1, "the defaults: gpu-1", "the defaults: " + vfio0},
		},
		"claim before class, whatever the order": {
			claimOf([]string{"a=gpu-0"}, user(gpuShort), class(gpuLong)),
			[]string{"config 0 (from claim): gpu-0"},
		},
		"the later of two of a claim": {
			claimOf([]string{"a=gpu-0"}, class(gpuMPS), user(gpuShort), user(gpuLong)),
			[]string{"config 2 (from claim): gpu-0"},
		},
		"the later of two of a class": {
			claimOf([]string{"a=gpu-0"}, class(gpuShort), class(gpuLong)),
			[]string{"config 1 (from class): gpu-0"},
		},
		"by request, and the same for two requests": {
			claimOf([]string{"a=gpu-0", "b=gpu-1", "c=gpu-2", "d=gpu-3"}, user(gpuShort, "a", "c"), user(gpuLong, "b")),
			[]string{"config 0 (from claim): gpu-0 gpu-2", "config 1 (from claim): gpu-1", "the defaults: gpu-3"},
		},
		"equal configurations written twice stay two": {
			claimOf([]string{"a=gpu-0", "b=gpu-1"}, user(gpuShort, "a"), user(gpuShort, "b")),
			[]string{"config 0 (from claim): gpu-0", "config 1 (from claim): gpu-1"},
		},
		"for all requests, where it fits": {
			claimOf([]string{"a=gpu-0", "b=" + mig0, "c=" + vfio0}, user(gpuLong), user(migMPS)),
			[]string{"config 0 (from claim): gpu-0", "config 1 (from claim): " + mig0, "the defaults: " + vfio0},
		},
		"a class does not know what will be allocated": {
			claimOf([]string{"a=" + mig0, "b=gpu-1"}, class(migMPS, "a", "b"), class(gpuLong, "a", "b")),
			[]string{"config 0 (from class): " + mig0, "config 1 (from class): gpu-1"},
		},
		"W10: the main request includes its alternatives": {
			claimOf([]string{"gpu/big=gpu-0"}, user(gpuMPS, "gpu")),
			[]string{"config 0 (from claim): gpu-0"},
		},
		"W10: an alternative is itself only": {
			claimOf([]string{"gpu/big=gpu-0"}, user(gpuMPS, "gpu/small"), user(gpuLong, "gpu/big"), user(gpuShort, "big")),
			[]string{"config 1 (from claim): gpu-0"},
		},
		"the main request, where it fits": {
			claimOf([]string{"gpu/small=" + mig0}, user(migMPS, "gpu"), user(gpuLong, "gpu")),
			[]string{"config 0 (from claim): " + mig0},
		},
		"a request that begins like another": {
			claimOf([]string{"gpu=gpu-0", "gpu2=gpu-1"}, user(gpuLong, "gpu")),
			[]string{"config 0 (from claim): gpu-0", "the defaults: gpu-1"},
		},
		"W33: admin access is never configured": {
			claimOf([]string{"watch=gpu-0!", "a=gpu-1", "watch=" + mig0 + "!"}, user(gpuLong), class(gpuMPS, "watch")),
			[]string{"admin access: gpu-0 " + mig0, "config 0 (from claim): gpu-1"},
		},
		"a configuration that changes nothing may name admin access": {
			claimOf([]string{"watch=gpu-0!"}, user(gpuPlain, "watch")),
			[]string{"admin access: gpu-0"},
		},
	} {
		groups, err := Assign(c.claim, driver, kindOf)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(c.want, show(groups)); d != "" {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
	}
}

func TestAssignRefuses(t *testing.T) {
	withSource := user(gpuLong)
	withSource.Source = "FromNode"
	notOpaque := user(gpuLong)
	notOpaque.Opaque = nil
	for name, c := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"no claim":      {nil, `there is no claim`},
		"not allocated": {&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "train", Name: "job-7"}}, `claim train/job-7: it is not allocated`},
		"R142: misspelt field": {
			claimOf([]string{"gpu=gpu-0"}, class(gpuLong), user(gpuPlain), user(gpuTypo, "gpu")),
			`claim train/job-7: config 2 (from claim) for request "gpu": decode GpuConfig: strict decoding error: unknown field "timeSliceInterval"`,
		},
		"a mistake in a configuration that nothing gets": {
			claimOf([]string{"gpu=gpu-0"}, class(gpuTypo), user(gpuLong)),
			`config 0 (from class) for all requests: decode GpuConfig:`,
		},
		"unknown kind": {claimOf([]string{"gpu=gpu-0"}, user(wrongKind, "gpu", "b")), `config 0 (from claim) for requests "gpu", "b": decode configuration: kind "DpuConfig"`},
		"W29: settings of the other strategy": {
			claimOf([]string{"gpu=gpu-0"}, user(gpuWrong)),
			`config 0 (from claim) for all requests: invalid GpuConfig: sharing.timeSlicingConfig: belongs to strategy "TimeSlicing"`,
		},
		"no parameters": {claimOf([]string{"gpu=gpu-0"}, user("")), `config 0 (from claim) for all requests: decode configuration: it is not an object`},
		"not opaque":    {claimOf([]string{"gpu=gpu-0"}, notOpaque), `config 0 for all requests: it is not opaque`},
		"source":        {claimOf([]string{"gpu=gpu-0"}, withSource), `config 0 for all requests: its source is "FromNode", but must be FromClass or FromClaim`},
		"R075: wrong kind for a request that is named": {
			claimOf([]string{"gpu=gpu-0-mig-1g10gb-19-0"}, user(migMPS), user(gpuLong, "gpu")),
			`config 1 (from claim) for request "gpu": GpuConfig does not fit "gpu-0-mig-1g10gb-19-0", which is a MIG device: use a configuration for this kind`,
		},
		"wrong kind for an alternative that is named": {
			claimOf([]string{"gpu/big=gpu-0"}, user(vfioFD, "gpu/big")),
			`config 0 (from claim) for request "gpu/big": VfioDeviceConfig does not fit "gpu-0", which is a GPU`,
		},
		"W33: sharing for a request with admin access": {
			claimOf([]string{"watch=gpu-0!"}, user(gpuMPS, "watch")),
			`config 0 (from claim) for request "watch": GpuConfig cannot apply to request "watch", which has admin access`,
		},
		"kindOf refuses": {claimOf([]string{"gpu=tpu-0"}), `claim train/job-7: device "tpu-0" of pool "node-1" for request "gpu": no such device on this node`},
	} {
		groups, err := Assign(c.claim, driver, kindOf)
		if err == nil {
			t.Errorf("%s: accepted as %q, want %q", name, show(groups), c.want)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, err, c.want)
		}
	}
}

// What the caller's kindOf answers can be told apart: it may be a failure that
// passes, while everything else here is for the user to correct.
func TestAssignKeepsTheCause(t *testing.T) {
	gone := errors.New("gone")
	_, err := Assign(claimOf([]string{"gpu=gpu-0"}), driver, func(resourceapi.DeviceRequestAllocationResult) (DeviceKind, error) { return 0, gone })
	if !errors.Is(err, gone) {
		t.Errorf("got %v, want %v inside", err, gone)
	}
	_, err = Assign(claimOf([]string{"gpu=gpu-0"}), driver, func(resourceapi.DeviceRequestAllocationResult) (DeviceKind, error) { return 0, nil })
	if err == nil || !strings.Contains(err.Error(), "unknown kind") {
		t.Errorf("got %v for a device without a kind", err)
	}
}

// A claim may have devices and configurations of several drivers.
func TestAssignOtherDrivers(t *testing.T) {
	c := claimOf([]string{"gpu=gpu-0", "nic=eth1"}, user(gpuLong), user(`{"whatever":true}`))
	c.Status.Allocation.Devices.Results[1].Driver = "nic.example.com"
	c.Status.Allocation.Devices.Config[1].Opaque.Driver = "nic.example.com"
	groups, err := Assign(c, driver, kindOf)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"config 0 (from claim): gpu-0"}, show(groups)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// The scheduler empties a list of requests that covers the whole claim. That
// must not turn a mistake into a configuration that is silently left out.
func TestAssignRequestsEmptiedByScheduler(t *testing.T) {
	const mig0 = "gpu-0-mig-1g10gb-19-0"
	c := claimOf([]string{"gpu=" + mig0}, user(gpuLong))
	spaced := strings.ReplaceAll(gpuLong, ":", " : ") // written anew on the way
	c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{Requests: []string{"gpu"}, DeviceConfiguration: opaque(driver, gpuLong)}}
	c.Spec.Devices.Config[0].Opaque.Parameters.Raw = []byte(strings.ReplaceAll(spaced, " : //", "://"))
	_, err := Assign(c, driver, kindOf)
	if want := `config 0 (from claim) for all requests: GpuConfig does not fit "` + mig0 + `"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}

	// The author really meant all requests, or a list of alternatives.
	for _, requests := range [][]string{nil, {"other"}} {
		c.Spec.Devices.Config[0].Requests = requests
		groups, err := Assign(c, driver, kindOf)
		if err != nil {
			t.Errorf("requests %q: %v", requests, err)
		}
		if d := cmp.Diff([]string{"the defaults: " + mig0}, show(groups)); d != "" {
			t.Errorf("requests %q: (-want +got)\n%s", requests, d)
		}
	}
	c.Spec.Devices.Config[0].Requests = []string{"gpu"}
	c.Status.Allocation.Devices.Results[0].Request = "gpu/small"
	if _, err := Assign(c, driver, kindOf); err != nil {
		t.Errorf("an alternative: %v", err)
	}
}

// Claims as a real scheduler allocated them.
func TestAssignRealAllocations(t *testing.T) {
	read := func(name string) *resourceapi.ResourceClaim {
		text, err := os.ReadFile("testdata/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var claim resourceapi.ResourceClaim
		if err := yaml.UnmarshalStrict(text, &claim); err != nil {
			t.Fatal(err)
		}
		return &claim
	}
	groups, err := Assign(read("alternatives"), driver, kindOf)
	if err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]string{"the defaults: gpu-5", "config 1 (from class): gpu-6-mig-1g10gb-19-1"}, show(groups)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	groups, err = Assign(read("one-request-wrong-kind"), driver, kindOf)
	want := `claim default/one-request-wrong-kind: config 0 (from claim) for all requests: GpuConfig does not fit "gpu-6-mig-1g10gb-19-0"`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, %v, want %q", show(groups), err, want)
	}
}
