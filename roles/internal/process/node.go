package process

import (
	"path/filepath"

	"github.com/urfave/cli/v2"
)

// Node is what a role that works on one node can be told besides Common.
type Node struct {
	NodeName            string
	Namespace           string // where this pod runs
	PodUID              string // empty: no second plugin beside this one during an update
	CDIRoot             string // where CDI specs are written
	DriverRoot          string // the driver's root directory, as the host sees it
	ContainerDriverRoot string // the same directory, as this process sees it
	HostRoot            string // where this process sees the host's proc, sys and dev
	CDIHookPath         string // as the host sees it; empty: install our own
	RegistrarDir        string // kubelet's plugins_registry
	PluginsDir          string // kubelet's plugins; ours are below it
	HealthcheckPort     int    // gRPC health: none if negative, any if 0
}

func (n *Node) flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "node-name", EnvVars: []string{"NODE_NAME"}, Required: true, Destination: &n.NodeName,
			Usage: "name of the Node this process runs on"},
		&cli.StringFlag{Name: "namespace", EnvVars: []string{"NAMESPACE"}, Value: "default", Destination: &n.Namespace,
			Usage: "namespace this process runs in"},
		&cli.StringFlag{Name: "pod-uid", EnvVars: []string{"POD_UID"}, Destination: &n.PodUID,
			Usage: "UID of the pod this process runs in; lets a new pod take over from an old one without a gap"},
		&cli.StringFlag{Name: "cdi-root", EnvVars: []string{"CDI_ROOT"}, Value: "/etc/cdi", Destination: &n.CDIRoot,
			Usage: "directory for CDI specs, one that the container runtime reads"},
		&cli.StringFlag{Name: "nvidia-driver-root", Aliases: []string{"host_driver-root"}, EnvVars: []string{"NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT"}, Value: "/", Destination: &n.DriverRoot,
			Usage: "root directory of the NVIDIA driver on the host, such as / or /run/nvidia/driver"},
		&cli.StringFlag{Name: "container-driver-root", EnvVars: []string{"DRIVER_ROOT_CTR_PATH"}, Value: "/driver-root", Destination: &n.ContainerDriverRoot,
			Usage: "where the driver's root directory is mounted for this process"},
		&cli.StringFlag{Name: "host-root", EnvVars: []string{"HOST_ROOT"}, Value: "/", Destination: &n.HostRoot,
			Usage: "where the host's proc, sys and dev are found by this process"},
		&cli.StringFlag{Name: "nvidia-cdi-hook-path", EnvVars: []string{"NVIDIA_CDI_HOOK_PATH"}, Destination: &n.CDIHookPath,
			Usage: "nvidia-cdi-hook on the host; empty installs the one that comes with this program"},
		&cli.StringFlag{Name: "kubelet-registrar-directory-path", EnvVars: []string{"KUBELET_REGISTRAR_DIRECTORY_PATH"}, Value: "/var/lib/kubelet/plugins_registry", Destination: &n.RegistrarDir,
			Usage: "directory in which kubelet looks for plugins"},
		&cli.StringFlag{Name: "kubelet-plugins-directory-path", EnvVars: []string{"KUBELET_PLUGINS_DIRECTORY_PATH"}, Value: "/var/lib/kubelet/plugins", Destination: &n.PluginsDir,
			Usage: "directory below which this process keeps its socket and what it has to remember"},
		&cli.IntFlag{Name: "healthcheck-port", EnvVars: []string{"HEALTHCHECK_PORT"}, Value: -1, Destination: &n.HealthcheckPort,
			Usage: "port of the gRPC health service; negative for none, 0 for any free one"},
	}
}

// check wants absolute paths: most of them are read on both sides of a mount,
// where a relative one means two different things.
func (n *Node) check() error {
	var errs []error
	for _, p := range []struct{ flag, env, path string }{
		{"cdi-root", "CDI_ROOT", n.CDIRoot},
		{"nvidia-driver-root", "NVIDIA_DRIVER_ROOT", n.DriverRoot},
		{"container-driver-root", "DRIVER_ROOT_CTR_PATH", n.ContainerDriverRoot},
		{"host-root", "HOST_ROOT", n.HostRoot},
		{"kubelet-registrar-directory-path", "KUBELET_REGISTRAR_DIRECTORY_PATH", n.RegistrarDir},
		{"kubelet-plugins-directory-path", "KUBELET_PLUGINS_DIRECTORY_PATH", n.PluginsDir},
	} {
		if !filepath.IsAbs(p.path) {
			errs = append(errs, Usagef("--%s (%s) is %q: want an absolute path", p.flag, p.env, p.path))
		}
	}
	if n.CDIHookPath != "" && !filepath.IsAbs(n.CDIHookPath) {
		errs = append(errs, Usagef("--nvidia-cdi-hook-path (NVIDIA_CDI_HOOK_PATH) is %q: want an absolute path or nothing", n.CDIHookPath))
	}
	if n.HealthcheckPort > 65535 {
		errs = append(errs, Usagef("--healthcheck-port (HEALTHCHECK_PORT) is %d: want at most 65535", n.HealthcheckPort))
	}
	return oneLine(errs)
}
