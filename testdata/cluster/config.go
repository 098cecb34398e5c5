package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"nvdra.test/cluster/pki"
)

// JSON is YAML, so the files that Kubernetes reads are Go values encoded as JSON.
type object = map[string]any

func encode(v any) ([]byte, error) {
	raw, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return append(raw, '\n'), nil
}

// kubeconfig is all a client needs in one file.
func kubeconfig(server string, ca []byte, user pki.Pair) object {
	return object{
		"apiVersion": "v1", "kind": "Config", "current-context": "nvdra",
		"clusters": []any{object{"name": "nvdra", "cluster": object{"server": server, "certificate-authority-data": ca}}},
		"users":    []any{object{"name": "me", "user": object{"client-certificate-data": user.Cert, "client-key-data": user.Key}}},
		"contexts": []any{object{"name": "nvdra", "context": object{"cluster": "nvdra", "user": "me"}}},
	}
}

// parseKubeconfig reads what kubeconfig made.
func parseKubeconfig(raw []byte) (ca []byte, user pki.Pair, err error) {
	var k struct {
		Clusters []struct {
			Cluster struct {
				CA []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal(raw, &k); err != nil {
		return nil, pki.Pair{}, fmt.Errorf("parse kubeconfig: %w", err)
	}
	if len(k.Clusters) != 1 || len(k.Users) != 1 {
		return nil, pki.Pair{}, fmt.Errorf("parse kubeconfig: %d clusters and %d users, want one of each", len(k.Clusters), len(k.Users))
	}
	return k.Clusters[0].Cluster.CA, pki.Pair{Cert: k.Users[0].User.Cert, Key: k.Users[0].User.Key}, nil
}

// Where files are on the machines of a cluster.
const (
	pkiDir     = "/etc/kubernetes/pki/"
	confDir    = "/etc/kubernetes/"
	containerd = "/etc/containerd/config.toml"
	cniConf    = "/etc/cni/net.d/10-pod.conflist"
	socket     = "/run/containerd/containerd.sock"
	driverRoot = "/run/nvidia"
)

func etcdArgs(hub string) []string {
	return []string{
		"etcd", "--data-dir=/var/lib/etcd", "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--listen-metrics-urls=http://" + hub + ":2381",
		"--unsafe-no-fsync", // a test cluster does not outlive its machine
		"--log-level=warn",
	}
}

func apiserverArgs(hub, gates, runtimeConfig string) []string {
	args := []string{
		"kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		// An address of loopback would publish no endpoint for the kubernetes service.
		"--bind-address=0.0.0.0", "--advertise-address=" + hub, "--secure-port=6443",
		"--client-ca-file=" + pkiDir + "ca.crt", "--tls-cert-file=" + pkiDir + "server.crt", "--tls-private-key-file=" + pkiDir + "server.key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + pkiDir + "sa.pub", "--service-account-signing-key-file=" + pkiDir + "sa.key",
		"--kubelet-certificate-authority=" + pkiDir + "ca.crt", "--kubelet-client-certificate=" + pkiDir + "kubelet-client.crt", "--kubelet-client-key=" + pkiDir + "kubelet-client.key",
		// The names of the nodes mean nothing to the control plane's resolver.
		"--kubelet-preferred-address-types=InternalIP",
		// For API servers of others that are reached through this one.
		"--requestheader-client-ca-file=" + pkiDir + "front-proxy-ca.crt", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pkiDir + "front-proxy.crt", "--proxy-client-key-file=" + pkiDir + "front-proxy.key",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-cluster-ip-range=" + serviceNet, "--allow-privileged=true",
		// No kube-proxy runs beside the API server, so it calls webhooks by pod address.
		"--enable-aggregator-routing=true",
	}
	if runtimeConfig != "" {
		args = append(args, "--runtime-config="+runtimeConfig)
	}
	return withGates(args, gates)
}

func controllerManagerArgs(gates string) []string {
	return withGates([]string{
		"kube-controller-manager", "--kubeconfig=" + confDir + "controller-manager.conf", "--authentication-kubeconfig=" + confDir + "controller-manager.conf", "--authorization-kubeconfig=" + confDir + "controller-manager.conf",
		"--root-ca-file=" + pkiDir + "ca.crt", "--service-account-private-key-file=" + pkiDir + "sa.key", "--use-service-account-credentials",
		"--cluster-signing-cert-file=" + pkiDir + "ca.crt", "--cluster-signing-key-file=" + pkiDir + "ca.key",
		"--tls-cert-file=" + pkiDir + "server.crt", "--tls-private-key-file=" + pkiDir + "server.key", "--leader-elect=false",
	}, gates)
}

func schedulerArgs(gates string) []string {
	return withGates([]string{
		"kube-scheduler", "--kubeconfig=" + confDir + "scheduler.conf", "--authentication-kubeconfig=" + confDir + "scheduler.conf", "--authorization-kubeconfig=" + confDir + "scheduler.conf",
		"--tls-cert-file=" + pkiDir + "server.crt", "--tls-private-key-file=" + pkiDir + "server.key", "--leader-elect=false",
	}, gates)
}

func withGates(args []string, gates string) []string {
	if gates != "" {
		args = append(args, "--feature-gates="+gates)
	}
	return args
}

func kubeProxyArgs(node string, n int) []string {
	return []string{
		"kube-proxy", "--kubeconfig=" + confDir + "kube-proxy.conf", "--hostname-override=" + node, "--cluster-cidr=" + podNet(n).String(),
		// The nftables mode wants more of the kernel than some machines have; the
		// size of the connection table belongs to the whole machine.
		"--proxy-mode=iptables", "--conntrack-max-per-core=0",
	}
}

func kubeletArgs(m machine) []string {
	args := []string{
		"kubelet", "--kubeconfig=" + confDir + "kubelet.conf", "--config=" + confDir + "kubelet.yaml",
		"--hostname-override=" + m.Name, "--node-ip=" + m.Address, "--v=2",
	}
	if m.Simulated != "" {
		args = append(args, "--node-labels=nvidia.com/gpu.present=true")
	}
	return args
}

// kubeletConfig is the configuration of one node's kubelet.
func kubeletConfig(m machine, cgroup, gates string) (object, error) {
	g, err := parseGates(gates)
	if err != nil {
		return nil, err
	}
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"failCgroupV1": false, "failSwapOn": false, "cgroupDriver": "cgroupfs", "cgroupRoot": cgroup,
		"enforceNodeAllocatable": []string{}, // several nodes share what one machine has
		"address":                m.Address,
		"tlsCertFile":            pkiDir + "kubelet.crt", "tlsPrivateKeyFile": pkiDir + "kubelet.key",
		"authentication":           object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": true}, "x509": object{"clientCAFile": pkiDir + "ca.crt"}},
		"authorization":            object{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + socket,
		"clusterDNS":               []string{serviceDNS}, "clusterDomain": "cluster.local",
		"resolvConf":      "/etc/resolv.conf",
		"volumePluginDir": "/var/lib/kubelet/volumeplugins", // the usual place is below /usr
		// A full disk of the developer must not empty the nodes.
		"evictionHard":                object{"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100,
		"featureGates":                g,
	}, nil
}

// parseGates reads NAME=true,NAME=false.
func parseGates(s string) (map[string]bool, error) {
	gates := map[string]bool{}
	if s == "" {
		return gates, nil
	}
	for pair := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		on, err := strconv.ParseBool(value)
		if !ok || name == "" || err != nil {
			return nil, fmt.Errorf("%w: feature gate %q is not NAME=true or NAME=false", errUsage, pair)
		}
		gates[name] = on
	}
	return gates, nil
}

// containerdConfig allows for a machine where nobody may make a process harder
// for the kernel to kill, as in many containers: then pods are not made so either.
func containerdConfig(pause string, restrictOOM bool) string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = %q

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
restrict_oom_score_adj = %t

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/opt/nvdra/cni"]
conf_dir = "/etc/cni/net.d"
`, socket, pause, restrictOOM)
}

// cniConfig connects the pods of node i.
func cniConfig(n, i int) object {
	return object{"cniVersion": "1.0.0", "name": "pod", "plugins": []any{
		object{
			"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
			"ipam": object{
				"type": "host-local", "dataDir": "/run/cni-ipam",
				"ranges": []any{[]any{object{"subnet": nodePodNet(n, i)}}},
				"routes": []any{object{"dst": "0.0.0.0/0"}},
			},
		},
		object{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true},
	}}
}

// readClaims lets nodes read every claim. The node authorizer allows it per pod,
// but learns of a new claim a moment after kubelet asks; a refused kubelet asks
// again only a minute later.
func readClaims() []object {
	const name = "nvdra:nodes-read-claims"
	return []object{
		{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": object{"name": name},
			"rules": []any{object{"apiGroups": []string{"resource.k8s.io"}, "resources": []string{"resourceclaims"}, "verbs": []string{"get", "list", "watch"}}},
		},
		{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": object{"name": name},
			"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
			"subjects": []any{object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}},
		},
	}
}
