package claims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"nvdra/cdi"
)

// node is a simulated machine in a directory, so that it outlives an engine and
// a process. What steps change on it are files:
//
//	act    changes one thing; a reboot undoes it
//	keep   the same, but it outlives a reboot
//	edit   passive: adds a variable and the current number of its device
//	check  passive: changes and gives nothing
type node struct {
	root string

	mu   sync.Mutex
	hook func(ctx context.Context, op string) error // called around everything
	log  []string                                   // handler calls
}

func newNode(root string) *node {
	n := &node{root: root}
	for _, dir := range []string{"things", "numbers"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			panic(err)
		}
	}
	return n
}

// fastDir is a directory on a file system that does not wait for a disk, for
// tests that write a lot.
func fastDir(tb testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "claims")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (n *node) at(ctx context.Context, format string, args ...any) error {
	op := fmt.Sprintf(format, args...)
	n.mu.Lock()
	hook := n.hook
	n.log = append(n.log, op)
	n.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(ctx, op)
}

// calls returns the handler calls since the last time it was asked.
func (n *node) calls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var calls []string
	for _, op := range n.log {
		if !strings.HasPrefix(op, "file ") && !strings.HasPrefix(op, "spec ") && !strings.HasSuffix(op, " over") {
			calls = append(calls, op)
		}
	}
	n.log = nil
	return calls
}

func (n *node) setHook(hook func(ctx context.Context, op string) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hook = hook
}

func (n *node) path(s Step) string {
	return filepath.Join(n.root, "things", url.QueryEscape(s.Kind+" "+s.Key))
}

// things lists what steps have changed, as "kind key".
func (n *node) things() []string {
	entries, err := os.ReadDir(filepath.Join(n.root, "things"))
	if err != nil {
		panic(err)
	}
	var things []string
	for _, e := range entries {
		thing, err := url.QueryUnescape(e.Name())
		if err != nil {
			panic(err)
		}
		things = append(things, thing)
	}
	return things
}

// reboot undoes what a reboot undoes.
func (n *node) reboot() {
	for _, thing := range n.things() {
		if strings.HasPrefix(thing, "act ") {
			os.Remove(filepath.Join(n.root, "things", url.QueryEscape(thing)))
		}
	}
}

// setNumber gives a device a number, or takes the device away with "".
func (n *node) setNumber(device, number string) {
	path := filepath.Join(n.root, "numbers", device)
	if number == "" {
		number = "gone"
	}
	if err := os.WriteFile(path, []byte(number), 0o644); err != nil {
		panic(err)
	}
}

// act is the handler of steps that change one thing.
type act struct {
	*node
	survives bool
}

func (a act) SurvivesReboot(Step) bool { return a.survives }

func (a act) Do(ctx context.Context, s Step) (json.RawMessage, error) {
	if err := a.at(ctx, "do %s %s", s.Kind, s.Key); err != nil {
		return nil, err
	}
	if old, err := os.ReadFile(a.path(s)); err == nil && string(old) != string(s.Want) {
		return nil, fmt.Errorf("%s is set to %s, not %s", s.Key, old, s.Want)
	}
	if err := os.WriteFile(a.path(s), s.Want, 0o644); err != nil {
		return nil, err
	}
	if err := a.at(ctx, "do %s %s over", s.Kind, s.Key); err != nil {
		return nil, err
	}
	return json.Marshal("made " + s.Key)
}

