package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nvdra.test/cluster/box"
	"nvdra.test/cluster/image"
	"nvdra.test/cluster/pki"
)

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
		code int
	}{
		{"fly", `there is no command "fly"`, 2},
		{"up --nodes 0", "--nodes=0 must be from 1 to 32", 2},
		{"up --nodes=33", "--nodes=33 must be", 2},
		{"up --nodes=x", "up: invalid value", 2},
		{"up --bogus", "not defined: -bogus", 2},
		{"up please", `up takes no arguments, got ["please"]`, 2},
		{"up --gates A=maybe", `feature gate "A=maybe"`, 2},
		{"up --nodes 3 --machine none,none", "names 2 machines for 3 nodes", 2},
		{"up --nodes 2 --machine none,", "empty name", 2},
		{"up --machine h100x8 --gpusim /nowhere/gpusim", "build it with: go run ./nvml/sim/gpusim build", 2},
		{"status --cluster Upper", `--cluster "Upper" must be`, 2},
		{"status --cluster", "--cluster needs a value", 2},
		{"status --dir /", "cannot be /", 2},
		{"status", "is not up; start it with", 3},
		{"kubectl get nodes", "is not up; start it with", 3},
		{"exec 1", "exec MACHINE CMD", 2},
		{"load", "takes one root directory or archive", 2},
		{"load /nowhere", "no such file", 1},
		{"load /tmp", "needs --name", 2},
		{"load /tmp --name x", "must look like localhost/NAME:TAG", 1},
		{"load /tmp --env x", `"x" is not NAME=VALUE`, 2},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Setenv("XDG_STATE_HOME", t.TempDir())
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			err := run(t.Context(), strings.Fields(c.args))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			if code := exitCode(err); code != c.code {
				t.Errorf("exit status %d, want %d", code, c.code)
			}
		})
	}
}

func TestHelpNamesEveryCommand(t *testing.T) {
	text := help()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands() {
		if !strings.Contains(text, "  "+c.name+" ") {
			t.Errorf("help does not name %s", c.name)
		}
		if !strings.Contains(string(readme), "`"+c.name) {
			t.Errorf("README.md does not name %s", c.name)
		}
	}
}

func TestStatusOfTheirs(t *testing.T) {
	err := exec.Command("sh", "-c", "exit 7").Run()
	if got := exitCode(theirs(err)); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
}

func TestOwnFlags(t *testing.T) {
	for _, c := range []struct {
		args, want, name, dir string
	}{
		{"get pods -n x", "get pods -n x", "nvdra", ""},
		{"--cluster a -n x get", "-n x get", "a", ""},
		{"--dir=/d --cluster=b get --cluster c", "get --cluster c", "b", "/d"},
	} {
		p, rest, err := ownFlags(place{name: "nvdra"}, strings.Fields(c.args))
		if err != nil || strings.Join(rest, " ") != c.want || p.name != c.name || p.dir != c.dir {
			t.Errorf("%s: got %v, %q, %v", c.args, p, rest, err)
		}
	}
	p, rest, err := takePlace(place{}, strings.Fields("x --cluster a y --dir b"))
	if err != nil || p != (place{"a", "b"}) || !slices.Equal(rest, []string{"x", "y"}) {
		t.Errorf("from anywhere: got %v, %q, %v", p, rest, err)
	}
}

func TestParseMixed(t *testing.T) {
	fs := flag.NewFlagSet("x", flag.ContinueOnError)
	n, k := fs.Int("n", 0, ""), fs.Bool("k", false, "")
	words, err := parseMixed(fs, strings.Fields("a -n 3 b -k"))
	if err != nil || !slices.Equal(words, []string{"a", "b"}) || *n != 3 || !*k {
		t.Errorf("got %q, %d, %t, %v", words, *n, *k, err)
	}
}

