package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// LivenessService is the name that probes ask for; "" is the same.
const LivenessService = "liveness"

// probeLimit ends a probe of our own sockets. It is below the 10 s that the
// pod's probes wait.
const probeLimit = 5 * time.Second

// A Health answers gRPC health probes about a plugin: whether kubelet would be
// served if it called now. It says nothing about GPUs.
type Health struct {
	healthpb.UnimplementedHealthServer
	driver             string
	registration, node string // paths of the sockets
	listener           net.Listener
	failed             func(error)
}

// NewHealth listens on the port (0: any free one) for probes of the plugin
// that cfg describes.
func NewHealth(cfg Config, port int) (*Health, error) {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("serve health probes on --healthcheck-port (HEALTHCHECK_PORT) %d: %w", port, err)
	}
	registration, node := cfg.Driver+"-reg.sock", "dra.sock"
	if cfg.PodUID != "" {
		registration = kubeletplugin.RollingUpdateRegistrarSocketFile(cfg.RegistrarDir, cfg.Driver, cfg.PodUID)
		node = "dra-" + string(cfg.PodUID) + ".sock"
	}
	return &Health{
		driver:       cfg.Driver,
		registration: filepath.Join(cfg.RegistrarDir, registration),
		node:         filepath.Join(cfg.PluginDir, node),
		listener:     l,
		failed:       func(err error) { cfg.Background(fmt.Errorf("answer health probe: %w", err), false) },
	}, nil
}

// Address is where probes are served.
func (h *Health) Address() string { return h.listener.Addr().String() }

// Run serves probes until ctx is done.
func (h *Health) Run(ctx context.Context) error {
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, h)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(h.listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve health probes: %w", err)
	}
	return nil
}

// Check implements the health service.
func (h *Health) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if r.GetService() != "" && r.GetService() != LivenessService {
		return nil, status.Errorf(codes.NotFound, "unknown service %q: ask for %q", r.GetService(), LivenessService)
	}
	answer := healthpb.HealthCheckResponse_SERVING
	if err := h.Probe(ctx); err != nil {
		h.failed(err)
		answer = healthpb.HealthCheckResponse_NOT_SERVING
	}
	return &healthpb.HealthCheckResponse{Status: answer}, nil
}

// Probe calls the plugin as kubelet would. It finds a socket file that was
// removed, which the process that listens on it does not notice.
func (h *Health) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	return errors.Join(
		h.call(ctx, h.registration, func(c *grpc.ClientConn) error {
			info, err := registerpb.NewRegistrationClient(c).GetInfo(ctx, &registerpb.InfoRequest{})
			if err == nil && info.GetName() != h.driver {
				err = fmt.Errorf("%q answers instead of %q", info.GetName(), h.driver)
			}
			return err
		}),
		h.call(ctx, h.node, func(c *grpc.ClientConn) error {
			_, err := drapb.NewDRAPluginClient(c).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
			return err
		}),
	)
}

func (h *Health) call(ctx context.Context, socket string, f func(*grpc.ClientConn) error) error {
	c, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		err = errors.Join(f(c), c.Close())
	}
	if err != nil {
		return fmt.Errorf("call %s: %w", socket, err)
	}
	return nil
}
