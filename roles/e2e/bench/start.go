package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// removeLimit is how long the installed plugin may take to go.
const removeLimit = time.Minute

// starts measures how long after its start a plugin's devices are visible.
func (b *bench) starts(ctx context.Context) error {
	if err := b.uninstall(ctx); err != nil {
		return err
	}
	if err := b.floor.stop(); err != nil {
		return err
	}
	times := map[string]*sample{ourDriver: {}, floorDriver: {}}
	for n := range b.size.starts + 1 {
		for _, driver := range alternate(n) {
			took, err := b.oneStart(ctx, driver)
			if err != nil {
				return err
			}
			if n > 0 { // the first is to warm up
				*times[driver] = append(*times[driver], took)
			}
		}
	}
	ours, floor := *times[ourDriver], *times[floorDriver]
	b.table.add(fmt.Sprintf("start of the process to devices visible, %d starts", len(ours)),
		row{what: "median", ours: seconds(ours.median()), floor: seconds(floor.median()), aim: "1.04 s"},
		row{what: "longest", ours: seconds(ours.quantile(1)), floor: seconds(floor.quantile(1))},
	)
	return nil
}

// oneStart starts a plugin, waits for its devices, and ends it.
func (b *bench) oneStart(ctx context.Context, driver string) (time.Duration, error) {
	if err := b.deleteSlices(ctx, driver); err != nil {
		return 0, err
	}
	var p *started
	seen, err := b.watchDevices(ctx, driver, func() (err error) {
		p, err = b.startPlugin(ctx, driver, direct)
		return err
	})
	if p != nil {
		if err != nil {
			err = fmt.Errorf("%w; it says: %s", err, p.tail())
		}
		err = errors.Join(err, p.stop())
	}
	if err != nil {
		return 0, err
	}
	return seen.Sub(p.at), nil
}

// startPlugin starts one of the plugins on the node, with a kubeconfig.
func (b *bench) startPlugin(ctx context.Context, driver, kubeconfig string) (*started, error) {
	if driver == floorDriver {
		return b.startFloor(ctx, nodeDir+kubeconfig)
	}
	return b.start(ctx, "nvdra", true, append(b.env[:len(b.env):len(b.env)], "KUBECONFIG="+kubeconfig), "/usr/bin/nvdra", "--role=gpu-plugin")
}

// uninstall removes the plugin's DaemonSet and remembers the environment its
// container has.
func (b *bench) uninstall(ctx context.Context) error {
	if s := b.clients[ourDriver]; s != nil {
		delete(b.clients, ourDriver)
		if err := s.close(); err != nil {
			return err
		}
	}
	sets := b.kube.AppsV1().DaemonSets(productNS)
	set, err := sets.Get(ctx, daemonSet, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the plugin's DaemonSet: %w", err)
	}
	b.env = []string{"NODE_NAME=" + nodeName}
	for _, e := range set.Spec.Template.Spec.Containers[0].Env {
		if e.ValueFrom == nil {
			b.env = append(b.env, e.Name+"="+e.Value)
		}
	}
	if err := sets.Delete(ctx, daemonSet, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete the plugin's DaemonSet: %w", err)
	}
	err = poll(ctx, removeLimit, 100*time.Millisecond, func() error {
		_, err := b.kube.CoreV1().Pods(productNS).Get(ctx, b.plugin.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return errors.New("it is still there")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait until the plugin's pod is gone: %w", err)
	}
	return nil
}