func TestPickNet(t *testing.T) {
	n, err := pickNet("nvdra", nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := pickNet("nvdra", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}); again != n {
		t.Errorf("a default route changed the choice from %d to %d", n, again)
	}
	for _, taken := range []netip.Prefix{machineNet(n), podNet(n), netip.MustParsePrefix(nodePodNet(n, 3))} {
		if other, err := pickNet("nvdra", []netip.Prefix{taken}); err != nil || other == n {
			t.Errorf("with %s taken: got %d, %v", taken, other, err)
		}
	}
	if _, err := pickNet("nvdra", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err == nil || !strings.Contains(err.Error(), "routes into all") {
		t.Errorf("with everything taken: %v", err)
	}
	// No two networks of any two clusters overlap.
	var all []netip.Prefix
	for i := range nets {
		all = append(all, machineNet(i), podNet(i))
	}
	all = append(all, netip.MustParsePrefix(serviceNet))
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.Overlaps(b) {
				t.Errorf("%s and %s overlap", a, b)
			}
		}
	}
	for _, inside := range []string{hubAddress(n), hostAddress(n), nodeAddress(n, 1), nodeAddress(n, maxNodes)} {
		if !machineNet(n).Contains(netip.MustParseAddr(inside)) {
			t.Errorf("%s is not in %s", inside, machineNet(n))
		}
	}
	if nodeAddress(n, maxNodes) == hostAddress(n) {
		t.Error("the last node has this machine's address")
	}
}

