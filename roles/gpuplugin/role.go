// Package gpuplugin is the role that offers the GPUs of a node to the
// scheduler and hands them to containers: --role=gpu-plugin, DRA driver
// gpu.nvidia.com.
//
// What it does with a claim is decided in plan.go and done in package step;
// how that is made safe against crashes is the business of package claims.
// What the node offers is decided in inventory.go and publish.go from what
// machine.go has read.
package gpuplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"nvdra/cdi"
	"nvdra/k8s/client"
	"nvdra/nvml"
	"nvdra/nvml/driver"
	"nvdra/nvml/host"
	"nvdra/roles/gpuplugin/device"
	"nvdra/roles/gpuplugin/step"
	"nvdra/roles/internal/claims"
	"nvdra/roles/internal/kubelet"
	"nvdra/roles/internal/process"
)

// hookProgram is where the image has the hook.
const hookProgram = "/usr/bin/nvidia-cdi-hook"

// config is what the role can be told.
type config struct {
	process.Common
	process.Node
}

// Run runs the role until ctx is done.
func Run(ctx context.Context, env process.Env, args []string) error {
	var cfg config
	return process.Main(ctx, env, process.Program{
		Role:   "gpu-plugin",
		Doc:    "advertise and prepare GPUs and MIG devices on a node",
		Common: &cfg.Common,
		Node:   &cfg.Node,
		Start:  func(ctx context.Context, p *process.Process) error { return start(ctx, p, cfg) },
	}, args)
}

// start puts the parts together and runs them.
func start(ctx context.Context, p *process.Process, cfg config) error {
	clients, err := p.Connect()
	if err != nil {
		return err
	}
	events := client.NewEvents(clients.Kube, device.DriverName, cfg.NodeName, func(err error) { p.Log.Warn("events", zap.Error(err)) })
	box := host.At(cfg.HostRoot)
	bootID, err := box.BootID()
	if err != nil {
		return fmt.Errorf("tell this boot from the last one: %w; --host-root (HOST_ROOT) must have the machine's /proc", err)
	}
	dir := filepath.Join(cfg.PluginsDir, device.DriverName)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make plugin directory: %w", err)
	}
	files, store, err := containerFiles(cfg, dir)
	if err != nil {
		return err
	}
	numbers, err := loadNames(filepath.Join(dir, "names.json"))
	if err != nil {
		p.Log.Warn("device names", zap.Error(err))
	}
	gpus := driver.Open(cfg.ContainerDriverRoot, driver.Setting("--container-driver-root (DRIVER_ROOT_CTR_PATH)"))
	defer gpus.Close() //nolint:errcheck // the process ends anyway
	m := newMachine(gpus, box, numbers)
	report := reporter(p.Log, events, cfg.NodeName)
	engine, err := claims.Open(claims.Config{
		Dir:      filepath.Join(dir, "claims"),
		BootID:   bootID,
		Planner:  planner{pool: cfg.NodeName, gates: cfg.Gates, inventory: m.Inventory},
		Handlers: step.Handlers(step.Deps{Files: files, Machine: m, Host: box}),
		Specs:    store,
		Report:   report,
	})
	if err != nil {
		return err
	}
	// The first reading comes before kubelet can call. Without a driver the
	// plugin starts all the same: what is prepared must be unprepared.
	_ = m.Scan(ctx) // the reading has the error, and the publisher tells it
	take := adoption{dir: dir, bootID: bootID, pool: cfg.NodeName, engine: engine, specs: store, machine: m, box: box, log: p.Log, report: report}
	if err := take.run(ctx); err != nil {
		return err
	}
	if err := engine.Restore(ctx); err != nil {
		p.Log.Error("restore claims", zap.Error(err))
	}
	serve := pluginConfig(p, cfg, dir, clients.Prompt, freshEngine{engine, m}, preparedDevices(engine))
	plugin, err := kubelet.Start(ctx, serve)
	if err != nil {
		return err
	}
	defer plugin.Stop()
	publish := &publisher{
		log: p.Log, nodeName: cfg.NodeName, publish: plugin.Publish, machine: m,
		warn: func(reason, note string) {
			events.Warning(client.NodeReference(cfg.NodeName), reason, "ReadGPUs", note)
		},
	}
	renew := &renewer{version: m.Inventory().driver.Version, restore: engine.Restore, log: p.Log}
	p.SetReady(func() error { return errors.Join(plugin.Ready(), m.Err()) })

	tasks := []process.Task{
		{Name: "watch GPUs", Run: func(ctx context.Context) error {
			// The first publishing waits for the API server; nothing else may.
			publish.Changed(ctx, m.Inventory(), m.Err())
			return m.Watch(ctx, func(inv *inventory, err error) {
				publish.Changed(ctx, inv, err)
				renew.Changed(ctx, inv, err)
			})
		}},
		{Name: "sweep stale claims", Run: func(ctx context.Context) error {
			return engine.Run(ctx, claimReader{clients.Kube}, func(err error) { p.Log.Warn("sweep stale claims", zap.Error(err)) })
		}},
		{Name: "remove temporary CDI specs", Run: func(ctx context.Context) error { return removeTemporary(ctx, store, p.Log) }},
		{Name: "write events", Run: events.Run},
	}
	if cfg.HealthcheckPort >= 0 {
		h, err := kubelet.NewHealth(serve, cfg.HealthcheckPort)
		if err != nil {
			return err
		}
		p.Log.Info("serve health probes", zap.String("address", h.Address()))
		tasks = append(tasks, process.Task{Name: "serve health probes", Run: h.Run})
	}
	return p.Run(ctx, tasks...)
}

