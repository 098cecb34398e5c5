package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A plugin is a process of the product with the pod it stands for. Its child
// is replaced when it is started again, as the container of a pod is.
type plugin struct {
	name    string
	pod     types.UID
	config  string // kubeconfig
	args    []string
	env     []string
	wrap    []string // program that starts it, with arguments
	starts  int
	child   *child // nil before the first start
	address string // of metrics and health
}

// defaultPlugin is what a verb means that names no process.
const defaultPlugin = "gpu-plugin"

// find finds a process by the name it was started under.
func (w *world) find(name string) (*plugin, error) {
	p, ok := w.plugins[name]
	if !ok || p.child == nil {
		return nil, fmt.Errorf("find process %s: it was never started", name)
	}
	return p, nil
}

// named takes the name of a process from the front of the arguments.
func (w *world) named(args []string) (*plugin, []string, error) {
	name := defaultPlugin
	if len(args) > 0 && w.plugins[args[0]] != nil {
		name, args = args[0], args[1:]
	}
	p, err := w.find(name)
	return p, args, err
}

// newPlugin makes the pod of a process.
func (w *world) newPlugin(ctx context.Context, name string) (*plugin, error) {
	token, uid, err := w.api.pluginToken(ctx, w.node, w.node.Name+"-"+name)
	if err != nil {
		return nil, err
	}
	p := &plugin{name: name, pod: uid, config: filepath.Join(w.dir, "kubeconfig-"+name)}
	return p, w.api.writeKubeconfig(p.config, w.proxy.address, token)
}

// environ is what the pod's manifest gives the process, with the directories
// where this node has them.
func (w *world) environOf(p *plugin) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"NODE_NAME=" + w.node.Name, "POD_UID=" + string(p.pod), "NAMESPACE=" + pluginNamespace,
		"KUBECONFIG=" + p.config, "CDI_ROOT=" + w.cdiRoot(),
		"NVIDIA_DRIVER_ROOT=/run/nvidia/driver", "DRIVER_ROOT_CTR_PATH=" + w.machineRoot(), "HOST_ROOT=" + w.machineRoot(),
		"NVIDIA_CDI_HOOK_PATH=" + w.programs.hook,
		"KUBELET_REGISTRAR_DIRECTORY_PATH=" + w.registry(), "KUBELET_PLUGINS_DIRECTORY_PATH=" + w.pluginsDir(),
		"HTTP_ENDPOINT=127.0.0.1:0", "HEALTHCHECK_PORT=0",
	}
	for _, set := range p.env {
		name, _, _ := strings.Cut(set, "=")
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, set)
	}
	return env
}

// start starts the process and waits until it serves metrics, or has ended.
func (w *world) start(p *plugin) error {
	if p.child != nil && !p.child.ended() {
		return fmt.Errorf("start %s: it runs", p.name)
	}
	p.starts++
	program, args := w.programs.nvdra, append([]string{"--role=gpu-plugin"}, p.args...)
	if len(p.wrap) > 0 {
		path, err := exec.LookPath(p.wrap[0])
		if err != nil {
			return fmt.Errorf("start %s: %w", p.name, err)
		}
		args = slices.Concat(p.wrap[1:], []string{program}, args)
		program = path
	}
	log := filepath.Join(w.logDir(), fmt.Sprintf("%s.%d.log", p.name, p.starts))
	var err error
	if p.child, err = startChild(p.name, log, w.environOf(p), program, args...); err != nil {
		return err
	}
	return w.awaitAddress(p)
}

// errEnded says that a process has ended by itself.
var errEnded = errors.New("it has ended")

func (w *world) awaitAddress(p *plugin) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var err error
		if p.address, err = p.said("serve metrics and health", "address"); err == nil {
			return nil
		}
		if p.child.ended() {
			return fmt.Errorf("start %s: %w: %v\n%s", p.name, errEnded, p.child.err, p.complaint())
		}
	}
	return fmt.Errorf("start %s: it says nothing of an address for metrics", p.name)
}

// said is what the log of the running process has under key in the entry with
// a message.
func (p *plugin) said(message, key string) (string, error) {
	entries, err := p.entries()
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if value, ok := e[key].(string); ok && e["msg"] == message {
			return value, nil
		}
	}
	return "", fmt.Errorf("search log of %s: it does not say %q", p.name, message)
}

// entries are the lines of the log of the running process that are complete.
func (p *plugin) entries() ([]map[string]any, error) {
	data, err := os.ReadFile(p.child.log)
	if err != nil {
		return nil, fmt.Errorf("read log of %s: %w", p.name, err)
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var all []map[string]any
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var e map[string]any
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			all = append(all, e)
		}
	}
	return all, nil
}

// complaint is what the process has said last that is no entry of its log.
func (p *plugin) complaint() string {
	var all []string
	for line := range strings.Lines(p.child.tail()) {
		if !strings.HasPrefix(line, "{") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return strings.Join(all, "\n")
}

// get asks the process's own HTTP server.
func (p *plugin) get(path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", fmt.Errorf("ask %s: %w", p.name, err)
	}
	defer answer.Body.Close() // it is read to its end
	data, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(data), err
}