func (a act) Undo(ctx context.Context, s Step) error {
	if err := a.at(ctx, "undo %s %s", s.Kind, s.Key); err != nil {
		return err
	}
	if err := os.Remove(a.path(s)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return a.at(ctx, "undo %s %s over", s.Kind, s.Key)
}

// edit is the handler of steps that only show the container something.
type edit struct{ *node }

func (edit) Passive() bool { return true }

func (e edit) Do(ctx context.Context, s Step) (json.RawMessage, error) {
	return nil, e.at(ctx, "do %s %s", s.Kind, s.Key)
}

func (e edit) Undo(context.Context, Step) error { panic("a passive step was undone") }

func (e edit) Edits(ctx context.Context, s Step) (*cdispec.ContainerEdits, error) {
	if err := e.at(ctx, "edits %s %s over", s.Kind, s.Key); err != nil {
		return nil, err
	}
	number, err := os.ReadFile(filepath.Join(e.root, "numbers", s.Key))
	if errors.Is(err, os.ErrNotExist) {
		number, err = []byte("0"), nil
	}
	if err == nil && string(number) == "gone" {
		err = fmt.Errorf("%s: no such device; replace it or delete the pod: %w", s.Key, ErrPermanent)
	}
	if err != nil {
		return nil, err
	}
	return &cdispec.ContainerEdits{
		Env:         []string{"DEVICE=" + s.Key},
		DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/null" + string(number), HostPath: "/dev/null"}},
	}, nil
}

// check is the handler of steps that change and give nothing.
type check struct{ *node }

func (check) Passive() bool { return true }

func (c check) Do(ctx context.Context, s Step) (json.RawMessage, error) {
	return nil, c.at(ctx, "do %s %s", s.Kind, s.Key)
}

func (check) Undo(context.Context, Step) error { panic("a passive step was undone") }

// plans is a planner that finds the plan in the claim.
type plans struct{}

func (plans) Plan(claim *resourceapi.ResourceClaim) (Plan, error) {
	var p Plan
	if why := claim.Annotations["panic"]; why != "" {
		panic(why)
	}
	if err := json.Unmarshal([]byte(claim.Annotations["plan"]), &p); err != nil {
		return Plan{}, fmt.Errorf("%w: %w", ErrPermanent, err)
	}
	return p, nil
}

// hookedSpecs and hookedFiles tell the node's hook before and after each write.
type hookedSpecs struct {
	Specs
	*node
}

func (h hookedSpecs) Write(uid string, devices []cdispec.Device, common cdispec.ContainerEdits) error {
	return h.around("spec write "+uid, func() error { return h.Specs.Write(uid, devices, common) })
}

func (h hookedSpecs) Remove(uid string) error {
	return h.around("spec remove "+uid, func() error { return h.Specs.Remove(uid) })
}

type hookedFiles struct {
	checkpoints
	*node
}

func (h hookedFiles) stage(r *Record) error {
	return h.around("file stage "+string(r.UID), func() error { return h.checkpoints.stage(r) })
}

func (h hookedFiles) publish(uid types.UID) error {
	return h.around("file publish "+string(uid), func() error { return h.checkpoints.publish(uid) })
}

func (h hookedFiles) sync() error {
	return h.around("file sync", h.checkpoints.sync)
}

func (h hookedFiles) remove(uid types.UID) error {
	return h.around("file remove "+string(uid), func() error { return h.checkpoints.remove(uid) })
}

func (n *node) around(op string, f func() error) error {
	if err := n.at(context.Background(), "%s", op); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return n.at(context.Background(), "%s over", op)
}

// report is one call of Config.Report.
type report struct {
	Ref             Ref
	Reason, Message string
}

// bench is an engine on a node, and the means to look at both.
type bench struct {
	*Engine
	node    *node
	specs   *cdi.Store
	cfg     Config
	mu      sync.Mutex
	reports []report
}

// setUp opens an engine on an empty node.
func setUp(tb testing.TB, change ...func(*Config)) *bench {
	return open(tb, newNode(fastDir(tb)), change...)
}

// open opens an engine on a node, as a new process would.
func open(tb testing.TB, n *node, change ...func(*Config)) *bench {
	tb.Helper()
	specs, err := cdi.OpenStore(filepath.Join(n.root, "cdi"), "k8s.gpu.example.com", "claim")
	if err != nil {
		tb.Fatal(err)
	}
	b := &bench{node: n, specs: specs}
	cfg := Config{
		Dir:     filepath.Join(n.root, "claims"),
		BootID:  "boot-1",
		Planner: plans{},
		Handlers: map[string]Handler{
			"act": act{node: n}, "keep": act{node: n, survives: true},
			"edit": edit{n}, "check": check{n},
		},
		Specs: hookedSpecs{specs, n},
		Report: func(ref Ref, reason, message string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.reports = append(b.reports, report{ref, reason, message})
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	b.cfg = cfg
	b.Engine, err = Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	b.files = hookedFiles{b.files, n}
	return b
}

func (b *bench) reported() []report {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.reports)
}

// reopen is a restart of the plugin.
func (b *bench) reopen(tb testing.TB, change ...func(*Config)) *bench {
	tb.Helper()
	n := open(tb, b.node, append([]func(*Config){func(c *Config) {
		report := c.Report
		*c = b.cfg
		c.Report = report
	}}, change...)...)
	if err := n.Restore(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return n
}

func bootID(id string) func(*Config) { return func(c *Config) { c.BootID = id } }

// record returns what the engine remembers of a claim, or nil.
func (b *bench) record(uid types.UID) *Record {
	for _, r := range b.Records() {
		if r.UID == uid {
			return &r
		}
	}
	return nil
}

// state returns the state of a claim.
func (b *bench) state(uid types.UID) State { return stateOf(b.record(uid)) }

// specText returns the CDI spec of a claim, or "".
func (b *bench) specText(uid types.UID) string {
	path, err := b.specs.Path(string(uid))
	if err != nil {
		return ""
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data)
}

// claim returns an allocated, reserved claim with a plan.
func claim(name string, p Plan) *resourceapi.ResourceClaim {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "train", UID: types.UID("uid-" + name), ResourceVersion: "1",
		Annotations: map[string]string{"plan": string(data)},
	}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range p.Devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: "gpu.example.com", Pool: d.Pool, Device: d.Name})
	}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
	return c
}

