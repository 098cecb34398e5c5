package gpuplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/cdi"
	"nvdra/featuregates"
	"nvdra/nvml"
	"nvdra/nvml/host"
	"nvdra/nvml/sim"
	"nvdra/roles/gpuplugin/step"
	"nvdra/roles/internal/claims"
)

const (
	upstreamFixtures = "../../testdata/checkpoints/upstream"
	upstreamBoot     = "3b7c4f0e-5a1d-4c2b-9e8f-0d6a7b8c9d01" // of the fixtures
)

// claimUID is the UID of the n-th claim of the fixtures.
func claimUID(n int) types.UID { return types.UID(fmt.Sprintf("7d0a6c1e-0000-4000-8000-%012d", n)) }

// someFiles are what a driver might give to containers.
type someFiles struct{}

func (someFiles) Common(context.Context) (*cdispec.ContainerEdits, error) {
	return &cdispec.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}, nil
}

func (someFiles) GPU(_ context.Context, _ string, minor int) (*cdispec.ContainerEdits, error) {
	return &cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{{Path: fmt.Sprintf("/dev/nvidia%d", minor), HostPath: "/dev/null"}}}, nil
}

// A node is a simulated node on which the other driver may have run.
type node struct {
	adoption
	sim      *sim.Machine
	root     string // of the machine
	messages []string
}

func newNode(t *testing.T, machine string) *node {
	t.Helper()
	m, s, root := simulated(t, machine)
	if err := m.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	specs, err := cdi.OpenStore(filepath.Join(t.TempDir(), "cdi"), cdi.ClaimVendor, cdi.ClaimClass)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{sim: s, root: root}
	n.adoption = adoption{
		dir: t.TempDir(), bootID: upstreamBoot, pool: "node-a", specs: specs, machine: m, box: host.At(root), log: zap.NewNop(),
		report: func(ref claims.Ref, reason, message string) {
			n.messages = append(n.messages, reason+": "+strings.ReplaceAll(message, n.dir, "DIR"))
		},
	}
	n.restart(t)
	return n
}

// restart is a new process.
func (n *node) restart(t *testing.T) {
	t.Helper()
	var err error
	n.engine, err = claims.Open(claims.Config{
		Dir: filepath.Join(n.dir, "claims"), BootID: n.bootID, Specs: n.specs,
		Planner:  planner{pool: "node-a", gates: featuregates.Set{}, inventory: n.machine.Inventory},
		Handlers: step.Handlers(step.Deps{Files: someFiles{}, Machine: n.machine, Host: n.box}),
		Report:   func(ref claims.Ref, reason, message string) { n.report(ref, reason, message) },
	})
	if err != nil {
		t.Fatal(err)
	}
}

// start does what the plugin does when it starts.
func (n *node) start(t *testing.T) {
	t.Helper()
	n.restart(t)
	if err := n.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.engine.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// leave puts a fixture where the other driver has its file.
func (n *node) leave(t *testing.T, fixture string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(upstreamFixtures, fixture+".json"))
	if err != nil {
		t.Fatal(err)
	}
	n.write(t, data)
}

