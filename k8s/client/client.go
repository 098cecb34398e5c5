// Package client connects to the Kubernetes API server and tells people there
// what has happened.
//
//	clients, err := client.New(kubeconfig, 5, 10, "nvdra/v1.2.3 (gpu-plugin)")
//	events := client.NewEvents(clients.Kube, "gpu.nvidia.com", nodeName)
//	events.Warning(client.ClaimReference(claim), "PrepareFailed", "Prepare", err.Error())
//
// Nothing here talks to the API server before it is asked to.
package client

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrNoCluster says that there is no kubeconfig and that this is no pod.
var ErrNoCluster = errors.New("no kubeconfig is given and this is not a pod")

// Clients are ways to the same API server. They share their connections.
type Clients struct {
	// Rest is for clients of custom resources, which are served as JSON only.
	Rest *rest.Config
	// HTTP is what Rest's connections are made with.
	HTTP *http.Client
	// Kube is for everything of Kubernetes itself. It keeps to the limits that
	// New was given.
	Kube kubernetes.Interface
	// Prompt has no limit of its own. It is for what kubelet waits for, so that
	// many claims prepared at once do not queue behind each other, nor behind
	// the publishing of slices.
	Prompt kubernetes.Interface
}

const contentProtobuf = "application/vnd.kubernetes.protobuf"

// New reads the kubeconfig file, or what a pod is given if its name is empty,
// and makes clients. qps and burst limit Clients.Kube and whatever is made from
// Clients.Rest; userAgent is how the API server's audit log will name us.
func New(kubeconfig string, qps float32, burst int, userAgent string) (*Clients, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return fromConfig(cfg, qps, burst, userAgent)
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, fmt.Errorf("connect to the API server: %w; set --kubeconfig (KUBECONFIG)", ErrNoCluster)
		}
		if err != nil {
			return nil, fmt.Errorf("connect to the API server from a pod: %w", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	return cfg, nil
}

func fromConfig(cfg *rest.Config, qps float32, burst int, userAgent string) (*Clients, error) {
	cfg.QPS, cfg.Burst, cfg.UserAgent = qps, burst, userAgent
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, err)
	}
	c := &Clients{Rest: cfg, HTTP: shared}

	// Protobuf is a third of JSON's size and far cheaper to decode. All groups
	// of Kubernetes itself serve it, resource.k8s.io and events.k8s.io among
	// them; JSON is the second choice for what does not.
	limited := rest.CopyConfig(cfg)
	limited.ContentType = contentProtobuf
	limited.AcceptContentTypes = contentProtobuf + ",application/json"
	if c.Kube, err = kubernetes.NewForConfigAndClient(limited, shared); err != nil {
		return nil, fmt.Errorf("make client for %s: %w", cfg.Host, err)
	}
	prompt := rest.CopyConfig(limited)
	prompt.QPS, prompt.Burst = -1, 0 // negative: no limit
	if c.Prompt, err = kubernetes.NewForConfigAndClient(prompt, shared); err != nil {
		return nil, fmt.Errorf("make client for %s: %w", cfg.Host, err)
	}
	return c, nil
}
