package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// gpuDriver is the DRA driver under test unless a verb says otherwise.
const gpuDriver = "gpu.nvidia.com"

// A world is all there is in one script: a directory, a node, and what runs on it.
type world struct {
	dir      string // short: sockets are below it
	programs programs
	api      *apiServer
	node     *corev1.Node
	proxy    *proxy
	kubelet  *kubelet
	update   bool // rewrite goldens

	sim     *child // gpusim, nil before machine
	plugins map[string]*plugin
	mounts  []string // unmounted at the end, last one first
	marks   map[string]int

	mu   sync.Mutex
	uids map[string]types.UID // of claims by name, of deleted ones too
}

// newWorld makes the node of a script.
func newWorld(ctx context.Context, dir, name string, p programs, api *apiServer) (*world, error) {
	w := &world{dir: dir, programs: p, api: api, plugins: map[string]*plugin{}, uids: map[string]types.UID{}}
	for _, d := range []string{w.cdiRoot(), w.pluginsDir(), w.registry(), w.machineRoot()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
	}
	var err error
	if w.node, err = api.addNode(ctx, name); err != nil {
		return nil, err
	}
	if w.proxy, err = newProxy(api.address); err != nil {
		return nil, err
	}
	w.kubelet = startKubelet(w.registry())
	return w, nil
}

// Directories of the node.
func (w *world) cdiRoot() string     { return filepath.Join(w.dir, "cdi") }
func (w *world) pluginsDir() string  { return filepath.Join(w.dir, "plugins") }
func (w *world) registry() string    { return filepath.Join(w.dir, "registry") }
func (w *world) simRoot() string     { return filepath.Join(w.dir, "machine") }
func (w *world) machineRoot() string { return filepath.Join(w.simRoot(), "driver") } // of driver and kernel
func (w *world) driverDir() string   { return filepath.Join(w.pluginsDir(), gpuDriver) }
func (w *world) claimsDir() string   { return filepath.Join(w.driverDir(), "claims") }
func (w *world) logDir() string      { return filepath.Join(w.dir, "log") }

// close ends everything that runs on the node and takes its directories apart.
func (w *world) close() error {
	var errs []error
	for _, p := range w.plugins {
		if p.child != nil {
			errs = append(errs, p.child.kill())
		}
	}
	if w.sim != nil {
		errs = append(errs, w.sim.stop(5*time.Second))
	}
	w.kubelet.close()
	errs = append(errs, w.proxy.cut())
	for _, m := range slices.Backward(w.mounts) {
		errs = append(errs, unmount(m))
	}
	return errors.Join(append(errs, orphans(w.dir))...)
}

// environ is what scripts know of the world.
func (w *world) environ() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "WORK=" + w.dir, "NODE=" + w.node.Name,
		"CDI=" + w.cdiRoot(), "PLUGINS=" + w.pluginsDir(), "PLUGIN=" + w.driverDir(), "CLAIMS=" + w.claimsDir(),
		"REGISTRY=" + w.registry(), "MACHINE=" + w.machineRoot(), "NVDRA=" + w.programs.nvdra,
	}
}

// claim reads a claim, and remembers its UID for the time when it is gone.
func (w *world) claim(ctx context.Context, name string) (*resourceapi.ResourceClaim, error) {
	c, err := w.api.kube.ResourceV1().ResourceClaims(w.node.Name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get claim: %w", err)
	}
	w.remember(name, c.UID)
	return c, nil
}

func (w *world) remember(name string, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.uids[name] = uid
}

// uidOf is the UID of the newest claim of a name.
func (w *world) uidOf(name string) (types.UID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid, ok := w.uids[name]
	if !ok {
		return "", fmt.Errorf("find claim %s: there has been none of this name; make one with: claim %s gpu", name, name)
	}
	return uid, nil
}

// nameOf is the name of the claim with a UID, or the UID.
func (w *world) nameOf(uid string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, u := range w.uids {
		if string(u) == uid {
			return name
		}
	}
	return uid
}

// toCall is a claim as kubelet names it to a plugin.
func (w *world) toCall(name string) (*drapb.Claim, error) {
	uid, err := w.uidOf(name)
	if err != nil {
		return nil, err
	}
	return &drapb.Claim{Namespace: w.node.Name, Name: name, Uid: string(uid)}, nil
}

// anonymous replaces what differs from run to run: UIDs of claims by the word
// UID, the node's name by NODE, the hook's path by HOOK, the directory by WORK.
func (w *world) anonymous(text string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, uid := range w.uids {
		text = strings.ReplaceAll(text, string(uid), "UID")
	}
	for _, r := range [][2]string{{w.programs.hook, "HOOK"}, {w.dir, "WORK"}, {w.node.Name, "NODE"}} {
		text = strings.ReplaceAll(text, r[0], r[1])
	}
	return text
}
