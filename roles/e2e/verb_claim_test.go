package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"rsc.io/script"
	"sigs.k8s.io/yaml"
)

// manifestsDir has what users apply.
const manifestsDir = moduleRoot + "/testdata/manifests"

// A request is what a script writes for a request of a claim:
// [NAME:]CLASS[*COUNT][=DEVICE[,DEVICE…]].
type request struct {
	name, class, driver string
	admin               bool
	count               int
	devices             []string // to force on it
}

// classes are the words for the classes that are installed.
var classes = map[string]string{"gpu": "gpu.nvidia.com", "mig": "mig.nvidia.com", "vfio": "vfio.gpu.nvidia.com", "admin": "gpu.nvidia.com"}

func parseRequest(arg string) (request, error) {
	r := request{count: 1, driver: gpuDriver}
	what, devices, forced := strings.Cut(arg, "=")
	if forced {
		r.devices = strings.Split(devices, ",")
		r.count = len(r.devices)
	}
	name, word, named := strings.Cut(what, ":")
	if !named {
		word = name
	}
	word, count, counted := strings.Cut(word, "*")
	if counted {
		n, err := strconv.Atoi(count)
		if err != nil || forced {
			return r, usage("%q: %q is not a number of devices, or the devices are given", arg, count)
		}
		r.count = n
	}
	r.name, r.class, r.admin = word, classes[word], word == "admin"
	if named {
		r.name = name
	}
	if r.class == "" { // of another driver
		if r.driver, r.class = word, "gpu.nvidia.com"; !strings.Contains(word, ".") || !forced || !named {
			return r, usage("%q: the class is none of gpu, mig, vfio and admin, nor is it NAME:DRIVER=DEVICE", arg)
		}
	}
	return r, nil
}

// claimVerb makes claims and allocates them.
func claimVerb(w *world) script.Cmd {
	const example = `A request is [NAME:]CLASS[*COUNT][=DEVICE,…], with the class gpu, mig, vfio or admin, which is a GPU with
	admin access. The scheduler's code chooses the devices, unless they are given. The claim's UID is then $UID_<name>.
	claim job gpu
	claim job small:mig big:gpu*2
	claim job gpu=gpu-3                        # this one, whether or not it is free
	claim job gpu nic:dra.example.com=nic-0    # something of another driver, too
	claim job -config timeslicing.json gpu     # with an opaque configuration
	claim -only job gpu                        # not allocated
	claim job.yaml                             # the ResourceClaims of a file
	claim manifests/one-gpu.yaml               # those that pods of a user's example get`
	return verb("[-only] NAME [-config FILE] REQUEST… | FILE.yaml", "make a claim and allocate it", example, func(s *script.State, args []string) (string, error) {
		only := len(args) > 0 && args[0] == "-only"
		if only {
			args = args[1:]
		}
		if len(args) == 1 && strings.HasSuffix(args[0], ".yaml") {
			return w.claimFile(s, args[0], only)
		}
		if len(args) < 2 {
			return "", usage("claim takes a name and requests, or a file")
		}
		name, args := args[0], args[1:]
		var config []byte
		if args[0] == "-config" && len(args) > 2 {
			var err error
			if config, err = os.ReadFile(s.Path(args[1])); err != nil {
				return "", err
			}
			args = args[2:]
		}
		var requests []request
		for _, a := range args {
			r, err := parseRequest(a)
			if err != nil {
				return "", err
			}
			requests = append(requests, r)
		}
		claim, err := w.createClaim(s, claimFor(name, requests, config))
		if err != nil || only {
			return "", err
		}
		return "", w.give(s.Context(), claim, requests)
	})
}

// give allocates a claim: what its requests say, or what the scheduler would.
func (w *world) give(ctx context.Context, claim *resourceapi.ResourceClaim, requests []request) error {
	var results []resourceapi.DeviceRequestAllocationResult
	var open *resourceapi.ResourceClaim // what is left to the scheduler
	for _, r := range requests {
		if r.devices == nil {
			if open == nil {
				open = claim
			}
			continue
		}
		for _, d := range r.devices {
			result := resourceapi.DeviceRequestAllocationResult{Request: r.name, Driver: r.driver, Pool: w.node.Name, Device: d}
			if r.admin {
				result.AdminAccess = new(true)
			}
			results = append(results, result)
		}
	}
	switch {
	case open == nil:
		return w.force(ctx, claim, results)
	case len(results) > 0:
		return usage("either all requests name their devices or none does")
	}
	return w.allocate(ctx, claim)
}

// claimFor is the claim a user would write.
func claimFor(name string, requests []request, config []byte) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, r := range requests {
		exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: r.class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(r.count)}
		if r.admin {
			exactly.AdminAccess = new(true)
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: r.name, Exactly: exactly})
	}
	if config != nil {
		claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: gpuDriver, Parameters: runtime.RawExtension{Raw: config}},
		}}}
	}
	return claim
}

