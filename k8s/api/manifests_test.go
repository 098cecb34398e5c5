// Package api_test checks the manifests that are meant to be applied as they
// are, testdata/manifests: everything in them that can be judged without an API
// server, and that users copy.
package api_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/dynamic-resource-allocation/cel"
)

const manifests = "../../testdata/manifests"

// load decodes all objects of a file; an unknown field or kind is an error.
func load(t *testing.T, path string) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []runtime.Object
	for {
		doc, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		obj, _, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%s, document %d: %v", path, len(objects), err)
		}
		objects = append(objects, obj)
	}
}

// only is the objects of one type.
func only[T runtime.Object](objects []runtime.Object) []T {
	var out []T
	for _, o := range objects {
		if o, ok := o.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

func examples(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(manifests, "*.yaml"))
	if err != nil || len(paths) < 9 {
		t.Fatalf("%d examples in %s (%v)", len(paths), manifests, err)
	}
	return paths
}

// An example is complete: it begins with what it is about, brings its own
// namespace, named like the file, and refers only to what it contains itself or
// what the installation does.
func TestExamplesAreComplete(t *testing.T) {
	classes := make(map[string]bool)
	for _, c := range only[*resourceapi.DeviceClass](load(t, filepath.Join(manifests, "install", "deviceclasses.yaml"))) {
		classes[c.Name] = true
	}
	for _, path := range examples(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(text, []byte("# ")) {
			t.Errorf("%s does not begin with a comment that says what it shows", path)
		}
		objects := load(t, path)
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		namespaces := only[*corev1.Namespace](objects)
		if len(namespaces) != 1 || namespaces[0].Name != name {
			t.Errorf("%s: want one namespace, %s", path, name)
		}
		there := make(map[string]bool) // claims and templates
		var requests []resourceapi.DeviceRequest
		for _, c := range only[*resourceapi.ResourceClaim](objects) {
			there["claim "+c.Namespace+"/"+c.Name] = true
			requests = append(requests, c.Spec.Devices.Requests...)
		}
		for _, c := range only[*resourceapi.ResourceClaimTemplate](objects) {
			there["template "+c.Namespace+"/"+c.Name] = true
			requests = append(requests, c.Spec.Spec.Devices.Requests...)
		}
		for _, r := range requests {
			used := []string{}
			if r.Exactly != nil {
				used = append(used, r.Exactly.DeviceClassName)
			}
			for _, s := range r.FirstAvailable {
				used = append(used, s.DeviceClassName)
			}
			for _, class := range used {
				if !classes[class] {
					t.Errorf("%s: request %s uses DeviceClass %q, which is not installed", path, r.Name, class)
				}
			}
		}
		pods := only[*corev1.Pod](objects)
		if len(pods) == 0 {
			t.Errorf("%s has no pod", path)
		}
		for _, p := range pods {
			if p.Namespace != name {
				t.Errorf("%s: pod %s is in namespace %q", path, p.Name, p.Namespace)
			}
			claims := make(map[string]bool)
			for _, c := range p.Spec.ResourceClaims {
				claims[c.Name] = true
				ref := "nothing"
				if c.ResourceClaimName != nil {
					ref = "claim " + p.Namespace + "/" + *c.ResourceClaimName
				} else if c.ResourceClaimTemplateName != nil {
					ref = "template " + p.Namespace + "/" + *c.ResourceClaimTemplateName
				}
				if !there[ref] {
					t.Errorf("%s: pod %s refers to %s, which is not there", path, p.Name, ref)
				}
			}
			used := make(map[string]bool)
			for _, c := range p.Spec.Containers {
				for _, r := range c.Resources.Claims {
					used[r.Name] = true
				}
			}
			if d := cmp.Diff(claims, used); d != "" {
				t.Errorf("%s: pod %s: claims of the pod and of its containers differ (-pod +containers)\n%s", path, p.Name, d)
			}
		}
	}
}

// The devices that the selectors are tried on.
func devices() map[string]cel.Device {
	gpu := func(product, memory string) cel.Device {
		return cel.Device{
			Driver: "gpu.nvidia.com",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: new("gpu")}, "productName": {StringValue: &product},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(memory)}},
		}
	}
	mig := func(product, profile, memory string) cel.Device {
		d := gpu(product, memory)
		d.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: new("mig")}
		d.Attributes["profile"] = resourceapi.DeviceAttribute{StringValue: &profile}
		return d
	}
	vfio := gpu("GH100", "80Gi")
	vfio.Attributes["type"] = resourceapi.DeviceAttribute{StringValue: new("vfio")}
	vfio.Capacity = nil
	other := gpu("NVIDIA H200", "141Gi")
	other.Driver = "gpu.example.com"
	return map[string]cel.Device{
		"H100":         gpu("NVIDIA H100 80GB HBM3", "81559Mi"),
		"H200":         gpu("NVIDIA H200", "143771Mi"),
		"T4":           gpu("Tesla T4", "15360Mi"),
		"A100":         gpu("NVIDIA A100-SXM4-80GB", "81920Mi"),
		"H100 1g.10gb": mig("NVIDIA H100 80GB HBM3", "1g.10gb", "9728Mi"),
		"H100 1g.20gb": mig("NVIDIA H100 80GB HBM3", "1g.20gb", "19968Mi"),
		"H100 1g+me":   mig("NVIDIA H100 80GB HBM3", "1g.10gb+me", "9728Mi"),
		"H100 3g":      mig("NVIDIA H100 80GB HBM3", "3g.40gb", "40448Mi"),
		"passthrough":  vfio,
		"other driver": other,
	}
}

