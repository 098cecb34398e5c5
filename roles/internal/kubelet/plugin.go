package kubelet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"nvdra/roles/internal/claims"
)

// Engine is what the plugin needs of a claim engine; *claims.Engine is one.
type Engine interface {
	Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]claims.Prepared, error)
	Unprepare(ctx context.Context, ref claims.Ref) error
}

// Config says who the plugin is and what it serves.
type Config struct {
	Driver       string    // DRA driver name
	NodeName     string    // node, and name of its pool
	PodUID       types.UID // lets an old and a new pod run side by side; "" for one process at a time
	PluginDir    string    // the driver's own directory, where its socket goes
	RegistrarDir string    // where kubelet looks for plugins

	// Client reads claims and writes slices. It must not throttle: a prepare
	// that waits for a client-side limit keeps a pod waiting.
	Client   kubernetes.Interface
	Engine   Engine
	Registry prometheus.Registerer
	// Prepared counts the prepared devices by type, for the metrics.
	Prepared func() map[string]int

	// Failed is told why a claim was not prepared or unprepared. Kubelet
	// tells the pod; this is for the log.
	Failed func(op string, claim claims.Ref, err error)
	// Background is told what goes wrong beside calls: publishing slices,
	// serving sockets. fatal means that the plugin is of no use any more.
	Background func(err error, fatal bool)
}

// A Plugin is registered with kubelet, or trying to be.
type Plugin struct {
	cfg     Config
	metrics *metrics
	helper  *kubeletplugin.Helper

	published atomic.Bool
	mu        sync.Mutex
	refused   error // why the API server does not take the slices; nil if it does
}

// Start serves the plugin's sockets; kubelet finds them by itself and may
// call at once.
func Start(ctx context.Context, cfg Config) (*Plugin, error) {
	m, err := newMetrics(cfg.Registry, cfg.Driver, cfg.NodeName, cfg.Prepared)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	p := &Plugin{cfg: cfg, metrics: m}
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(cfg.Driver),
		kubeletplugin.NodeName(cfg.NodeName),
		kubeletplugin.KubeClient(cfg.Client),
		kubeletplugin.PluginDataDirectoryPath(cfg.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(cfg.RegistrarDir),
		// The engine has its own locks, per claim and per device, also
		// between two processes; calls for different claims do not wait for
		// each other.
		kubeletplugin.Serialize(false),
		kubeletplugin.HealthService(false),
	}
	if cfg.PodUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(cfg.PodUID))
	}
	p.helper, err = kubeletplugin.Start(ctx, p, options...)
	if err != nil {
		return nil, fmt.Errorf("serve kubelet in %s and %s: %w", cfg.PluginDir, cfg.RegistrarDir, err)
	}
	return p, nil
}

// Stop ends serving. The slices stay: another pod of the driver may have taken
// over, and if none has, kubelet removes them after a while.
func (p *Plugin) Stop() { p.helper.Stop() }

// Publish makes the slices of the node what resources says, now and whenever
// somebody changes them. The first call waits until the API server answers;
// later ones return at once.
func (p *Plugin) Publish(ctx context.Context, resources resourceslice.DriverResources) error {
	p.mu.Lock()
	p.refused = nil
	p.mu.Unlock()
	if err := p.helper.PublishResources(ctx, resources); err != nil {
		return fmt.Errorf("publish slices: %w", err)
	}
	p.published.Store(true)
	return nil
}

// Ready is why kubelet or the scheduler cannot use the plugin yet, or nil.
func (p *Plugin) Ready() error {
	p.mu.Lock()
	refused := p.refused
	p.mu.Unlock()
	switch status := p.helper.RegistrationStatus(); {
	case status == nil:
		return fmt.Errorf("kubelet has not registered driver %s yet; it looks for sockets in %s", p.cfg.Driver, p.cfg.RegistrarDir)
	case !status.PluginRegistered:
		return fmt.Errorf("kubelet refused to register driver %s: %s", p.cfg.Driver, status.Error)
	case !p.published.Load():
		return errors.New("no devices published yet")
	}
	return refused
}

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin]. The claims of a
// call are prepared at the same time.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, all []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return each(all, func(c *resourceapi.ResourceClaim) types.UID { return c.UID }, func(c *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
		return p.prepare(ctx, c)
	}), nil
}

func (p *Plugin) prepare(ctx context.Context, c *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	defer p.metrics.begin(opPrepare)()
	prepared, err := p.cfg.Engine.Prepare(ctx, c)
	if err != nil {
		p.metrics.prepareErrors.WithLabelValues(p.cfg.Driver, errorType(err, errTypePrepare)).Inc()
		p.cfg.Failed(opPrepare, claims.RefOf(c), err)
		return kubeletplugin.PrepareResult{Err: err}
	}
	var result kubeletplugin.PrepareResult
	for _, d := range prepared {
		result.Devices = append(result.Devices, kubeletplugin.Device{
			Requests:     d.Requests,
			PoolName:     d.Pool,
			DeviceName:   d.Name,
			CDIDeviceIDs: d.CDIDevices,
			ShareID:      d.ShareID,
		})
	}
	return result
}

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, all []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return each(all, func(o kubeletplugin.NamespacedObject) types.UID { return o.UID }, func(o kubeletplugin.NamespacedObject) error {
		return p.unprepare(ctx, claims.Ref{UID: o.UID, Namespace: o.Namespace, Name: o.Name})
	}), nil
}

func (p *Plugin) unprepare(ctx context.Context, ref claims.Ref) error {
	defer p.metrics.begin(opUnprepare)()
	err := p.cfg.Engine.Unprepare(ctx, ref)
	if err != nil {
		p.metrics.unprepareErrors.WithLabelValues(p.cfg.Driver, errorType(err, errTypeUnprepare)).Inc()
		p.cfg.Failed(opUnprepare, ref, err)
	}
	return err
}

// each calls f for all elements at the same time and collects the results.
func each[T, R any](all []T, uid func(T) types.UID, f func(T) R) map[types.UID]R {
	results := make([]R, len(all))
	var wg sync.WaitGroup
	for i, one := range all {
		wg.Go(func() { results[i] = f(one) })
	}
	wg.Wait()
	byUID := make(map[types.UID]R, len(all))
	for i, one := range all {
		byUID[uid(one)] = results[i]
	}
	return byUID
}

func errorType(err error, other string) string {
	if errors.Is(err, claims.ErrLocked) {
		return errTypeLock
	}
	return other
}

// HandleError implements [kubeletplugin.DRAPlugin].
func (p *Plugin) HandleError(_ context.Context, err error, msg string) {
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		err = fmt.Errorf("publish slices: the API server does not know some of their fields: %w", err)
		p.refuse(err)
	case apierrors.IsInvalid(err):
		err = fmt.Errorf("publish slices: the API server refuses them: %w", err)
		p.refuse(err)
	default:
		err = fmt.Errorf("%s: %w", msg, err)
	}
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.metrics.prepareErrors.WithLabelValues(p.cfg.Driver, errTypePublish).Inc()
		p.cfg.Background(err, false)
		return
	}
	p.cfg.Background(err, true)
}

func (p *Plugin) refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = err
}

// WatchHealthStatus implements [kubeletplugin.DRAPlugin]. It is never called,
// because the plugin does not offer the health service.
func (p *Plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