// createClaim creates a claim in the node's namespace.
func (w *world) createClaim(s *script.State, claim *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	claim.Namespace = w.node.Name
	made, err := w.api.kube.ResourceV1().ResourceClaims(w.node.Name).Create(s.Context(), claim, metav1.CreateOptions{FieldValidation: "Strict"})
	if err != nil {
		return nil, fmt.Errorf("create claim: %w", err)
	}
	w.remember(made.Name, made.UID)
	return made, s.Setenv("UID_"+strings.ReplaceAll(made.Name, "-", "_"), string(made.UID))
}

// claimFile makes the claims of a file: its ResourceClaims, and for its pods
// one for each template they refer to. All are in one namespace here, so their
// names begin with that of the namespace they would be in.
func (w *world) claimFile(s *script.State, file string, only bool) (string, error) {
	path := s.Path(file)
	if below, ok := strings.CutPrefix(file, "manifests/"); ok {
		path = filepath.Join(manifestsDir, below)
	}
	objects, err := readManifest(path)
	if err != nil {
		return "", err
	}
	templates := map[string]resourceapi.ResourceClaimSpec{}
	var claims []*resourceapi.ResourceClaim
	var pods []corev1.Pod
	for _, o := range objects {
		data, err := json.Marshal(o.Object)
		if err != nil {
			return "", err
		}
		switch o.GetKind() {
		case "ResourceClaim":
			c := &resourceapi.ResourceClaim{}
			if err := yaml.UnmarshalStrict(data, c); err != nil {
				return "", err
			}
			c.Name = strings.TrimPrefix(c.Namespace+"-"+c.Name, "-")
			claims = append(claims, c)
		case "ResourceClaimTemplate":
			var t resourceapi.ResourceClaimTemplate
			if err := yaml.UnmarshalStrict(data, &t); err != nil {
				return "", err
			}
			templates[t.Name] = t.Spec.Spec
		case "Pod":
			var p corev1.Pod
			if err := yaml.UnmarshalStrict(data, &p); err != nil {
				return "", err
			}
			pods = append(pods, p)
		}
	}
	for _, p := range pods {
		for _, c := range p.Spec.ResourceClaims {
			if c.ResourceClaimTemplateName != nil {
				claims = append(claims, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: strings.TrimPrefix(p.Namespace+"-"+p.Name+"-"+c.Name, "-")}, Spec: templates[*c.ResourceClaimTemplateName]})
			}
		}
	}
	var names []string
	for _, c := range claims {
		made, err := w.createClaim(s, c)
		if err == nil && !only {
			err = w.allocate(s.Context(), made)
		}
		if err != nil {
			return lines(names), err
		}
		names = append(names, made.Name)
	}
	return lines(names), nil
}

// allocateVerb allocates a claim that exists, perhaps for the second time.
func allocateVerb(w *world) script.Cmd {
	const example = `allocate job            # as the scheduler would
	allocate job gpu=gpu-1  # to this device
	allocate -none job      # take the allocation back`
	return verb("[-none] CLAIM [REQUEST=DEVICE…]", "allocate a claim that exists", example, func(s *script.State, args []string) (string, error) {
		none := len(args) > 0 && args[0] == "-none"
		if none {
			args = args[1:]
		}
		if len(args) == 0 {
			return "", usage("allocate takes a claim")
		}
		claim, err := w.claim(s.Context(), args[0])
		if err != nil {
			return "", err
		}
		if claim.Status.Allocation != nil {
			// An allocation does not change into another one.
			claim.Status.Allocation, claim.Status.ReservedFor = nil, nil
			if claim, err = w.api.kube.ResourceV1().ResourceClaims(w.node.Name).UpdateStatus(s.Context(), claim, metav1.UpdateOptions{}); err != nil {
				return "", fmt.Errorf("take back allocation: %w", err)
			}
		}
		if none {
			return "", nil
		}
		var requests []request
		for _, a := range args[1:] {
			r, err := parseRequest(a)
			if err != nil {
				return "", err
			}
			requests = append(requests, r)
		}
		if requests == nil {
			return "", w.allocate(s.Context(), claim)
		}
		return "", w.give(s.Context(), claim, requests)
	})
}

// deleteVerb deletes claims, or the node's slices.
func deleteVerb(w *world) script.Cmd {
	const example = `delete job     # the plugin is not told
	delete slices  # as kubelet does when a plugin seems to be gone`
	return verb("CLAIM…|slices", "delete claims, or the slices of the node", example, func(s *script.State, args []string) (string, error) {
		if len(args) == 0 {
			return "", usage("delete takes claims or the word slices")
		}
		if args[0] == "slices" {
			return "", w.api.kube.ResourceV1().ResourceSlices().DeleteCollection(s.Context(), metav1.DeleteOptions{},
				metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + w.node.Name})
		}
		for _, name := range args {
			if err := w.api.kube.ResourceV1().ResourceClaims(w.node.Name).Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
				return "", fmt.Errorf("delete claim: %w", err)
			}
		}
		return "", nil
	})
}