func (n *node) write(t *testing.T, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, upstreamFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeSpec writes the CDI spec that the other driver would have written.
func (n *node) writeSpec(t *testing.T, uid types.UID, devices ...string) string {
	t.Helper()
	var all []cdispec.Device
	for _, d := range devices {
		all = append(all, cdispec.Device{Name: cdi.DeviceName(string(uid), d), ContainerEdits: cdispec.ContainerEdits{Env: []string{"DEVICE=" + d}}})
	}
	if err := n.specs.Write(string(uid), all, cdispec.ContainerEdits{Mounts: []*cdispec.Mount{{HostPath: "/pipe", ContainerPath: "/tmp/nvidia-mps"}}}); err != nil {
		t.Fatal(err)
	}
	return n.spec(t, uid)
}

// spec is the CDI spec of a claim, or "".
func (n *node) spec(t *testing.T, uid types.UID) string {
	t.Helper()
	path, err := n.specs.Path(string(uid))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

// records describes what is remembered, one line a device or step.
func (n *node) records() []string {
	var all []string
	for _, r := range n.engine.Records() {
		all = append(all, fmt.Sprintf("%s %s", strings.TrimLeft(string(r.UID[len(r.UID)-4:]), "0"), r.State))
		for _, d := range r.Devices {
			admin := ""
			if d.Admin {
				admin = " admin"
			}
			all = append(all, fmt.Sprintf("  %s/%s %s for %s has %s%s", d.Pool, d.Name, d.Type, strings.Join(d.Requests, ","), strings.Join(d.Occupies, " "), admin))
		}
		for _, s := range r.Steps {
			all = append(all, "  "+s.Kind+" "+s.Device)
		}
	}
	return all
}

func (n *node) files(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "claims" {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

// What is remembered of every kind of file that the DRA Driver leaves.
func TestTakeOver(t *testing.T) {
	left := func(n int, what string) string {
		return fmt.Sprintf("LeftBehind: Claim %s was prepared by the DRA Driver for NVIDIA GPUs, and %s. Better end the pods of such claims before one driver replaces the other", claimUID(n), what)
	}
	const maybeMade = "LeftBehind: MIG devices in use were taken over from the DRA Driver for NVIDIA GPUs as they are. If its feature gate DynamicMIG was on, it had made them for their claims: they stay and are offered to others when the claims end; destroy them with nvidia-smi mig -dci and -dgi if nobody is to have them: "
	whole := []string{"1 Prepared", "  node-a/gpu-0 gpu for gpu has 0000:1b:00.0", "  driver ", "  gpu gpu-0"}
	two := slices.Concat(whole, []string{
		"2 Prepared", "  node-a/gpu-1 gpu for gpu has 0000:43:00.0", "  node-a/gpu-2 gpu for gpu has 0000:52:00.0", "  driver ", "  gpu gpu-1", "  gpu gpu-2",
	})
	for _, test := range []struct {
		fixture, machine string
		records          []string
		messages         []string
	}{
		{"v1-only", "h100x8", two, nil},
		{"v1-and-v2", "h100x8", two, nil},
		{"no-boot-id", "h100x8", whole, nil},
		{"another-boot", "h100x8", nil, nil},
		{"empty", "h100x8", nil, nil},
		{"started", "h100x8", whole, nil},
		{"time-slice", "h100x8", slices.Concat(whole, []string{
			"2 Prepared", "  node-a/gpu-1 gpu for gpu has 0000:43:00.0", "  driver ", "  gpu gpu-1",
			"3 Prepared", "  node-a/gpu-2 gpu for gpu has 0000:52:00.0", "  driver ", "  gpu gpu-2",
			"4 Prepared", "  node-a/gpu-3 gpu for gpu has 0000:61:00.0", "  driver ", "  gpu gpu-3",
		}), []string{
			left(1, "the time slice that it set stays: when its pods have ended, take it back with nvidia-smi compute-policy --set-timeslice=0 -i GPU-0b1b307b-9c90-5e9e-b4c8-105230ea7251"),
			left(3, "the time slice that it set stays: when its pods have ended, take it back with nvidia-smi compute-policy --set-timeslice=0 -i GPU-2b4305c4-352d-5f96-a98e-29a33f5c637a"),
		}},
		{"mps", "h100x8", []string{
			"1 Prepared", "  node-a/gpu-0 gpu for gpu has 0000:1b:00.0", "  node-a/gpu-1 gpu for gpu has 0000:43:00.0",
			"  adopted ", "  adopted gpu-0", "  adopted gpu-1",
		}, []string{
			left(1, "its MPS daemon stays behind: when its pods have ended, delete Deployment mps-control-daemon-"+string(claimUID(1))+"-0f3a9 in the namespace of that driver and make its GPUs usable without MPS with nvidia-smi -c DEFAULT -i GPU-0b1b307b-9c90-5e9e-b4c8-105230ea7251,GPU-f5a626d4-222c-5aed-8aab-11c3844f0743"),
		}},
		{"static-mig", "dgx-a100", []string{
			"1 Prepared", "  node-a/gpu-6-mig-1g10gb-19-0 mig for mig has 0000:87:00.0/slice-0", "  driver ", "  migdevice gpu-6-mig-1g10gb-19-0",
		}, []string{maybeMade + "MIG-8d8276fd-ebc4-53f7-b9cc-af14ecde74df"}},
		{"dynamic-mig", "h100x8", []string{ // and it is gone
			"1 Prepared", "  node-a/gpu-0-mig-3g40gb-9-4 mig for mig has ", "  driver ", "  migdevice gpu-0-mig-3g40gb-9-4",
		}, []string{maybeMade + "MIG-5f1c2d3e-0000-5000-8000-0000000000aa"}},
		{"vfio", "none", []string{
			"1 Prepared", "  node-a/gpu-vfio-0 vfio for vfio has 0000:1b:00.0", "  adopted ", "  adopted gpu-vfio-0",
			"2 Prepared", "  node-a/gpu-vfio-1 vfio for vfio has GPU-f5a626d4-222c-5aed-8aab-11c3844f0743", "  adopted ", "  adopted gpu-vfio-1",
		}, []string{
			left(1, "0000:1b:00.0 stays bound to VFIO: when its pods have ended, bind it to the driver nvidia again or reboot the node"),
			left(2, "GPU-f5a626d4-222c-5aed-8aab-11c3844f0743 stays bound to VFIO: when its pods have ended, bind it to the driver nvidia again or reboot the node"),
		}},
		{"gpu-gone", "h100x8", []string{"1 Prepared", "  node-a/gpu-9 gpu for gpu has GPU-deadbeef-0000-5000-8000-000000000009", "  driver ", "  gpu gpu-9"}, nil},
		{"unknown-fields", "h100x8", []string{
			"1 Prepared", "  node-a/gpu-0 gpu for gpu has 0000:1b:00.0", "  node-a/gpu-1 gpu for watch has 0000:43:00.0 admin", "  driver ", "  gpu gpu-0", "  gpu gpu-1",
		}, nil},
		{"odd-claims", "h100x8", slices.Concat(whole, []string{
			"2 Prepared", "  node-a/gpu-1 gpu for gpu has 0000:43:00.0", "  driver ", "  gpu gpu-1",
			"6 Prepared", "  node-a/gpu-2 gpu for gpu has 0000:52:00.0", "  driver ", "  gpu gpu-2",
		}), []string{
			notTaken("../"+string(claimUID(8)), `adopt claim ../`+string(claimUID(8))+`: will not work: claim UID "../`+string(claimUID(8))+`": will not work: want letters, digits and dashes, as in a UUID`),
			notTaken(string(claimUID(3)), `will not work: there is no state "PrepareAborted"`),
			notTaken(string(claimUID(4)), "will not work: json: cannot unmarshal string into Go struct field upstreamClaim.preparedDevices of type []gpuplugin.upstreamGroup"),
			notTaken(string(claimUID(7)), "will not work: it has a device that is neither a GPU nor a MIG device nor a VFIO device"),
		}},
	} {
		t.Run(test.fixture, func(t *testing.T) {
			n := newNode(t, test.machine)
			n.leave(t, test.fixture)
			c, err := parseUpstream(fixture(t, test.fixture))
			if err != nil {
				t.Fatal(err)
			}
			for _, claim := range c.claims {
				var names []string
				for _, g := range claim.Groups {
					for _, d := range g.Devices {
						if name := d.names().DeviceName; name != "" {
							names = append(names, name)
						}
					}
				}
				if claim.err == nil && len(names) > 0 && !strings.Contains(string(claim.uid), "/") {
					n.writeSpec(t, claim.uid, names...)
				}
			}
			if err := n.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.records, n.records()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.messages, n.messages); diff != "" {
				t.Error(diff)
			}
			if got := n.files(t); got != "checkpoint.json.adopted" {
				t.Errorf("files %s", got)
			}
			// Every claim can be unprepared, from the record alone.
			if err := n.engine.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, r := range n.engine.Records() {
				if err := n.engine.Unprepare(t.Context(), claims.Ref{UID: r.UID, Namespace: "train", Name: "job"}); err != nil {
					t.Error(err)
				}
			}
			if got := n.records(); got != nil {
				t.Errorf("left: %q", got)
			}
		})
	}
}

func notTaken(uid, why string) string {
	return fmt.Sprintf("ClaimNotTakenOver: Claim %q, prepared by the DRA Driver for NVIDIA GPUs, is not taken over: %s. Its CDI spec stays until it is unprepared, but its devices are not guarded: delete its pod", uid, why)
}

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(upstreamFixtures, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Every fixture is tried.
func TestEveryUpstreamFixtureIsTried(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(upstreamFixtures, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 14 {
		t.Errorf("%d fixtures; add new ones to TestTakeOver", len(files))
	}
}

// A running pod's claim survives the change of drivers, restarts, and a second
// start of the change: its CDI spec stays as it is, its device is guarded.
func TestTakenClaimIsLikeOurs(t *testing.T) {
	n := newNode(t, "h100x8")
	n.leave(t, "v1-and-v2")
	theirs := n.writeSpec(t, claimUID(1), "gpu-0") // that of the second claim is lost
	for range 2 {
		n.start(t)
	}
	n.leave(t, "v1-and-v2") // as if the rename had not reached the disk
	n.start(t)
	if got := n.spec(t, claimUID(1)); got != theirs {
		t.Errorf("spec changed:\n%s", cmp.Diff(theirs, got))
	}
	if got := n.spec(t, claimUID(2)); !strings.Contains(got, "/dev/nvidia1") || !strings.Contains(got, "/dev/nvidia2") || !strings.Contains(got, string(claimUID(2))+"-gpu-2") {
		t.Errorf("spec that was lost:\n%s", got)
	}
	other := allocated("", result("gpu", "gpu-2"))
	other.Status.Allocation.Devices.Results[0].Pool = "node-a"
	if _, err := n.engine.Prepare(t.Context(), other); !errors.Is(err, claims.ErrConflict) || !strings.Contains(err.Error(), string(claimUID(2))) {
		t.Errorf("prepare a device that is in use: %v", err)
	}
	other.UID = claimUID(1) // kubelet asks again
	devices, err := n.engine.Prepare(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	if want := "k8s.gpu.nvidia.com/claim=" + string(claimUID(1)) + "-gpu-0"; len(devices) != 1 || devices[0].CDIDevices[0] != want {
		t.Errorf("devices %v", devices)
	}
	if len(n.messages) > 0 {
		t.Errorf("messages %q", n.messages)
	}
}

// What the other driver gave to containers and we cannot work out is given
// again, as it was.
func TestTheirSpecIsWrittenAgain(t *testing.T) {
	n := newNode(t, "h100x8")
	n.leave(t, "mps")
	theirs := n.writeSpec(t, claimUID(1), "gpu-0", "gpu-1")
	n.start(t)
	if got := n.spec(t, claimUID(1)); got != theirs {
		t.Errorf("spec changed:\n%s", cmp.Diff(theirs, got))
	}
	if err := n.specs.Remove(string(claimUID(1))); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	if got := n.spec(t, claimUID(1)); got != theirs {
		t.Errorf("spec written again:\n%s", cmp.Diff(theirs, got))
	}
	for _, device := range []string{"gpu-0", "gpu-1"} {
		c := allocated("", result("gpu", device))
		c.Status.Allocation.Devices.Results[0].Pool = "node-a"
		if _, err := n.engine.Prepare(t.Context(), c); !errors.Is(err, claims.ErrConflict) {
			t.Errorf("%s is not guarded: %v", device, err)
		}
	}
}

// Their spec is gone and we cannot work out what it said: nobody gets a
// container without its GPU.
func TestTheirSpecIsGone(t *testing.T) {
	n := newNode(t, "h100x8")
	n.leave(t, "mps")
	n.start(t)
	c := allocated("", result("gpu", "gpu-0"))
	c.UID = claimUID(1)
	if _, err := n.engine.Prepare(t.Context(), c); !errors.Is(err, claims.ErrPermanent) || !strings.Contains(err.Error(), "its CDI spec was gone when this one took over; delete the pod") {
		t.Errorf("prepare: %v", err)
	}
	if err := n.engine.Unprepare(t.Context(), claims.RefOf(c)); err != nil {
		t.Error(err)
	}
}

// R006: the GPU is gone. The plugin starts, the others are there, the claim can
// be unprepared, and preparing it again says why not.
func TestTakenGPUIsGone(t *testing.T) {
	n := newNode(t, "h100x8")
	n.leave(t, "v1-and-v2")
	gone := n.machine.Inventory().byName["gpu-0"].UUID()
	if err := n.sim.Remove(gone); err != nil {
		t.Fatal(err)
	}
	kernelShows(t, n.root, "changed")
	if err := n.machine.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.writeSpec(t, claimUID(1), "gpu-0")
	n.start(t)
	if got := n.spec(t, claimUID(1)); got != "" {
		t.Errorf("spec of a GPU that is gone:\n%s", got)
	}
	c := allocated("", result("gpu", "gpu-0"))
	c.UID = claimUID(1)
	if _, err := n.engine.Prepare(t.Context(), c); !errors.Is(err, claims.ErrPermanent) || !strings.Contains(err.Error(), "not on this node any more") {
		t.Errorf("prepare: %v", err)
	}
	if err := n.engine.Unprepare(t.Context(), claims.RefOf(c)); err != nil {
		t.Error(err)
	}
	if got := n.records(); len(got) == 0 || got[0] != "2 Prepared" {
		t.Errorf("records %q", got)
	}
}

// The driver does not answer when the plugin starts. What the kernel says is
// enough, and if it says nothing the spec stays as it is.
func TestTakeOverWithoutTheDriver(t *testing.T) {
	n := newNode(t, "h100x8")
	if err := n.sim.Unload(); err != nil {
		t.Fatal(err)
	}
	n.machine = newMachine(n.sim, n.box, n.machine.names) // as after a restart
	if err := n.machine.Scan(t.Context()); !errors.Is(err, nvml.ErrDriver) {
		t.Fatal(err)
	}
	information := filepath.Join(n.root, "proc/driver/nvidia/gpus/0000:1b:00.0/information")
	if err := os.MkdirAll(filepath.Dir(information), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(information, []byte("Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-0b1b307b-9c90-5e9e-b4c8-105230ea7251\nBus Location: \t 0000:1b:00.0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.leave(t, "v1-and-v2")
	specs := map[types.UID]string{claimUID(1): n.writeSpec(t, claimUID(1), "gpu-0"), claimUID(2): n.writeSpec(t, claimUID(2), "gpu-1", "gpu-2")}
	n.start(t)
	want := []string{
		"1 Prepared", "  node-a/gpu-0 gpu for gpu has 0000:1b:00.0", "  driver ", "  gpu gpu-0",
		"2 Prepared", "  node-a/gpu-1 gpu for gpu has GPU-f5a626d4-222c-5aed-8aab-11c3844f0743", "  node-a/gpu-2 gpu for gpu has GPU-2b4305c4-352d-5f96-a98e-29a33f5c637a",
		"  adopted ", "  adopted gpu-1", "  adopted gpu-2",
	}
	if diff := cmp.Diff(want, n.records()); diff != "" {
		t.Error(diff)
	}
	for uid, spec := range specs {
		if got := n.spec(t, uid); got != spec {
			t.Errorf("spec of %s changed:\n%s", uid, cmp.Diff(spec, got))
		}
	}

	// The same for MIG devices, whose place is in their name and in newer files.
	n.leave(t, "dynamic-mig")
	if err := n.engine.Unprepare(t.Context(), claims.Ref{UID: claimUID(1)}); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	if diff := cmp.Diff([]string{"1 Prepared", "  node-a/gpu-0-mig-3g40gb-9-4 mig for mig has 0000:1b:00.0/slice-4", "  driver ", "  migdevice gpu-0-mig-3g40gb-9-4"}, n.records()[:4]); diff != "" {
		t.Error(diff)
	}
}

// R002: a file that is not what the other driver writes is set aside, and the
// plugin starts. The CDI specs of its claims stay, because their pods may run.
func TestDamagedUpstreamFile(t *testing.T) {
	good := fixture(t, "v1-and-v2")
	for name, data := range map[string][]byte{
		"empty": nil, "truncated": good[:len(good)/2], "zeros": make([]byte, 100), "list": []byte("[]"), "null": []byte("null"),
		"neither": []byte(`{"checksum":1,"v3":{}}`), "claims": []byte(`{"v2":{"preparedClaims":[]}}`), "boot id": []byte(`{"v2":{"nodeBootID":7}}`),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "h100x8")
			n.write(t, data)
			theirs := n.writeSpec(t, claimUID(1), "gpu-0")
			for range 2 {
				n.start(t)
			}
			if got := n.files(t); got != "checkpoint.json.damaged" {
				t.Errorf("files %s", got)
			}
			if got := n.spec(t, claimUID(1)); got != theirs {
				t.Errorf("spec:\n%s", got)
			}
			if len(n.messages) != 1 || !strings.HasPrefix(n.messages[0], "CheckpointDamaged: Read what the DRA Driver for NVIDIA GPUs remembers in DIR/checkpoint.json: it is damaged: ") ||
				!strings.Contains(n.messages[0], "It was kept as DIR/checkpoint.json.damaged") {
				t.Errorf("messages %q", n.messages)
			}
			if err := n.engine.Unprepare(t.Context(), claims.Ref{UID: claimUID(1)}); err != nil || n.spec(t, claimUID(1)) != "" {
				t.Errorf("unprepare: %v, spec\n%s", err, n.spec(t, claimUID(1)))
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		n := newNode(t, "h100x8")
		if err := os.Mkdir(filepath.Join(n.dir, upstreamFile), 0o755); err != nil {
			t.Fatal(err)
		}
		n.start(t)
		if got := n.files(t); got != "checkpoint.json.damaged" {
			t.Errorf("files %s", got)
		}
	})
	t.Run("link", func(t *testing.T) {
		n := newNode(t, "h100x8")
		if err := os.Symlink("/proc/kcore", filepath.Join(n.dir, upstreamFile)); err != nil {
			t.Fatal(err)
		}
		n.start(t)
		if got := n.files(t); got != "checkpoint.json.damaged" {
			t.Errorf("files %s", got)
		}
	})
}

// A claim of an earlier boot leaves nothing.
func TestUpstreamFileOfAnEarlierBoot(t *testing.T) {
	n := newNode(t, "h100x8")
	n.leave(t, "another-boot")
	n.writeSpec(t, claimUID(1), "gpu-0")
	n.start(t)
	if got := n.spec(t, claimUID(1)); got != "" || n.records() != nil {
		t.Errorf("records %q, spec\n%s", n.records(), got)
	}
}

// Claims that cannot be written down keep the plugin from starting, and what
// the other driver left stays as it is for the next try.
func TestTakeOverThatCannotBeWritten(t *testing.T) {
	n := newNode(t, "h100x8")
	n.leave(t, "v1-and-v2")
	theirs := n.writeSpec(t, claimUID(1), "gpu-0")
	dir := filepath.Join(n.dir, "claims")
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := n.run(t.Context()); err == nil || !strings.Contains(err.Error(), "take over from the DRA Driver for NVIDIA GPUs: adopt claim "+string(claimUID(1))+": write checkpoint") {
		t.Errorf("error %v", err)
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	if got := n.files(t); got != upstreamFile {
		t.Errorf("files %s", got)
	}
	n.start(t)
	if got := n.spec(t, claimUID(1)); got != theirs || len(n.engine.Records()) != 2 {
		t.Errorf("records %q, spec\n%s", n.records(), got)
	}
}

// The other driver is in the middle of something.
func TestTakeOverWaitsForTheOtherDriver(t *testing.T) {
	n := newNode(t, "h100x8")
	n.leave(t, "v1-and-v2")
	f, err := os.Create(filepath.Join(n.dir, "pu.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.run(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "pu.lock") {
		t.Errorf("error %v", err)
	}
	if n.records() != nil || n.files(t) != upstreamFile+" pu.lock" {
		t.Errorf("records %q, files %s", n.records(), n.files(t))
	}
	other, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := waitForFile(t.Context(), other, time.Now().Add(-time.Second)); !errors.Is(err, claims.ErrLocked) || !strings.Contains(err.Error(), "still runs on this node; uninstall it first") {
		t.Errorf("error %v", err)
	}
	f.Close()
	n.start(t)
	if len(n.engine.Records()) != 2 {
		t.Errorf("records %q", n.records())
	}
}

func TestNormalAddress(t *testing.T) {
	for in, want := range map[string]string{
		"0000:65:00.0": "0000:65:00.0", "00000000:1B:00.0": "0000:1b:00.0", "00010000:01:00.0": "10000:01:00.0", "0008:01:00.0": "0008:01:00.0",
		"": "", "65:00.0": "", "0000:65:00": "", "0000:65:00.8": "", "GPU-1": "", "0000:65:00.0/1": "",
	} {
		if got := normalAddress(in); got != want {
			t.Errorf("normalAddress(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFirstSlice(t *testing.T) {
	for name, want := range map[string]string{"gpu-0-mig-1g10gb-me-20-3": "slice-3", "gpu-0": "MIG-1", "gpu-0-mig-1g10gb-20-99999999999999999999": "MIG-1", "": "MIG-1"} {
		if got := firstSlice(name, "MIG-1"); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

// Whatever the file says, taking it over refuses or makes records that can be
// kept: nothing panics, and no claim is invented.
func FuzzUpstream(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(upstreamFixtures, "*.json"))
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"v2":{"preparedClaims":{"a":{"preparedDevices":[{"devices":[{"mig":{}},{"gpu":{}},{"vfio":{}},null]},null]}}}}`))
	inv := newInventory(nvml.Scan{GPUs: manyGPUs(2)}, nil, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseUpstream(data)
		if err != nil {
			if !errors.Is(err, errUpstreamDamaged) {
				t.Fatal(err)
			}
			return
		}
		for _, readable := range []bool{true, false} {
			s := surroundings{inventory: inv, readable: readable, pool: "n1", spec: func(string, []string) *cdispec.Spec { return nil }}
			for _, claim := range c.claims {
				taken, err := s.takeOver(claim)
				if err != nil {
					if !errors.Is(err, claims.ErrPermanent) {
						t.Fatal(err)
					}
					continue
				}
				if len(taken.Devices) != claim.devices() || len(taken.Steps) == 0 && len(taken.Devices) > 0 {
					t.Fatalf("%d devices and %d steps of %d devices", len(taken.Devices), len(taken.Steps), claim.devices())
				}
				if _, err := json.Marshal(taken.Adopted); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
