package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	ourDriver   = "gpu.nvidia.com"
	floorDriver = "floor.example.com"
	devices     = 8 // of the simulated machine, and of the floor
	namespace   = "bench"
	nodeName    = "node-1"
	productNS   = "nvdra"
	daemonSet   = "nvidia-dra-driver-kubelet-plugin"
)

// drivers are the two that are compared, ours first.
var drivers = []string{ourDriver, floorDriver}

// A bench is a cluster with both plugins, and what was measured on it.
type bench struct {
	size    size
	cluster *cluster
	kube    kubernetes.Interface
	config  *rest.Config
	work    string // a directory for our own files
	table   table

	plugin  *corev1.Pod // ours, as installed
	pid     int         // its process
	floor   *started
	clients map[string]*socket // by driver: how to reach them
	env     []string           // of our plugin, as installed
	load    string             // of the machine, at the beginning
}

// newBench makes what does not need a cluster.
func newBench(ctx context.Context, size size, build string) (*bench, error) {
	load, err := loadAverage()
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "nvdra-bench-")
	if err != nil {
		return nil, fmt.Errorf("make work directory: %w", err)
	}
	b := &bench{size: size, work: work, clients: map[string]*socket{}, load: load}
	if b.cluster, err = newCluster(ctx, work, build, b.say); err != nil {
		return nil, errors.Join(err, os.RemoveAll(work))
	}
	return b, nil
}

// say tells the person who waits what is going on.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// up starts the cluster, with the product installed, and the floor beside it.
func (b *bench) up(ctx context.Context) error {
	if err := b.cluster.up(ctx); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", b.cluster.kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1 // our own requests must not wait for each other
	b.config = config
	if b.kube, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if err := b.makeObjects(ctx); err != nil {
		return err
	}
	if b.floor, err = b.startFloor(ctx, nodeDir+direct); err != nil {
		return err
	}
	if err := b.floor.await(ctx, time.Minute, floorRegistered); err != nil {
		return err
	}
	if err := b.findPlugin(ctx); err != nil {
		return err
	}
	for _, driver := range drivers {
		if err := b.awaitDevices(ctx, driver); err != nil {
			return err
		}
	}
	return nil
}

// makeObjects makes the namespace, and for both drivers a class and a template.
func (b *bench) makeObjects(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := b.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	class := &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: floorDriver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", floorDriver)}},
		}},
	}
	if _, err := b.kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create device class: %w", err)
	}
	for _, driver := range drivers {
		template := &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: driver, Namespace: namespace},
			Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec(driver)},
		}
		if _, err := b.kube.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, template, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create claim template: %w", err)
		}
	}
	return nil
}

// findPlugin finds the pod of our plugin and its process.
func (b *bench) findPlugin(ctx context.Context) error {
	pods, err := b.kube.CoreV1().Pods(productNS).List(ctx, metav1.ListOptions{LabelSelector: "dra-driver-nvidia-gpu-component=kubelet-plugin"})
	if err != nil {
		return fmt.Errorf("find the plugin's pod: %w", err)
	}
	if len(pods.Items) != 1 {
		return fmt.Errorf("find the plugin's pod: there are %d", len(pods.Items))
	}
	b.plugin = &pods.Items[0]
	b.pid, err = inCgroup(b.cluster.cgroup, "/usr/bin/nvdra", "--role=gpu-plugin")
	return err
}

// awaitDevices waits until a driver has all its devices in the API server.
func (b *bench) awaitDevices(ctx context.Context, driver string) error {
	_, err := b.watchDevices(ctx, driver, func() error { return nil })
	return err
}

// close ends everything.
func (b *bench) close(ctx context.Context) error {
	var errs []error
	for _, p := range b.clients {
		errs = append(errs, p.close())
	}
	errs = append(errs, b.cluster.down(ctx), os.RemoveAll(b.work))
	return errors.Join(errs...)
}

// facts says what the figures were measured on.
func (b *bench) facts(ctx context.Context, took time.Duration) (string, error) {
	load, err1 := loadAverage()
	cpu, err2 := processor()
	kernel, err3 := os.ReadFile("/proc/sys/kernel/osrelease")
	version, err4 := b.kube.Discovery().ServerVersion()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return "", err
	}
	return fmt.Sprintf(`
%d × %s, Linux %s, Kubernetes %s, %s, 1 node, machine %s
load before %s, after %s; %.0f s in all`,
		runtime.NumCPU(), cpu, strings.TrimSpace(string(kernel)), version.GitVersion, runtime.Version(), machineName, b.load, load, took.Seconds()), nil
}

// loadAverage is how many processes wanted to run in the last minute.
func loadAverage() (string, error) {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", fmt.Errorf("read load: %w", err)
	}
	load, _, _ := strings.Cut(string(raw), " ")
	return load, nil
}

// processor is the name of the machine's processors.
func processor() (string, error) {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", fmt.Errorf("read processor: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value), nil
		}
	}
	return "processors", nil // not every kind has a name
}

// pluginDir is where a driver keeps its socket, as this machine sees it.
func (b *bench) pluginDir(driver string) string {
	return filepath.Join(b.cluster.root, "var/lib/kubelet/plugins", driver)
}
