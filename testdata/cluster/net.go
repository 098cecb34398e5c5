package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"nvdra.test/cluster/box"
)

// ip runs commands of the program ip in the network of a box, or of this machine.
func ip(b *box.Box, lines ...string) error {
	path, err := findProgram("ip")
	if err != nil {
		return err
	}
	// It runs as a program of this machine, so that process numbers, by which it
	// finds namespaces, mean the same to it as to us.
	var words strings.Builder
	cmd := &exec.Cmd{Path: path, Args: []string{"ip", "-batch", "-"}, Stdin: strings.NewReader(strings.Join(lines, "\n") + "\n"), Stderr: &words}
	if b == nil {
		err = cmd.Run()
	} else {
		err = b.Run(cmd, box.Net)
	}
	if err != nil {
		return fmt.Errorf("configure network: %w: %s (of %q)", err, strings.TrimSpace(words.String()), lines)
	}
	return nil
}

// readRoutes lists where this machine's IPv4 routes lead.
func readRoutes() ([]netip.Prefix, error) {
	raw, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	return parseRoutes(string(raw))
}

// connectHub gives the control plane's box a bridge, to which everything is
// connected, and this machine a way to it. The machine itself forwards nothing.
func connectHub(hub box.Box, link string, n int) error {
	err := ip(&hub,
		"link set lo up",
		// With an address of its own the bridge does not change it when ports come and go.
		fmt.Sprintf("link add br0 address 02:59:%02x:00:00:01 type bridge", n),
		"addr add "+hubAddress(n)+"/24 dev br0",
		"link set br0 up",
	)
	if err != nil {
		return err
	}
	err = ip(nil,
		fmt.Sprintf("link add %s type veth peer name uplink netns %d", link, hub.Init.PID),
		"addr add "+hostAddress(n)+"/24 dev "+link,
		"link set "+link+" up",
		"route add "+podNet(n).String()+" via "+hubAddress(n),
	)
	if err != nil {
		return err
	}
	return ip(&hub, "link set uplink master br0", "link set uplink up")
}

// connectNode connects node i of count to the bridge, and both ends to its pods.
func connectNode(hub, node box.Box, n, i, count int) error {
	err := ip(&hub,
		fmt.Sprintf("link add node%d type veth peer name eth0 netns %d", i, node.Init.PID),
		fmt.Sprintf("link set node%d master br0", i),
		fmt.Sprintf("link set node%d up", i),
		fmt.Sprintf("route add %s via %s", nodePodNet(n, i), nodeAddress(n, i)),
	)
	if err != nil {
		return err
	}
	lines := []string{
		"link set lo up",
		"addr add " + nodeAddress(n, i) + "/24 dev eth0",
		"link set eth0 up",
		"route add default via " + hubAddress(n),
	}
	for other := 1; other <= count; other++ {
		if other != i {
			lines = append(lines, fmt.Sprintf("route add %s via %s", nodePodNet(n, other), nodeAddress(n, other)))
		}
	}
	return ip(&node, lines...)
}