const routes = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
eth0	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
br	0000CF0A	012F590A	0003	0	0	0	0000FFFF	0	0	0
`

func TestParseRoutes(t *testing.T) {
	got, err := parseRoutes(routes)
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.207.0.0/16")}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, bad := range []string{"h\na b c", "h\neth0 0000000 0 0 0 0 0 00000000", "h\neth0 00000000 0 0 0 0 0 xx"} {
		if _, err := parseRoutes(bad); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

func FuzzParseRoutes(f *testing.F) {
	f.Add(routes)
	f.Add("h\n\nx")
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := parseRoutes(raw)
		if err != nil {
			return
		}
		for _, p := range got {
			if !p.IsValid() {
				t.Errorf("%q: %v is no network", raw, p)
			}
		}
	})
}

func FuzzParseGates(f *testing.F) {
	f.Add("A=true,B=false")
	f.Add("A")
	f.Add(" A=1 ,=true")
	f.Fuzz(func(t *testing.T, s string) {
		g, err := parseGates(s)
		if err == nil && s != "" && len(g) == 0 {
			t.Errorf("%q: accepted without a gate in it", s)
		}
	})
}

func FuzzHasCapability(f *testing.F) {
	f.Add("Name:\tx\nCapEff:\t000001fffeffffff\n", uint(24))
	f.Add("CapEff:", uint(1))
	f.Fuzz(func(t *testing.T, status string, bit uint) {
		if _, err := hasCapability(status, bit); err != nil {
			return
		}
	})
}

func TestHasCapability(t *testing.T) {
	const without = "Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t000001fffeffffff\nCapBnd:\t000001ffffffffff\n"
	if has, err := hasCapability(without, 24); has || err != nil {
		t.Errorf("got %t, %v; want false", has, err)
	}
	if has, err := hasCapability(without, 21); !has || err != nil {
		t.Errorf("got %t, %v; want true", has, err)
	}
	if _, err := hasCapability("Name: x\n", 1); err == nil {
		t.Error("no capabilities: accepted")
	}
}

func TestPerNode(t *testing.T) {
	for _, c := range []struct {
		list  string
		nodes int
		want  []string
	}{
		{"none", 2, []string{"", ""}},
		{"h100x8", 2, []string{"h100x8", "h100x8"}},
		{"h100x8,none", 2, []string{"h100x8", ""}},
		{"none, ./a.txtar", 2, []string{"", "./a.txtar"}},
	} {
		if got, err := perNode(c.list, c.nodes); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, %v; want %q", c.list, got, err, c.want)
		}
	}
}

func TestGPUSimArgs(t *testing.T) {
	want := "/opt/nvdra/gpusim run --machine h100x8 --root /run/nvidia --files /opt/nvdra/gpusim-files"
	if got := strings.Join(gpusimArgs("h100x8"), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := strings.Join(gpusimArgs("../machines/x.txtar"), " "); !strings.Contains(got, "--machine /opt/nvdra/machine-x.txtar ") {
		t.Errorf("a profile in a file: got %s", got)
	}
}

// TestConfiguration reads back what the parts will read.
func TestConfiguration(t *testing.T) {
	m := machine{Name: "node-2", Number: 2, Address: "10.89.7.12", Simulated: "h100x8"}
	config, err := kubeletConfig(m, "/nvdra-x/node-2", "A=true,B=false")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := encode(config)
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		CgroupRoot     string
		FailCgroupV1   *bool
		FeatureGates   map[string]bool
		Authentication struct{ Anonymous struct{ Enabled *bool } }
	}
	if err := json.Unmarshal(raw, &k); err != nil {
		t.Fatal(err)
	}
	if k.CgroupRoot != "/nvdra-x/node-2" || k.FailCgroupV1 == nil || *k.FailCgroupV1 || k.Authentication.Anonymous.Enabled == nil || *k.Authentication.Anonymous.Enabled {
		t.Errorf("kubelet: %s", raw)
	}
	if d := cmp.Diff(map[string]bool{"A": true, "B": false}, k.FeatureGates); d != "" {
		t.Errorf("gates (-want +got):\n%s", d)
	}
	if args := kubeletArgs(m); !slices.Contains(args, "--node-labels=nvidia.com/gpu.present=true") {
		t.Errorf("a node with GPUs is not labelled: %q", args)
	}
	m.Simulated = ""
	if args := kubeletArgs(m); slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--node-labels") }) {
		t.Errorf("a node without GPUs is labelled: %q", args)
	}
	toml := containerdConfig(image.PauseName, true)
	for _, line := range []string{`sandbox = "localhost/pause:dev"`, "restrict_oom_score_adj = true", `cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]`} {
		if !strings.Contains(toml, line+"\n") {
			t.Errorf("containerd's configuration lacks %s:\n%s", line, toml)
		}
	}
	raw, err = encode(cniConfig(7, 2))
	if err != nil || !strings.Contains(string(raw), `"10.167.2.0/24"`) {
		t.Errorf("pod network: %v\n%s", err, raw)
	}
	if args := apiserverArgs("10.89.7.1", "A=true", "api/all=true"); !slices.Contains(args, "--feature-gates=A=true") || !slices.Contains(args, "--runtime-config=api/all=true") {
		t.Errorf("API server: %q", args)
	}
}

func TestKubeconfigComesBack(t *testing.T) {
	user := pki.Pair{Cert: []byte("cert"), Key: []byte("key")}
	raw, err := encode(kubeconfig("https://10.89.7.1:6443", []byte("ca"), user))
	if err != nil {
		t.Fatal(err)
	}
	ca, got, err := parseKubeconfig(raw)
	if err != nil || string(ca) != "ca" {
		t.Errorf("authority is %q, %v", ca, err)
	}
	if d := cmp.Diff(user, got); d != "" {
		t.Errorf("user (-want +got):\n%s", d)
	}
}

func FuzzParseKubeconfig(f *testing.F) {
	f.Add([]byte(`{"clusters":[{"cluster":{"certificate-authority-data":"Y2E="}}],"users":[{"user":{}}]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ca, user, err := parseKubeconfig(raw)
		if err != nil {
			return
		}
		if _, err := newClient(ca, user); err == nil {
			t.Logf("a real one: %q", raw)
		}
	})
}