// containerFiles finds out how containers get the driver's files.
func containerFiles(cfg config, dir string) (*cdi.Driver, *cdi.Store, error) {
	hook := cfg.CDIHookPath
	if hook == "" {
		hook = filepath.Join(dir, cdi.HookName)
		if err := cdi.InstallHook(hookProgram, hook); err != nil {
			return nil, nil, fmt.Errorf("%w; or set --nvidia-cdi-hook-path (NVIDIA_CDI_HOOK_PATH) to one on the host", err)
		}
	}
	files, err := cdi.NewDriver(cdi.Config{
		ContainerRoot: cfg.ContainerDriverRoot,
		HostRoot:      cfg.DriverRoot,
		HookPath:      hook,
		MachineRoot:   cfg.HostRoot,
	})
	if err != nil {
		return nil, nil, err
	}
	store, err := cdi.OpenStore(cfg.CDIRoot, cdi.ClaimVendor, cdi.ClaimClass)
	if err != nil {
		return nil, nil, err
	}
	return files, store, nil
}

// pluginConfig says who the plugin is to kubelet.
func pluginConfig(p *process.Process, cfg config, dir string, kube kubernetes.Interface, engine kubelet.Engine, prepared func() map[string]int) kubelet.Config {
	return kubelet.Config{
		Driver:       device.DriverName,
		NodeName:     cfg.NodeName,
		PodUID:       types.UID(cfg.PodUID),
		PluginDir:    dir,
		RegistrarDir: cfg.RegistrarDir,
		Client:       kube,
		Engine:       engine,
		Registry:     p.Registry,
		Prepared:     prepared,
		Failed: func(op string, claim claims.Ref, err error) {
			p.Log.Warn(op, zap.Stringer("claim", claim), zap.Error(err))
		},
		Background: func(err error, fatal bool) {
			p.Log.Error("serve kubelet", zap.Error(err), zap.Bool("fatal", fatal))
		},
	}
}

const (
	// abandoned is how old a temporary CDI spec is when its writer must have
	// been killed: writing one takes milliseconds.
	abandoned = 10 * time.Second
	// tidyEvery is how often they are looked for: after a start, which is when
	// there are some, and then rarely.
	tidyEvery = 10 * time.Minute
)

// removeTemporary removes what killed writers of CDI specs have left, this
// process's predecessors or a plugin that ran beside it.
func removeTemporary(ctx context.Context, store *cdi.Store, log *zap.Logger) error {
	wait := time.NewTimer(abandoned)
	defer wait.Stop()
	for {
		if _, err := store.RemoveTemporary(abandoned); err != nil {
			log.Warn("remove temporary CDI specs", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
			wait.Reset(tidyEvery)
		}
	}
}

// A renewer brings the CDI specs of prepared claims up to date when another
// driver has been installed, or the first one has arrived: a container that
// restarts would otherwise ask for files of the old one.
type renewer struct {
	version string // of the driver that the specs were last written for
	restore func(context.Context) error
	log     *zap.Logger
}

// Changed is called after every reading of the machine.
func (r *renewer) Changed(ctx context.Context, inv *inventory, err error) {
	if err != nil || inv.driver.Version == r.version {
		return
	}
	r.version = inv.driver.Version
	if err := r.restore(ctx); err != nil {
		r.log.Error("renew CDI specs for another driver", zap.String("driverVersion", r.version), zap.Error(err))
	}
}

// preparedDevices counts what is prepared, by type. A type of which nothing is
// prepared is counted too, so that a dashboard shows 0 and not a gap.
func preparedDevices(engine *claims.Engine) func() map[string]int {
	return func() map[string]int {
		n := map[string]int{string(device.KindGPU): 0, string(device.KindMIG): 0}
		for _, r := range engine.Records() {
			if r.State != claims.StatePrepared {
				continue
			}
			for _, d := range r.Devices {
				n[d.Type]++
			}
		}
		return n
	}
}

// A freshEngine looks at the machine before it prepares a claim, so that the
// plan is made from what is there now.
type freshEngine struct {
	*claims.Engine
	machine *machine
}

// Prepare implements [kubelet.Engine].
func (e freshEngine) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]claims.Prepared, error) {
	if err := e.machine.Look(ctx); err != nil && !errors.Is(err, nvml.ErrDriver) {
		return nil, fmt.Errorf("prepare claim %s/%s: %w: %w", claim.Namespace, claim.Name, claims.ErrRetry, err)
	}
	return e.Engine.Prepare(ctx, claim)
}

// reporter tells people what the engine has found about a claim: on the claim,
// and on the Node, where whoever is called at night looks first.
func reporter(log *zap.Logger, events *client.Events, nodeName string) func(claims.Ref, string, string) {
	return func(claim claims.Ref, reason, message string) {
		log.Warn("claim", zap.Stringer("claim", claim), zap.String("reason", reason), zap.String("message", message))
		events.Warning(client.NodeReference(nodeName), reason, "RestoreClaims", message)
		if claim.Name != "" {
			events.Warning(corev1.ObjectReference{
				APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			}, reason, "RestoreClaims", message)
		}
	}
}

// claimReader reads claims for the sweep.
type claimReader struct{ kube kubernetes.Interface }

// Get implements claims.Reader.
func (r claimReader) Get(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return r.kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}
