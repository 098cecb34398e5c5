// Package cdi says how a container gets the devices of a claim: through one
// Container Device Interface spec per claim, which the container runtime
// reads when kubelet names its devices.
//
//   - [Store] keeps the spec files: it writes, checks, lists and removes them.
//   - [Driver] says which files and device nodes of the NVIDIA driver a
//     container needs. The knowledge is NVIDIA's (package nvcdi); the checks,
//     the host paths and the memory are ours.
//   - [Edits] and the functions beside it put container edits together.
//   - [InstallHook] puts the program that the specs name as a hook where the
//     runtime on the host can start it.
//
// A plugin uses them like this:
//
//	err := cdi.InstallHook("/usr/bin/nvidia-cdi-hook", hook)
//	store, err := cdi.OpenStore("/var/run/cdi", cdi.ClaimVendor, cdi.ClaimClass)
//	driver, err := cdi.NewDriver(cdi.Config{ContainerRoot: "/driver-root", HostRoot: "/run/nvidia/driver", HookPath: hook})
//	common, err := driver.Common(ctx)
//	gpu, err := driver.GPU(ctx, "GPU-8d7e…", 0)
//	device := specs.Device{Name: cdi.DeviceName(uid, "gpu-0"), ContainerEdits: *gpu}
//	err = store.Write(uid, []specs.Device{device}, *common)
//
// Nothing here knows Kubernetes or a logger, and no NVML is loaded, so what a
// container sees can be tested with a directory and compared with a file.
package cdi
