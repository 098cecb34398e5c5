package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nvdra.test/cluster/box"
	"nvdra.test/cluster/image"
	"nvdra.test/cluster/part"
	"nvdra.test/cluster/pki"
)

// options are what a person may choose about a cluster.
type options struct {
	nodes         int
	machines      []string // simulated machine of each node; empty means no GPUs
	kubernetes    string
	gates         string
	runtimeConfig string
	gpusim        string // the simulator's program, if any node needs it
	gpusimFiles   string
	keep          bool
}

func parseOptions(args []string) (options, error) {
	var o options
	var machines string
	fs := flag.NewFlagSet("up", flag.ContinueOnError)
	fs.IntVar(&o.nodes, "nodes", 1, "number of nodes")
	fs.StringVar(&machines, "machine", "none", "simulated machine of every node, or one per node: h100x8,none; a name the simulator knows, or a file")
	fs.StringVar(&o.kubernetes, "k8s", "1.37", "minor version of Kubernetes")
	fs.StringVar(&o.gates, "gates", "", "feature gates of Kubernetes that differ from its defaults: DRAPartitionableDevices=true,…")
	fs.StringVar(&o.runtimeConfig, "runtime-config", "", "API versions the API server serves besides its defaults")
	fs.StringVar(&o.gpusim, "gpusim", "../../build/sim/gpusim", "the simulator's program")
	fs.StringVar(&o.gpusimFiles, "gpusim-files", "", "its files (default: gpusim-files beside it)")
	fs.BoolVar(&o.keep, "keep", false, "leave a cluster that could not be started as it is, to look at it")
	words, err := parseMixed(fs, args)
	if err != nil {
		return options{}, err
	}
	if len(words) > 0 {
		return options{}, fmt.Errorf("%w: up takes no arguments, got %q", errUsage, words)
	}
	if o.nodes < 1 || o.nodes > maxNodes {
		return options{}, fmt.Errorf("%w: --nodes=%d must be from 1 to %d", errUsage, o.nodes, maxNodes)
	}
	if _, err := parseGates(o.gates); err != nil {
		return options{}, err
	}
	if o.machines, err = perNode(machines, o.nodes); err != nil {
		return options{}, err
	}
	if slices.ContainsFunc(o.machines, func(m string) bool { return m != "" }) {
		if err := o.findSimulator(); err != nil {
			return options{}, err
		}
	}
	return o, nil
}

// perNode spreads a list of simulated machines over the nodes.
func perNode(list string, nodes int) ([]string, error) {
	words := strings.Split(list, ",")
	if len(words) == 1 {
		words = slices.Repeat(words, nodes)
	}
	if len(words) != nodes {
		return nil, fmt.Errorf("%w: --machine=%s names %d machines for %d nodes; give one for all, or one per node", errUsage, list, len(words), nodes)
	}
	for i, w := range words {
		if w = strings.TrimSpace(w); w == "" {
			return nil, fmt.Errorf("%w: --machine=%s has an empty name; a node without GPUs is called none", errUsage, list)
		}
		if words[i] = w; w == "none" {
			words[i] = ""
		}
	}
	return words, nil
}

func (o *options) findSimulator() error {
	if o.gpusimFiles == "" {
		o.gpusimFiles = filepath.Join(filepath.Dir(o.gpusim), "gpusim-files")
	}
	for _, path := range []*string{&o.gpusim, &o.gpusimFiles} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("find the simulator: %w", err)
		}
		if _, err := os.Stat(abs); err != nil {
			return fmt.Errorf("%w: --machine needs the simulator: %w; build it with: go run ./nvml/sim/gpusim build build/sim (in the repository's root)", errUsage, err)
		}
		*path = abs
	}
	return nil
}

// programs are the directories of what was built.
type programs struct {
	builtin
	dirs    map[string]string // name in a box → directory here
	version string            // of Kubernetes
}

