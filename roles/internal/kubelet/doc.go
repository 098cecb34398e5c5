// Package kubelet makes a claim engine a plugin of kubelet: it registers the
// driver, answers prepare and unprepare calls, publishes ResourceSlices,
// serves the gRPC health probe, and counts what happens. It knows no GPU; both
// node plugins use it.
//
//	plugin, err := kubelet.Start(ctx, kubelet.Config{Driver: "gpu.nvidia.com", …})
//	err = plugin.Publish(ctx, resources)
//	defer plugin.Stop()
package kubelet