// gpu is a plan for one device with the steps "kind", "kind=want" or
// "kind:key=want"; without a key, the device is the key.
func gpu(name string, steps ...string) Plan {
	d := Device{Requests: []string{"r"}, Pool: "node", Name: name, Type: "gpu", Occupies: []string{name}}
	return Plan{Devices: []Device{d}, Steps: stepsOf(name, steps...)}
}

func stepsOf(device string, steps ...string) []Step {
	var list []Step
	for _, text := range steps {
		text, want, _ := strings.Cut(text, "=")
		kind, key, ok := strings.Cut(text, ":")
		if !ok {
			key = device
		}
		data, err := json.Marshal(want)
		if err != nil {
			panic(err)
		}
		list = append(list, Step{Kind: kind, Key: key, Device: device, Want: data})
	}
	return list
}

func mustPrepare(tb testing.TB, b *bench, c *resourceapi.ResourceClaim) []Prepared {
	tb.Helper()
	devices, err := b.Prepare(tb.Context(), c)
	if err != nil {
		tb.Fatal(err)
	}
	return devices
}

func mustUnprepare(tb testing.TB, b *bench, c *resourceapi.ResourceClaim) {
	tb.Helper()
	if err := b.Unprepare(tb.Context(), RefOf(c)); err != nil {
		tb.Fatal(err)
	}
}

// mustBeEmpty checks that nothing is left of any claim.
func mustBeEmpty(tb testing.TB, b *bench) {
	tb.Helper()
	for _, r := range b.Records() {
		if r.State.live() {
			tb.Errorf("record of %s is left: %s", r.Ref, r.State)
		}
	}
	if things := b.node.things(); len(things) > 0 {
		tb.Errorf("left on the node: %q", things)
	}
	if specs, err := b.specs.List(); err != nil || len(specs) > 0 {
		tb.Errorf("CDI specs left: %q, %v", specs, err)
	}
}

// wantError checks an error's kind and that it says certain things.
func wantError(tb testing.TB, err, kind error, says ...string) {
	tb.Helper()
	if err == nil {
		tb.Fatal("it succeeded")
	}
	if kind != nil && !errors.Is(err, kind) {
		tb.Errorf("error is not %q: %v", kind, err)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			tb.Errorf("error does not say %q: %v", s, err)
		}
	}
}