func ensurePrograms(ctx context.Context, w io.Writer, minor string) (programs, error) {
	parts, err := partsDir()
	if err != nil {
		return programs{}, err
	}
	home, err := cache()
	if err != nil {
		return programs{}, err
	}
	k := part.Kubernetes(minor)
	pin, err := k.ReadPin(parts)
	if err != nil {
		return programs{}, err
	}
	p := programs{dirs: map[string]string{}, version: pin.Version}
	for _, one := range append(slices.Clone(part.Others), k) {
		if p.dirs[one.Dir], err = one.Ensure(ctx, w, parts, home); err != nil {
			return programs{}, err
		}
	}
	p.builtin, err = ensureImages(ctx, home)
	return p, err
}

// count says how many nodes there are.
func count(nodes int) string {
	if nodes == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", nodes)
}

func runParts(ctx context.Context, _ place, args []string) error {
	fs := flag.NewFlagSet("parts", flag.ContinueOnError)
	minor := fs.String("k8s", "1.37", "minor version of Kubernetes")
	words, err := parseMixed(fs, args)
	if err != nil {
		return err
	}
	if len(words) > 0 {
		return fmt.Errorf("%w: parts takes no arguments, got %q", errUsage, words)
	}
	if err := checkPrograms(ctx, os.Stdout); err != nil {
		return err
	}
	p, err := ensurePrograms(ctx, os.Stdout, *minor)
	if err != nil {
		return err
	}
	for _, dir := range []string{"etcd", "containerd", "runc", "kubernetes"} {
		fmt.Printf("%-12s %s\n", dir, p.dirs[dir])
	}
	return nil
}

func runUp(ctx context.Context, p place, args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if err := checkMachine(ctx, os.Stdout); err != nil {
		return err
	}
	programs, err := ensurePrograms(ctx, os.Stdout, o.kubernetes)
	if err != nil {
		return err
	}
	lock, err := lockPlace(p)
	if err != nil {
		return err
	}
	defer unlockPlace(p, lock)
	if done, err := settleOld(p, o); done || err != nil {
		return err
	}
	began := time.Now()
	c, err := newCluster(p, o)
	if err == nil {
		err = c.start(ctx, o, programs)
	}
	if err != nil {
		if o.keep {
			return fmt.Errorf("start cluster %s: %w\n(--keep: what there is of it stays until: go run . down)", p.name, err)
		}
		if derr := tearDown(p); derr != nil && !errors.Is(derr, errNotUp) {
			return fmt.Errorf("start cluster %s: %w", p.name, errors.Join(err, fmt.Errorf("clean up: %w", derr)))
		}
		return fmt.Errorf("start cluster %s: %w\n(nothing of it was left behind; --keep would leave it)", p.name, err)
	}
	fmt.Printf("cluster %s is up: %s, Kubernetes %s, %s\n", p.name, count(o.nodes), programs.version, seconds(time.Since(began)))
	fmt.Printf("  export KUBECONFIG=%s\n  use:  %s get nodes     (or: go run . kubectl get nodes)\n  stop: go run . down\n", p.file("kubeconfig"), c.rec.Kubectl)
	return nil
}

// settleOld looks at what an earlier start left. It says true when that is
// already the cluster that is wanted; what is broken or half-made it removes.
func settleOld(p place, o options) (bool, error) {
	r, err := loadRecord(p)
	if errors.Is(err, errNotUp) {
		return false, removeEmptyPlace(p)
	}
	if err != nil {
		return false, err
	}
	boot, err := bootID()
	if err != nil {
		return false, err
	}
	dead := r.dead()
	if r.Up && r.BootID == boot && len(dead) == 0 {
		var have []string
		for _, m := range r.nodes() {
			have = append(have, m.Simulated)
		}
		if r.Kubernetes != o.kubernetes || !slices.Equal(have, o.machines) {
			return false, fmt.Errorf("cluster %s is up with other nodes or another version (%d nodes, Kubernetes %s, machines %q); end it first with: go run . down", p.name, len(have), r.Kubernetes, have)
		}
		fmt.Printf("cluster %s is already up: %s\n  export KUBECONFIG=%s\n", p.name, count(len(have)), p.file("kubeconfig"))
		return true, nil
	}
	switch {
	case r.BootID != boot:
		fmt.Printf("removing cluster %s, which ended when this machine was booted\n", p.name)
	case !r.Up:
		fmt.Printf("removing what an interrupted start of cluster %s left\n", p.name)
	default:
		fmt.Printf("removing cluster %s, of which %s ended\n", p.name, strings.Join(dead, ", "))
	}
	if err := tearDown(p); err != nil {
		return false, fmt.Errorf("remove old cluster %s: %w", p.name, err)
	}
	return false, nil
}