func testRecord(p place) *record {
	return &record{
		Version: recordVersion, Name: p.name, BootID: "boot", Link: p.link(), Net: 3,
		Cgroup:   box.Group{Cgroups: box.Cgroups{V1: []string{"/sys/fs/cgroup/pids"}}, Path: p.cgroup()},
		Machines: []machine{{Name: "control-plane"}, {Name: "node-1", Number: 1}},
		Parts:    []started{{Name: "node-1/kubelet", Machine: "node-1", Args: []string{"kubelet"}}},
	}
}

func testPlace(t *testing.T) place {
	t.Helper()
	return place{name: "test", dir: filepath.Join(t.TempDir(), "state")}
}

func TestRecord(t *testing.T) {
	p := testPlace(t)
	if _, err := loadRecord(p); !errors.Is(err, errNotUp) {
		t.Errorf("without a record: %v, want %v", err, errNotUp)
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	want := testRecord(p)
	if err := want.save(p); err != nil {
		t.Fatal(err)
	}
	got, err := loadRecord(p)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("changed on disk (-want +got):\n%s", d)
	}
	if st, err := os.Stat(p.file(recordFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the record: %v, %v", st.Mode(), err)
	}
	for word, name := range map[string]string{"1": "node-1", "node-1": "node-1", "control-plane": "control-plane"} {
		if m, err := got.machine(word); err != nil || m.Name != name {
			t.Errorf("machine %s: %v, %v", word, m, err)
		}
	}
	if _, err := got.machine("0"); err == nil || !strings.Contains(err.Error(), "there are control-plane, node-1") {
		t.Errorf("machine 0: %v", err)
	}
	if d := cmp.Diff([]string{"control-plane", "node-1", "node-1/kubelet"}, got.dead()); d != "" {
		t.Errorf("dead (-want +got):\n%s", d)
	}
	if _, err := loadRecord(place{name: "other", dir: p.dir}); err == nil || !strings.Contains(err.Error(), "belongs to cluster test") {
		t.Errorf("another cluster's record: %v", err)
	}
}

func TestRecordsThatWouldRemoveTooMuch(t *testing.T) {
	for name, spoil := range map[string]func(*record){
		"version": func(r *record) { r.Version = 2 },
		"cgroup":  func(r *record) { r.Cgroup.Path = "/" },
		"link":    func(r *record) { r.Link = "eth0" },
		"name":    func(r *record) { r.Name = "../x" },
		"tree":    func(r *record) { r.Cgroup.Cgroups.V1 = []string{"/home"} },
		"tree 2":  func(r *record) { r.Cgroup.Cgroups.V2 = "/sys/fs/cgroup/../../../home" },
	} {
		r := testRecord(place{name: "test"})
		spoil(r)
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseRecord(raw); err == nil {
			t.Errorf("%s: accepted %s", name, raw)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	raw, err := json.Marshal(testRecord(place{name: "test"}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := parseRecord(raw)
		if err == nil && (r.Cgroup.Path != "/nvdra-"+r.Name || r.Link == "") {
			t.Errorf("accepted %s", raw)
		}
	})
}

// TestTearDown removes a cluster that ended with an earlier boot: nothing but its
// directory is left of it, and numbers in its record may belong to others now.
func TestTearDown(t *testing.T) {
	p := testPlace(t)
	if err := os.MkdirAll(p.file("machines/node-1/etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := testRecord(p)
	self, err := box.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	r.Machines[1].Init = self
	// A cgroup tree that does not exist, so that the test needs no rights.
	r.Cgroup.Cgroups.V1 = []string{"/sys/fs/cgroup/nvdra-test-none"}
	if err := r.save(p); err != nil {
		t.Fatal(err)
	}
	if err := tearDown(p); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory is still there: %v", err)
	}
	if err := tearDown(p); !errors.Is(err, errNotUp) {
		t.Errorf("again: %v, want %v", err, errNotUp)
	}
}

func TestNewClusterRefusesAForeignDirectory(t *testing.T) {
	p := testPlace(t)
	if err := os.MkdirAll(p.file("photos"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := newCluster(p, options{nodes: 1, machines: []string{""}}); err == nil || !strings.Contains(err.Error(), "it is not empty") {
		t.Errorf("got %v", err)
	}
}

func TestPlaces(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	a, err := place{name: "a"}.resolve()
	if err != nil || a.dir != "/state/nvdra/a" || a.lockFile() != "/state/nvdra/a.lock" {
		t.Errorf("got %+v, %v", a, err)
	}
	if long := (place{name: strings.Repeat("x", 22)}).link(); len(long) > 15 {
		t.Errorf("device name %s is longer than the kernel takes", long)
	}
	if a.link() == (place{name: "b"}).link() || a.cgroup() == (place{name: "b"}).cgroup() {
		t.Error("two clusters share a name outside their boxes")
	}
}

func TestLoading(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "image.json"), []byte(`{"entrypoint":["/nvdra"],"env":["A=1"],"user":"0:0"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := parseLoading([]string{filepath.Join(dir, "rootfs"), "--name", "localhost/x:dev", "--cmd=--role,operator", "--env", "B=2", "-o", filepath.Join(dir, "x.tar")})
	if err != nil {
		t.Fatal(err)
	}
	beside, err := readImageConfig(l.from)
	if err != nil {
		t.Fatal(err)
	}
	want := image.Config{Entrypoint: []string{"/nvdra"}, Cmd: []string{"--role", "operator"}, Env: []string{"A=1", "B=2"}, User: "0:0"}
	if d := cmp.Diff(want, overlay(beside, l.config)); d != "" {
		t.Errorf("description (-want +got):\n%s", d)
	}
	path, remove, err := l.archive()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	if st, err := os.Stat(path); err != nil || st.Size() == 0 {
		t.Errorf("archive: %v, %v", st, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "image.json"), []byte(`{"entry":[]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.archive(); !errors.Is(err, image.ErrConfig) || !strings.Contains(err.Error(), "image.json") {
		t.Errorf("a bad image.json: %v", err)
	}
}

func TestAwait(t *testing.T) {
	p := testPlace(t)
	if err := os.MkdirAll(p.file("logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := &cluster{place: p, rec: testRecord(p)}
	never := func(context.Context) error { return errors.New("not yet") }
	if err := os.WriteFile(p.logFile("node-1/kubelet"), []byte("first\nlast words\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ended := &running{name: "node-1/kubelet", ended: make(chan struct{}), err: errors.New("exit status 3")}
	close(ended.ended)
	err := c.await(t.Context(), ended, time.Minute, never)
	for _, word := range []string{"start node-1/kubelet", "it ended", "exit status 3", "last words"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("a part that ended: %v, want %q", err, word)
		}
	}
	slow := &running{name: "node-1/kubelet", ended: make(chan struct{})}
	err = c.await(t.Context(), slow, 30*time.Millisecond, never)
	if err == nil || !strings.Contains(err.Error(), "not ready after 30ms") || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("a part that takes too long: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("another part failed"))
	if err := c.await(ctx, slow, time.Minute, never); err == nil || !strings.Contains(err.Error(), "another part failed") {
		t.Errorf("a start that was given up: %v", err)
	}
	if err := c.await(t.Context(), slow, time.Minute, func(context.Context) error { return nil }); err != nil {
		t.Errorf("a part that is well: %v", err)
	}
}

func TestTogether(t *testing.T) {
	first := errors.New("first")
	err := together(t.Context(),
		func(context.Context) error { return first },
		func(ctx context.Context) error {
			<-ctx.Done() // the failure of the other ends this one
			return ctx.Err()
		},
	)
	if !errors.Is(err, first) {
		t.Errorf("got %v, want %v", err, first)
	}
	if err := together(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Errorf("got %v", err)
	}
}
