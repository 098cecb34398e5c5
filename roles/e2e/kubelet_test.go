package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// callTimeout is how long kubelet waits for a plugin.
const callTimeout = 45 * time.Second

// A kubelet does with a plugin what kubelet does: it finds its registration
// socket, asks who it is, tells it that it is registered, and calls the newest
// plugin of a driver when a pod needs a claim, on a connection it keeps.
type kubelet struct {
	registry string

	mu      sync.Mutex
	plugins []*registered // in the order of their registration
	trouble map[string]error
	stop    context.CancelFunc
	stopped chan struct{}
}

// registered is a plugin that kubelet knows.
type registered struct {
	socket   string // for registration; the plugin is gone when this is
	file     fs.FileInfo
	driver   string
	endpoint string
	conn     *grpc.ClientConn
}

// startKubelet begins to watch the directory in which plugins register.
func startKubelet(registry string) *kubelet {
	ctx, stop := context.WithCancel(context.Background())
	k := &kubelet{registry: registry, trouble: map[string]error{}, stop: stop, stopped: make(chan struct{})}
	go k.watch(ctx)
	return k
}

// close ends it. Its connections end, as those of a kubelet that is restarted.
func (k *kubelet) close() {
	k.stop()
	<-k.stopped
	k.drop()
}

// drop ends the connections; the next call dials anew.
func (k *kubelet) drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.plugins {
		p.hangUp()
	}
}

func (p *registered) hangUp() {
	if p.conn != nil {
		p.conn.Close() // whoever is calling gets an error, and that is the purpose
		p.conn = nil
	}
}

func (k *kubelet) watch(ctx context.Context) {
	defer close(k.stopped)
	for ctx.Err() == nil {
		k.look(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// look compares the directory with what is registered.
func (k *kubelet) look(ctx context.Context) {
	sockets, err := filepath.Glob(filepath.Join(k.registry, "*.sock"))
	if err != nil {
		panic(err) // the pattern is ours
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plugins = slices.DeleteFunc(k.plugins, func(p *registered) bool {
		now, err := os.Stat(p.socket)
		// A file system may give the same inode out again at once.
		gone := err != nil || !os.SameFile(now, p.file) || !now.ModTime().Equal(p.file.ModTime())
		if gone {
			p.hangUp()
		}
		return gone
	})
	for _, socket := range sockets {
		if slices.ContainsFunc(k.plugins, func(p *registered) bool { return p.socket == socket }) {
			continue
		}
		p, err := register(ctx, socket)
		if err != nil {
			k.trouble[socket] = err // and again at the next look, as kubelet does
			continue
		}
		delete(k.trouble, socket)
		k.plugins = append(k.plugins, p)
	}
}

// register asks whoever listens on a socket who it is, and accepts it.
func register(ctx context.Context, socket string) (*registered, error) {
	info, err := os.Stat(socket)
	if err != nil {
		return nil, err
	}
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close() // nothing can be lost
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client := registration.NewRegistrationClient(conn)
	plugin, err := client.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask %s who it is: %w", socket, err)
	}
	status := &registration.RegistrationStatus{PluginRegistered: true}
	switch {
	case plugin.Type != registration.DRAPlugin:
		status = &registration.RegistrationStatus{Error: "its type is " + plugin.Type}
	case !slices.Contains(plugin.SupportedVersions, drapb.DRAPluginService):
		status = &registration.RegistrationStatus{Error: "it speaks " + strings.Join(plugin.SupportedVersions, ", ")}
	}
	if _, err := client.NotifyRegistrationStatus(ctx, status); err != nil {
		return nil, fmt.Errorf("tell %s that it is registered: %w", socket, err)
	}
	if status.Error != "" {
		return nil, fmt.Errorf("register %s: %s", socket, status.Error)
	}
	return &registered{socket: socket, file: info, driver: plugin.Name, endpoint: plugin.Endpoint}, nil
}

func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	return conn, nil
}

// errNoPlugin says that a driver has not registered.
var errNoPlugin = errors.New("no plugin is registered")

// plugin is a client of the newest plugin of a driver.
func (k *kubelet) plugin(driver string) (drapb.DRAPluginClient, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range slices.Backward(k.plugins) {
		if p.driver != driver {
			continue
		}
		if p.conn == nil {
			conn, err := dial(p.endpoint)
			if err != nil {
				return nil, err
			}
			p.conn = conn
		}
		return drapb.NewDRAPluginClient(p.conn), nil
	}
	why := []error{errNoPlugin}
	for _, err := range k.trouble {
		why = append(why, err)
	}
	return nil, fmt.Errorf("call driver %s: %w", driver, errors.Join(why...))
}

// registered says which sockets of a driver are registered, oldest first.
func (k *kubelet) registered(driver string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for _, p := range k.plugins {
		if p.driver == driver {
			names = append(names, filepath.Base(p.socket))
		}
	}
	return names
}

// prepare has the plugin prepare claims, and returns the answer for each by UID.
func (k *kubelet) prepare(ctx context.Context, driver string, claims []*drapb.Claim) (map[string]*drapb.NodePrepareResourceResponse, error) {
	plugin, err := k.plugin(driver)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		return nil, fmt.Errorf("call driver %s: %w", driver, err)
	}
	return answer.Claims, nil
}

// unprepare has the plugin unprepare claims, and returns what it says against
// it by UID.
func (k *kubelet) unprepare(ctx context.Context, driver string, claims []*drapb.Claim) (map[string]*drapb.NodeUnprepareResourceResponse, error) {
	plugin, err := k.plugin(driver)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return nil, fmt.Errorf("call driver %s: %w", driver, err)
	}
	return answer.Claims, nil
}