// newCluster makes the state directory and writes down everything that will
// exist outside it, before it does.
func newCluster(p place, o options) (*cluster, error) {
	if entries, err := os.ReadDir(p.dir); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("use %s: it is not empty and holds no cluster; give another --dir", p.dir)
	}
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	defer mounts.Close()
	groups, err := box.FindCgroups(mounts)
	if err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	r := &record{
		Version: recordVersion, Name: p.name, Kubernetes: o.kubernetes, BootID: boot,
		Link: p.link(), Cgroup: box.Group{Cgroups: groups, Path: p.cgroup()},
		Machines: []machine{{Name: "control-plane"}},
	}
	for i := 1; i <= o.nodes; i++ {
		r.Machines = append(r.Machines, machine{Name: fmt.Sprintf("node-%d", i), Number: i, Simulated: o.machines[i-1]})
	}
	c := &cluster{place: p, rec: r}
	// The record is the first thing in the directory, so that the rest is known to
	// be ours.
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	if err := r.save(p); err != nil {
		return nil, err
	}
	for _, dir := range []string{p.file("logs"), p.file("machines")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create state directory: %w", err)
		}
	}
	return c, nil
}

// start makes the machines and starts their parts.
func (c *cluster) start(ctx context.Context, o options, p programs) error {
	c.rec.Kubectl = filepath.Join(p.dirs["kubernetes"], "kubectl")
	if err := c.makeHub(ctx, p); err != nil {
		return err
	}
	keys, err := c.writeControlPlane()
	if err != nil {
		return err
	}
	restrict, err := mayRaiseOOM()
	if err != nil {
		return err
	}
	s := &starter{cluster: c, hub: c.rec.Machines[0], options: o, programs: p, keys: keys, restrictOOM: !restrict, apiReady: make(chan struct{})}
	if s.client, err = newClient(keys.ca.Cert, keys.admin); err != nil {
		return err
	}
	jobs := []func(context.Context) error{s.controlPlane}
	for _, m := range c.rec.nodes() {
		jobs = append(jobs, func(ctx context.Context) error { return s.node(ctx, m) })
	}
	if err := together(ctx, jobs...); err != nil {
		return err
	}
	return c.change(func(r *record) { r.Up = true })
}

// makeHub chooses the cluster's networks and makes the box that all others are
// connected to. From the choice until the networks are taken, no other launcher
// may choose.
func (c *cluster) makeHub(ctx context.Context, p programs) error {
	home, err := cache()
	if err != nil {
		return err
	}
	lock, err := part.Lock(ctx, filepath.Join(home, "networks.lock"), nil)
	if err != nil {
		return err
	}
	defer lock.Close()
	routes, err := readRoutes()
	if err != nil {
		return err
	}
	n, err := pickNet(c.name, routes)
	if err != nil {
		return err
	}
	err = c.change(func(r *record) {
		r.Net = n
		for i := range r.Machines {
			if m := &r.Machines[i]; m.Number == 0 {
				m.Address = hubAddress(n)
			} else {
				m.Address = nodeAddress(n, m.Number)
			}
		}
	})
	if err != nil {
		return err
	}
	hub, err := c.makeBox(c.rec.Machines[0], p, box.Spec{})
	if err != nil {
		return err
	}
	return connectHub(c.rec.box(hub), c.rec.Link, n)
}

