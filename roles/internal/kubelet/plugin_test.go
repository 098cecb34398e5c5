package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"nvdra/roles/internal/claims"
)

// engine answers as the test says.
type engine struct {
	prepare   func(context.Context, *resourceapi.ResourceClaim) ([]claims.Prepared, error)
	unprepare func(context.Context, claims.Ref) error
}

func (e engine) Prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]claims.Prepared, error) {
	return e.prepare(ctx, c)
}

func (e engine) Unprepare(ctx context.Context, r claims.Ref) error { return e.unprepare(ctx, r) }

func claim(uid string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-" + uid, UID: types.UID(uid)}}
}

func startPlugin(t *testing.T, e engine) (*Plugin, Config, *prometheus.Registry) {
	t.Helper()
	// A unix socket's path has at most 108 bytes, which t.TempDir can exceed.
	dir, err := os.MkdirTemp("", "kp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, d := range []string{"/p", "/r"} {
		if err := os.Mkdir(dir+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := prometheus.NewRegistry()
	cfg := Config{
		Driver: "gpu.nvidia.com", NodeName: "n1", PluginDir: dir + "/p", RegistrarDir: dir + "/r",
		Client: fake.NewClientset(), Engine: e, Registry: r,
		Prepared:   func() map[string]int { return map[string]int{"gpu": 3} },
		Failed:     func(string, claims.Ref, error) {},
		Background: func(error, bool) {},
	}
	p, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p, cfg, r
}

// Claims of one call are prepared at the same time: one that waits does not
// keep another from its answer's work, and each gets its own result.
func TestClaimsOfOneCall(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	p, _, _ := startPlugin(t, engine{prepare: func(_ context.Context, c *resourceapi.ResourceClaim) ([]claims.Prepared, error) {
		both.Done()
		both.Wait() // ends only if the other claim is here as well
		if c.UID == "bad" {
			return nil, errors.New("no")
		}
		return []claims.Prepared{{Device: claims.Device{Requests: []string{"r"}, Pool: "n1", Name: "gpu-0"}, CDIDevices: []string{"a/b=c"}}}, nil
	}})
	got, err := p.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim("good"), claim("bad")})
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if g := got["good"]; g.Err != nil || len(g.Devices) != 1 || g.Devices[0].DeviceName != "gpu-0" || g.Devices[0].CDIDeviceIDs[0] != "a/b=c" {
		t.Errorf("good claim: %+v", g)
	}
	if got["bad"].Err == nil {
		t.Error("bad claim: no error")
	}
}

func gather(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

// Report R185: errors and durations are counted truthfully, in-flight returns
// to nothing, no label grows with the number of claims.
func TestMetrics(t *testing.T) {
	inside, goOn := make(chan struct{}), make(chan struct{})
	p, _, r := startPlugin(t, engine{
		prepare: func(_ context.Context, c *resourceapi.ResourceClaim) ([]claims.Prepared, error) {
			switch c.UID {
			case "slow":
				close(inside)
				<-goOn
			case "bad":
				return nil, errors.New("no")
			case "locked":
				return nil, fmt.Errorf("x: %w", claims.ErrLocked)
			}
			return nil, nil
		},
		unprepare: func(context.Context, claims.Ref) error { return errors.New("busy") },
	})
	before := gather(t, r)
	for _, name := range []string{
		"nvidia_dra_requests_total gpu.nvidia.com prepare", "nvidia_dra_requests_total gpu.nvidia.com unprepare",
		"nvidia_dra_requests_inflight gpu.nvidia.com prepare", "nvidia_dra_request_duration_seconds gpu.nvidia.com prepare",
		"nvidia_dra_node_prepare_errors_total gpu.nvidia.com prepare_devices", "nvidia_dra_node_unprepare_errors_total gpu.nvidia.com unprepare_devices",
	} {
		if v, there := before[name]; !there || v != 0 {
			t.Errorf("at start %s = %v, %v; want 0", name, v, there)
		}
	}
	if n := before["nvidia_dra_prepared_devices gpu gpu.nvidia.com n1"]; n != 3 {
		t.Errorf("prepared devices %v, want 3: %v", n, before)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claim("slow")})
	}()
	<-inside
	if n := gather(t, r)["nvidia_dra_requests_inflight gpu.nvidia.com prepare"]; n != 1 {
		t.Errorf("in flight: %v, want 1", n)
	}
	close(goOn)
	<-done
	p.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim("ok"), claim("bad"), claim("locked")})
	p.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "x"}})
	after := gather(t, r)
	for name, want := range map[string]float64{
		"nvidia_dra_requests_total gpu.nvidia.com prepare":                        4,
		"nvidia_dra_request_duration_seconds gpu.nvidia.com prepare":              4,
		"nvidia_dra_requests_inflight gpu.nvidia.com prepare":                     0,
		"nvidia_dra_node_prepare_errors_total gpu.nvidia.com prepare_devices":     1,
		"nvidia_dra_node_prepare_errors_total gpu.nvidia.com lock_acquire":        1,
		"nvidia_dra_node_unprepare_errors_total gpu.nvidia.com unprepare_devices": 1,
	} {
		if after[name] != want {
			t.Errorf("%s = %v, want %v", name, after[name], want)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d series after, %d before", len(after), len(before))
	}
}

// The plugin is ready when kubelet has registered it and the slices are out,
// and says what is missing until then.
func TestReady(t *testing.T) {
	p, cfg, _ := startPlugin(t, engine{})
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), cfg.RegistrarDir) {
		t.Errorf("before registration: %v", err)
	}
	notify(t, cfg)
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "no devices published") {
		t.Errorf("before publishing: %v", err)
	}
	if err := p.Publish(t.Context(), resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1": {Slices: []resourceslice.Slice{{}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(); err != nil {
		t.Error(err)
	}
}

// Report R025: a socket file that somebody removed makes the probe fail,
// although the process still listens.
func TestHealth(t *testing.T) {
	_, cfg, _ := startPlugin(t, engine{})
	h, err := NewHealth(cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- h.Run(ctx) }()
	conn, err := grpc.NewClient(h.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(service string) (healthpb.HealthCheckResponse_ServingStatus, error) {
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		r, err := healthpb.NewHealthClient(conn).Check(limited, &healthpb.HealthCheckRequest{Service: service})
		return r.GetStatus(), err
	}
	for _, service := range []string{"", "liveness"} {
		if s, err := ask(service); err != nil || s != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v; want SERVING", service, s, err)
		}
	}
	if _, err := ask("readiness"); status.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v, want NotFound", err)
	}
	if err := os.Remove(h.node); err != nil {
		t.Fatal(err)
	}
	if s, err := ask("liveness"); err != nil || s != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("without a socket file: %v, %v; want NOT_SERVING", s, err)
	}
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
