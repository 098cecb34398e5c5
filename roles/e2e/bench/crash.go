package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	waitingPods = 2
	crashLimit  = 4 * time.Minute
	// heldCall is where the driver is made to hang: what every reading of the
	// machine begins with.
	heldCall = "Init"
)

// crash measures how long pods wait when the plugin is killed while it prepares
// their claims. The driver is made to hang, so that the plugin is surely in the
// middle of it: a GPU goes away, and the plugin looks what is there now.
func (b *bench) crash(ctx context.Context) error {
	if !b.size.crash {
		b.table.add("kill -9 of the plugin in mid-prepare", row{what: "not measured with -quick"})
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, crashLimit, fmt.Errorf("not after %v", crashLimit))
	defer cancel()
	gpu, err := b.lastGPU(ctx)
	if err != nil {
		return err
	}
	for _, verb := range [][]string{{"hold", heldCall}, {"remove", gpu}} {
		if _, err := b.cluster.gpusim(ctx, verb...); err != nil {
			return err
		}
	}
	var pods []watch.Interface
	for i := range waitingPods {
		events, err := b.createWaiting(ctx, fmt.Sprintf("waiting-%d", i))
		if err != nil {
			return err
		}
		defer events.Stop()
		pods = append(pods, events)
	}
	if err := b.awaitInflight(ctx, waitingPods); err != nil {
		return err
	}
	plugin, err := b.kube.CoreV1().Pods(productNS).Watch(ctx, named(b.plugin.Name))
	if err != nil {
		return fmt.Errorf("watch the plugin's pod: %w", err)
	}
	defer plugin.Stop()

	killed := time.Now()
	if err := syscall.Kill(b.pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the plugin: %w", err)
	}
	for _, verb := range [][]string{{"add", gpu}, {"release", heldCall}} {
		if _, err := b.cluster.gpusim(ctx, verb...); err != nil {
			return err
		}
	}
	waits := []func() error{func() error { return awaitPod(ctx, plugin, readyAgain) }}
	for _, events := range pods {
		waits = append(waits, func() error { return awaitPod(ctx, events, running) })
	}
	took := make(sample, len(waits))
	errs := make([]error, len(waits))
	var group sync.WaitGroup
	for i, wait := range waits {
		group.Go(func() {
			errs[i] = wait()
			took[i] = time.Since(killed)
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	b.table.add(fmt.Sprintf("kill -9 of the plugin in mid-prepare, %d pods waiting", waitingPods),
		row{what: "until the plugin is ready again", ours: seconds(took[0])},
		row{what: "until the first of the pods runs", ours: seconds(took[1:].quantile(0))},
		row{what: "until all of them run", ours: seconds(took[1:].quantile(1)), note: "kubelet repeats a prepare that failed 60 to 90 s later"},
	)
	for i := range waitingPods {
		name := fmt.Sprintf("waiting-%d", i)
		if err := b.kube.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
		if err := awaitPod(ctx, pods[i], gone); err != nil {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	return b.findPlugin(ctx)
}

// lastGPU is the UUID of the simulated machine's last GPU.
func (b *bench) lastGPU(ctx context.Context) (string, error) {
	state, err := b.cluster.gpusim(ctx, "state")
	if err != nil {
		return "", err
	}
	last := ""
	for line := range strings.Lines(state) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "gpu" {
			last = f[1]
		}
	}
	if last == "" {
		return "", fmt.Errorf("find a GPU: the simulator knows none: %s", state)
	}
	return last, nil
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
}

// createWaiting creates a pod with a claim, and a watch on it.
func (b *bench) createWaiting(ctx context.Context, name string) (watch.Interface, error) {
	events, err := b.kube.CoreV1().Pods(namespace).Watch(ctx, named(name))
	if err != nil {
		return nil, fmt.Errorf("watch pod %s: %w", name, err)
	}
	if _, err := b.kube.CoreV1().Pods(namespace).Create(ctx, pod(name, ourDriver), metav1.CreateOptions{}); err != nil {
		events.Stop()
		return nil, fmt.Errorf("create pod %s: %w", name, err)
	}
	return events, nil
}

// awaitInflight waits until the plugin is busy preparing n claims.
func (b *bench) awaitInflight(ctx context.Context, n int) error {
	want := fmt.Sprintf("\nnvidia_dra_requests_inflight{driver=%q,operation=\"prepare\"} %d\n", ourDriver, n)
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy/metrics", productNS, b.plugin.Name)
	err := poll(ctx, 30*time.Second, 50*time.Millisecond, func() error {
		raw, err := b.kube.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		if err == nil && !strings.Contains(string(raw), want) {
			err = fmt.Errorf("its metrics lack %q", strings.TrimSpace(want))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait until the plugin prepares %d claims: %w", n, err)
	}
	return nil
}

// readyAgain says that the plugin's container was started again and is ready.
func readyAgain(_ watch.Event, p *corev1.Pod) bool {
	s := p.Status.ContainerStatuses
	return len(s) == 1 && s[0].RestartCount > 0 && s[0].Ready
}
