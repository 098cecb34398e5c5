package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const (
	// floorRegistered is what the floor says when kubelet knows it.
	floorRegistered = "registered with kubelet"
	floorCDI        = "/var/run/cdi"
)

// startFloor starts the plugin that does nothing, on the node.
func (b *bench) startFloor(ctx context.Context, kubeconfig string) (*started, error) {
	return b.start(ctx, "floor", false, nil, nodeBench, "floor", "-kubeconfig", kubeconfig)
}

// runFloor is the plugin that does nothing. It offers as many devices as the
// machine has GPUs and writes one small CDI file per claim.
func runFloor(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("floor", flag.ContinueOnError)
	kubeconfig := f.String("kubeconfig", "", "file that says how to reach the API server")
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf" // as ours does
	kube, err := kubernetes.NewForConfig(rest.AddUserAgent(config, "floor"))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	dir := filepath.Join(kubeletplugin.KubeletPluginsDir, floorDriver)
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.MkdirAll(floorCDI, 0o755)); err != nil {
		return fmt.Errorf("make directories: %w", err)
	}
	helper, err := kubeletplugin.Start(ctx, idler{},
		kubeletplugin.DriverName(floorDriver),
		kubeletplugin.NodeName(nodeName),
		kubeletplugin.KubeClient(kube),
		kubeletplugin.PluginDataDirectoryPath(dir),
		kubeletplugin.Serialize(false),
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return fmt.Errorf("serve kubelet: %w", err)
	}
	defer helper.Stop()
	var all []resourceapi.Device
	for i := range devices {
		all = append(all, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i)})
	}
	pools := map[string]resourceslice.Pool{nodeName: {Slices: []resourceslice.Slice{{Devices: all}}}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
		return fmt.Errorf("publish slices: %w", err)
	}
	err = poll(ctx, endLimit*6, endLimit/200, func() error {
		if s := helper.RegistrationStatus(); s == nil || !s.PluginRegistered {
			return fmt.Errorf("kubelet has not registered it: %v", s)
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Println(floorRegistered)
	<-ctx.Done()
	return nil
}

// An idler does as little for a claim as a plugin can.
type idler struct{}

// floorFile is the CDI file of a claim.
func floorFile(uid types.UID) string {
	return filepath.Join(floorCDI, floorDriver+"-claim_"+string(uid)+".json")
}

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (idler) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var result kubeletplugin.PrepareResult
		text := fmt.Sprintf(`{"cdiVersion":"0.5.0","kind":"%s/claim","devices":[{"name":%q,"containerEdits":{"env":["FLOOR=1"]}}]}`, floorDriver, c.UID)
		result.Err = os.WriteFile(floorFile(c.UID), []byte(text), 0o644)
		for _, d := range c.Status.Allocation.Devices.Results {
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device,
				CDIDeviceIDs: []string{fmt.Sprintf("%s/claim=%s", floorDriver, c.UID)},
			})
		}
		results[c.UID] = result
	}
	return results, nil
}

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (idler) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, c := range claims {
		results[c.UID] = os.RemoveAll(floorFile(c.UID))
	}
	return results, nil
}

// HandleError implements [kubeletplugin.DRAPlugin].
func (idler) HandleError(_ context.Context, err error, msg string) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", msg, err)
}

// WatchHealthStatus implements [kubeletplugin.DRAPlugin]; it is never called.
func (idler) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