// makeBox makes the box of a machine, and returns the machine with its first
// process, which it has recorded.
func (c *cluster) makeBox(m machine, p programs, spec box.Spec) (machine, error) {
	group := c.rec.Cgroup.Child(m.Name)
	if err := group.Create(true); err != nil {
		return m, err
	}
	if err := group.Child("system").Create(false); err != nil {
		return m, err
	}
	root := c.root(m)
	if err := box.Prepare(root, m.Name, p.init); err != nil {
		return m, err
	}
	spec.Hostname, spec.Root, spec.Init = m.Name, root, "/opt/nvdra/init"
	for name, dir := range p.dirs {
		spec.Binds = append(spec.Binds, box.Bind{From: dir, To: "/opt/nvdra/" + name})
	}
	init, err := box.Start(spec, group.Child("system"))
	if err != nil {
		return m, err
	}
	m.Init = init
	return m, c.change(func(r *record) { r.Machines[m.Number] = m })
}

// root is the directory that is / on a machine.
func (c *cluster) root(m machine) string { return c.file("machines", m.Name) }

// put writes a file of a machine. Keys are among them, so only root may read it.
func (c *cluster) put(m machine, path string, raw []byte) error {
	path = filepath.Join(c.root(m), path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

func (c *cluster) putObject(m machine, path string, v any) error {
	raw, err := encode(v)
	if err != nil {
		return err
	}
	return c.put(m, path, raw)
}

// keys are what later parts of a start need of the cluster's certificates.
type keys struct {
	ca    *pki.Authority
	admin pki.Pair
}

// server is the API server's address for every client outside its box.
func (c *cluster) server() string { return "https://" + hubAddress(c.rec.Net) + ":6443" }

// writeControlPlane makes the cluster's certificates and the control plane's files.
func (c *cluster) writeControlPlane() (keys, error) {
	ca, err := pki.New("nvdra-" + c.name)
	if err != nil {
		return keys{}, err
	}
	hub, hubIP := c.rec.Machines[0], hubAddress(c.rec.Net)
	server, err1 := ca.Server("control-plane", hubIP, serviceAPI, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	kubelet, err2 := ca.Client("kube-apiserver-kubelet-client", "system:masters")
	admin, err3 := ca.Client("admin", "system:masters")
	manager, err4 := ca.Client("system:kube-controller-manager")
	scheduler, err5 := ca.Client("system:kube-scheduler")
	accounts, err6 := pki.Key()
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return keys{}, err
	}
	frontCA, err := pki.New("nvdra-" + c.name + "-front-proxy")
	if err != nil {
		return keys{}, err
	}
	front, err := frontCA.Client("front-proxy-client")
	if err != nil {
		return keys{}, err
	}
	for name, raw := range map[string][]byte{
		"ca.crt": ca.Cert, "ca.key": ca.Key, "server.crt": server.Cert, "server.key": server.Key,
		"kubelet-client.crt": kubelet.Cert, "kubelet-client.key": kubelet.Key, "sa.pub": accounts.Cert, "sa.key": accounts.Key,
		"front-proxy-ca.crt": frontCA.Cert, "front-proxy.crt": front.Cert, "front-proxy.key": front.Key,
	} {
		if err := c.put(hub, pkiDir+name, raw); err != nil {
			return keys{}, err
		}
	}
	for name, user := range map[string]pki.Pair{"controller-manager.conf": manager, "scheduler.conf": scheduler} {
		if err := c.putObject(hub, confDir+name, kubeconfig(c.server(), ca.Cert, user)); err != nil {
			return keys{}, err
		}
	}
	raw, err := encode(kubeconfig(c.server(), ca.Cert, admin))
	if err != nil {
		return keys{}, err
	}
	if err := os.WriteFile(c.file("kubeconfig"), raw, 0o600); err != nil {
		return keys{}, fmt.Errorf("write kubeconfig: %w", err)
	}
	return keys{ca: ca, admin: admin}, nil
}

// A starter starts the parts of a cluster whose networks exist.
type starter struct {
	*cluster
	options
	programs
	keys
	client
	hub         machine
	restrictOOM bool
	apiReady    chan struct{}
	printing    sync.Mutex
}

// up starts a part, waits until it is well, and says how long that took.
func (s *starter) up(ctx context.Context, m machine, name string, args []string, limit time.Duration, well func(context.Context) error) error {
	r, err := s.launch(m, name, args)
	if err != nil {
		return err
	}
	if err := s.await(ctx, r, limit, well); err != nil {
		return err
	}
	s.say(name, r.began)
	return nil
}

func (s *starter) say(name string, began time.Time) {
	s.printing.Lock()
	defer s.printing.Unlock()
	fmt.Printf("%-28s %s\n", name, seconds(time.Since(began)))
}

// controlPlane starts what serves the cluster's API and acts on it.
func (s *starter) controlPlane(ctx context.Context) error {
	m, hub := s.hub, hubAddress(s.rec.Net)
	if err := s.up(ctx, m, "etcd", etcdArgs(hub), 30*time.Second, s.healthy("http://"+hub+":2381/readyz")); err != nil {
		return err
	}
	if err := s.up(ctx, m, "kube-apiserver", apiserverArgs(hub, s.gates, s.runtimeConfig), 2*time.Minute, s.healthy(s.server()+"/readyz")); err != nil {
		return err
	}
	for _, obj := range readClaims() {
		url := s.server() + "/apis/rbac.authorization.k8s.io/v1/" + strings.ToLower(obj["kind"].(string)) + "s"
		if err := s.do(ctx, http.MethodPost, url, obj, nil); err != nil {
			return fmt.Errorf("let nodes read claims: %w", err)
		}
	}
	close(s.apiReady)
	return together(ctx,
		func(ctx context.Context) error {
			// No pod is admitted before its namespace has a service account.
			return s.up(ctx, m, "kube-controller-manager", controllerManagerArgs(s.gates), time.Minute, s.exists(s.server()+"/api/v1/namespaces/default/serviceaccounts/default"))
		},
		func(ctx context.Context) error {
			return s.up(ctx, m, "kube-scheduler", schedulerArgs(s.gates), time.Minute, s.healthy("https://"+hub+":10259/healthz"))
		},
	)
}

// node makes one node and starts its parts: those that need no API server at
// once, the others as soon as it answers.
func (s *starter) node(ctx context.Context, m machine) error {
	spec, err := s.nodeSpec(m)
	if err != nil {
		return err
	}
	if m, err = s.makeBox(m, s.programs, spec); err != nil {
		return err
	}
	b := s.rec.box(m)
	if err := connectNode(s.rec.box(s.hub), b, s.rec.Net, m.Number, s.options.nodes); err != nil {
		return err
	}
	if err := s.writeNode(m); err != nil {
		return err
	}
	err = together(ctx,
		func(ctx context.Context) error { return s.runtime(ctx, m, b) },
		func(ctx context.Context) error { return s.simulator(ctx, m, b) },
	)
	if err != nil {
		return err
	}
	select {
	case <-s.apiReady:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return together(ctx,
		func(ctx context.Context) error {
			return s.up(ctx, m, m.Name+"/kube-proxy", kubeProxyArgs(m.Name, s.rec.Net), time.Minute, s.healthy("http://"+m.Address+":10256/healthz"))
		},
		func(ctx context.Context) error {
			return s.up(ctx, m, m.Name+"/kubelet", kubeletArgs(m), 2*time.Minute, s.nodeReady(s.server(), m.Name))
		},
	)
}

// nodeSpec says what a node shows of this machine besides the parts.
func (s *starter) nodeSpec(m machine) (box.Spec, error) {
	cni, err := cniPlugins()
	if err != nil {
		return box.Spec{}, err
	}
	spec := box.Spec{Binds: []box.Bind{{From: cni, To: "/opt/nvdra/cni"}}}
	if m.Simulated != "" {
		spec.Binds = append(spec.Binds, box.Bind{From: s.gpusim, To: "/opt/nvdra/gpusim"}, box.Bind{From: s.gpusimFiles, To: "/opt/nvdra/gpusim-files"})
		if isFile(m.Simulated) {
			abs, err := filepath.Abs(m.Simulated)
			if err != nil {
				return box.Spec{}, fmt.Errorf("find machine profile: %w", err)
			}
			spec.Binds = append(spec.Binds, box.Bind{From: abs, To: profilePath(m.Simulated)})
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return box.Spec{}, fmt.Errorf("stat file system of %s: %w", s.dir, err)
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC { // we are in a container ourselves
		spec.TmpfsDirs = []string{"/var/lib/containerd"}
	}
	return spec, nil
}

// isFile says whether a simulated machine is given as a file rather than a name.
func isFile(machine string) bool {
	return strings.Contains(machine, "/") || strings.HasSuffix(machine, ".txtar")
}

func profilePath(machine string) string { return "/opt/nvdra/machine-" + filepath.Base(machine) }

func gpusimArgs(machine string) []string {
	if isFile(machine) {
		machine = profilePath(machine)
	}
	return []string{"/opt/nvdra/gpusim", "run", "--machine", machine, "--root", driverRoot, "--files", "/opt/nvdra/gpusim-files"}
}

// writeNode writes the files of one node.
func (s *starter) writeNode(m machine) error {
	client, err1 := s.ca.Client("system:node:"+m.Name, "system:nodes")
	serving, err2 := s.ca.Server("system:node:"+m.Name, m.Address, m.Name, "127.0.0.1", "localhost")
	proxy, err3 := s.ca.Client("system:kube-proxy", "system:node-proxier")
	config, err4 := kubeletConfig(m, s.rec.Cgroup.Child(m.Name).Path, s.gates)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	for path, raw := range map[string][]byte{
		pkiDir + "ca.crt": s.ca.Cert, pkiDir + "kubelet.crt": serving.Cert, pkiDir + "kubelet.key": serving.Key,
		containerd: []byte(containerdConfig(image.PauseName, s.restrictOOM)),
	} {
		if err := s.put(m, path, raw); err != nil {
			return err
		}
	}
	for path, v := range map[string]object{
		confDir + "kubelet.conf":    kubeconfig(s.server(), s.ca.Cert, client),
		confDir + "kube-proxy.conf": kubeconfig(s.server(), s.ca.Cert, proxy),
		confDir + "kubelet.yaml":    config,
		cniConf:                     cniConfig(s.rec.Net, m.Number),
	} {
		if err := s.putObject(m, path, v); err != nil {
			return err
		}
	}
	return nil
}

// runtime starts a node's containerd and gives it the images every cluster has.
func (s *starter) runtime(ctx context.Context, m machine, b box.Box) error {
	if err := s.up(ctx, m, m.Name+"/containerd", []string{"containerd", "-c", containerd}, time.Minute, listening(b.File(socket))); err != nil {
		return err
	}
	began := time.Now()
	for _, archive := range s.archives {
		if err := importArchive(b, m.Name, archive); err != nil {
			return err
		}
	}
	s.say(m.Name+"/images", began)
	return nil
}

// simulator starts a node's simulated driver, if it has one.
func (s *starter) simulator(ctx context.Context, m machine, b box.Box) error {
	if m.Simulated == "" {
		return nil
	}
	return s.up(ctx, m, m.Name+"/gpusim", gpusimArgs(m.Simulated), time.Minute, func(context.Context) error {
		_, err := os.Stat(b.File(driverRoot + "/validations/.driver-ctr-ready"))
		return err
	})
}