// matching is the names of the devices for which all selectors hold.
func matching(t *testing.T, where string, selectors ...[]resourceapi.DeviceSelector) []string {
	t.Helper()
	var names []string
	for name, device := range devices() {
		all := true
		for _, s := range slices.Concat(selectors...) {
			compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(s.CEL.Expression, cel.Options{})
			if compiled.Error != nil {
				t.Fatalf("%s: %s: %v", where, s.CEL.Expression, compiled.Error)
			}
			// The class's selectors come first. As in the scheduler, one that
			// does not hold ends the question: a later one may read an
			// attribute that only devices of the class have.
			ok, _, err := compiled.DeviceMatches(context.Background(), device)
			if err != nil && device.Driver == "gpu.nvidia.com" {
				t.Errorf("%s: %s: on %s: %v", where, s.CEL.Expression, name, err)
			}
			if all = ok && err == nil; !all {
				break
			}
		}
		if all {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Each class and each request of an example selects just those devices that it
// says it does, and none of its selectors ends in an error on another kind of
// device.
func TestSelectors(t *testing.T) {
	want := map[string][]string{
		"class gpu.nvidia.com":             {"A100", "H100", "H200", "T4"},
		"class mig.nvidia.com":             {"H100 1g+me", "H100 1g.10gb", "H100 1g.20gb", "H100 3g"},
		"class vfio.gpu.nvidia.com":        {"passthrough"},
		"one-gpu gpu":                      {"A100", "H100", "H200", "T4"},
		"two-pods-two-gpus gpu":            {"A100", "H100", "H200", "T4"},
		"shared-claim gpu":                 {"A100", "H100", "H200", "T4"},
		"two-containers gpu":               {"A100", "H100", "H200", "T4"},
		"admin-access gpus":                {"A100", "H100", "H200", "T4"},
		"select-by-product-and-memory gpu": {"H100", "H200"},
		"mig-device mig":                   {"H100 1g.10gb", "H100 1g.20gb"},
		"first-available device/small":     {"H100 1g+me", "H100 1g.10gb", "H100 1g.20gb"},
		"first-available device/h200":      {"H200"},
		"first-available device/any":       {"A100", "H100", "H200", "T4"},
		"impossible gpu":                   nil,
	}
	got := make(map[string][]string)
	class := make(map[string][]resourceapi.DeviceSelector)
	for _, c := range only[*resourceapi.DeviceClass](load(t, filepath.Join(manifests, "install", "deviceclasses.yaml"))) {
		class[c.Name] = c.Spec.Selectors
		got["class "+c.Name] = matching(t, c.Name, c.Spec.Selectors)
		if c.Spec.ExtendedResourceName != nil {
			t.Errorf("class %s takes over the extended resource %s", c.Name, *c.Spec.ExtendedResourceName)
		}
	}
	for _, path := range examples(t) {
		objects := load(t, path)
		var requests []resourceapi.DeviceRequest
		for _, c := range only[*resourceapi.ResourceClaim](objects) {
			requests = append(requests, c.Spec.Devices.Requests...)
		}
		for _, c := range only[*resourceapi.ResourceClaimTemplate](objects) {
			requests = append(requests, c.Spec.Spec.Devices.Requests...)
		}
		for _, r := range requests {
			name := strings.TrimSuffix(filepath.Base(path), ".yaml") + " " + r.Name
			if r.Exactly != nil {
				got[name] = matching(t, path, class[r.Exactly.DeviceClassName], r.Exactly.Selectors)
			}
			for _, s := range r.FirstAvailable {
				got[name+"/"+s.Name] = matching(t, path, class[s.DeviceClassName], s.Selectors)
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// W27: the policy is about the user that the plugin's pods really are, and the
// names in the installation fit together.
func TestInstallFitsTogether(t *testing.T) {
	objects := load(t, filepath.Join(manifests, "install", "gpu-plugin.yaml"))
	one := func(n int, what string) {
		if n != 1 {
			t.Fatalf("%d %s", n, what)
		}
	}
	daemonSets := only[*appsv1.DaemonSet](objects)
	one(len(daemonSets), "DaemonSets")
	ds := daemonSets[0]
	accounts := only[*corev1.ServiceAccount](objects)
	one(len(accounts), "ServiceAccounts")
	if account := accounts[0]; account.Name != ds.Spec.Template.Spec.ServiceAccountName || account.Namespace != ds.Namespace {
		t.Errorf("the pods run as %s, but the ServiceAccount is %s", ds.Spec.Template.Spec.ServiceAccountName, account.Name)
	}
	user := fmt.Sprintf("system:serviceaccount:%s:%s", ds.Namespace, ds.Spec.Template.Spec.ServiceAccountName)
	policies := only[*admissionv1.ValidatingAdmissionPolicy](objects)
	one(len(policies), "policies")
	if want := fmt.Sprintf("request.userInfo.username == %q", user); policies[0].Spec.MatchConditions[0].Expression != want {
		t.Errorf("the policy is for %s, want %s", policies[0].Spec.MatchConditions[0].Expression, want)
	}
	bindings := only[*admissionv1.ValidatingAdmissionPolicyBinding](objects)
	one(len(bindings), "policy bindings")
	if bindings[0].Spec.PolicyName != policies[0].Name {
		t.Errorf("the binding is for policy %s, which is called %s", bindings[0].Spec.PolicyName, policies[0].Name)
	}
	roles, roleBindings := only[*rbacv1.ClusterRole](objects), only[*rbacv1.ClusterRoleBinding](objects)
	one(len(roles), "ClusterRoles")
	one(len(roleBindings), "ClusterRoleBindings")
	if b := roleBindings[0]; b.RoleRef.Name != roles[0].Name || b.Subjects[0].Name != accounts[0].Name || b.Subjects[0].Namespace != ds.Namespace {
		t.Errorf("the role binding %+v does not fit", b)
	}
	for _, rule := range roles[0].Rules {
		if slices.Contains(slices.Concat(rule.Verbs, rule.Resources, rule.APIGroups), "*") {
			t.Errorf("the role allows everything of something: %v", rule)
		}
	}
	volumes := make(map[string]bool)
	for _, v := range ds.Spec.Template.Spec.Volumes {
		volumes[v.Name] = true
	}
	mounted := make(map[string]bool)
	for _, c := range ds.Spec.Template.Spec.Containers {
		for _, m := range c.VolumeMounts {
			mounted[m.Name] = true
		}
	}
	if d := cmp.Diff(volumes, mounted); d != "" {
		t.Errorf("volumes and mounts differ: %s", d)
	}
}
