package cdi

import (
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

func modeOf(m os.FileMode) *os.FileMode { return &m }

func str(n int64) string { return strconv.FormatInt(n, 10) }

// Where the driver and the device nodes are, on both sides; see R106.
func TestToHost(t *testing.T) {
	for name, c := range map[string]struct {
		driver, dev                  root
		node, file, link             string // what nvcdi says
		hostNode, hostFile, linkHere string // what the spec must say
	}{
		"driver container": {
			driver: root{"/driver-root", "/run/nvidia/driver"}, dev: root{"/driver-root", "/run/nvidia/driver"},
			node: "/driver-root/dev/nvidia0", file: "/driver-root/usr/bin/nvidia-smi", link: "../card1::/driver-root/dev/dri/by-path/pci-0000:65:00.0-card",
			hostNode: "/run/nvidia/driver/dev/nvidia0", hostFile: "/run/nvidia/driver/usr/bin/nvidia-smi", linkHere: "../card1::/dev/dri/by-path/pci-0000:65:00.0-card",
		},
		"driver on the host": {
			driver: root{"/driver-root", "/"}, dev: root{"/driver-root", "/"},
			node: "/driver-root/dev/nvidia0", file: "/driver-root/usr/bin/nvidia-smi", link: "../card1::/driver-root/dev/dri/by-path/pci-0000:65:00.0-card",
			hostNode: "", hostFile: "/usr/bin/nvidia-smi", linkHere: "../card1::/dev/dri/by-path/pci-0000:65:00.0-card",
		},
		"GKE": {
			driver: root{"/driver-root", "/home/kubernetes/bin/nvidia"}, dev: root{"/", "/"},
			node: "", file: "/driver-root/bin/nvidia-smi", link: "../card1::/dev/dri/by-path/pci-0000:65:00.0-card",
			hostNode: "", hostFile: "/home/kubernetes/bin/nvidia/bin/nvidia-smi", linkHere: "../card1::/dev/dri/by-path/pci-0000:65:00.0-card",
		},
		"usr local, explicit dev root": {
			driver: root{"/driver-root", "/usr/local"}, dev: root{"/host", "/"},
			node: "/host/dev/nvidia0", file: "/driver-root/bin/nvidia-smi", link: "/host/dev/dri/card1::/host/dev/dri/by-path/x",
			hostNode: "", hostFile: "/usr/local/bin/nvidia-smi", linkHere: "/dev/dri/card1::/dev/dri/by-path/x",
		},
		"same name in front": {
			driver: root{"/driver-root", "/run/nvidia/driver"}, dev: root{"/driver-root", "/run/nvidia/driver"},
			node: "/driver-root2/dev/nvidia0", file: "/driver-root2/bin/nvidia-smi", link: "libcuda.so.1::/driver-root2/libcuda.so",
			hostNode: "/driver-root2/dev/nvidia0", hostFile: "/driver-root2/bin/nvidia-smi", linkHere: "libcuda.so.1::/driver-root2/libcuda.so",
		},
		"dev root inside driver root elsewhere": {
			driver: root{"/driver-root", "/opt/driver"}, dev: root{"/driver-root/host", "/"},
			node: "/driver-root/host/dev/nvidia0", file: "/driver-root/bin/nvidia-smi", link: "a::/driver-root/host/dev/dri/x",
			hostNode: "", hostFile: "/opt/driver/bin/nvidia-smi", linkHere: "a::/dev/dri/x",
		},
		"all the same": {
			driver: root{"/", "/"}, dev: root{"/", "/"},
			node: "", file: "/usr/bin/nvidia-smi", link: "a::/dev/dri/x",
			hostNode: "", hostFile: "/usr/bin/nvidia-smi", linkHere: "a::/dev/dri/x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			edits := func(node, file, link, arg string) specs.ContainerEdits {
				return specs.ContainerEdits{
					DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia0", HostPath: node}},
					Mounts:      []*specs.Mount{{HostPath: file, ContainerPath: "/x"}, {HostPath: "/dev/null", ContainerPath: "/void"}},
					Hooks: []*specs.Hook{
						{HookName: "createContainer", Path: "/hook", Args: []string{"hook", "create-symlinks", "--link", link}},
						{HookName: "createRuntime", Path: "/hook", Args: []string{"hook", arg}},
					},
				}
			}
			got := edits(c.node, c.file, c.link, c.file)
			toHost(&got, c.driver, c.dev)
			if diff := cmp.Diff(edits(c.hostNode, c.hostFile, c.linkHere, c.hostFile), got); diff != "" {
				t.Error(diff)
			}
			toHost(&got, c.driver, c.dev)
			if c.driver.host != "/" && got.Mounts[0].HostPath != c.hostFile {
				t.Errorf("a second time changes it to %s", got.Mounts[0].HostPath)
			}
		})
	}
}
