package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"
)

// A cluster has a number, and its networks follow from it: machines in
// 10.89.N.0/24, pods in 10.(160+N).0.0/16. Services are 10.96.0.0/16 in every
// cluster; nothing outside its boxes knows them.
const (
	nets       = 64
	maxNodes   = 32
	serviceNet = "10.96.0.0/16"
	serviceAPI = "10.96.0.1"
	serviceDNS = "10.96.0.10"
)

func machineNet(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 89, byte(n), 0}), 24)
}

// hubAddress is the control plane's; hostAddress is this machine's own in the
// cluster's network; nodeAddress is that of node i, from 1.
func hubAddress(n int) string     { return fmt.Sprintf("10.89.%d.1", n) }
func hostAddress(n int) string    { return fmt.Sprintf("10.89.%d.254", n) }
func nodeAddress(n, i int) string { return fmt.Sprintf("10.89.%d.%d", n, 10+i) }

func podNet(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(160 + n), 0, 0}), 16)
}

func nodePodNet(n, i int) string { return fmt.Sprintf("10.%d.%d.0/24", 160+n, i) }

// pickNet chooses a cluster's number: one whose networks this machine has no
// route into. It starts from the name, so that a cluster usually gets the same.
func pickNet(name string, routes []netip.Prefix) (int, error) {
	h := fnv.New32a()
	h.Write([]byte(name))
	first := int(h.Sum32() % nets)
	for i := range nets {
		n := (first + i) % nets
		free := true
		for _, r := range routes {
			if r.Bits() > 0 && (r.Overlaps(machineNet(n)) || r.Overlaps(podNet(n))) {
				free = false
				break
			}
		}
		if free {
			return n, nil
		}
	}
	return 0, fmt.Errorf("choose networks: this machine has routes into all %d pairs from %s and %s to %s and %s; end another cluster, or remove a route", nets, machineNet(0), podNet(0), machineNet(nets-1), podNet(nets-1))
}

// parseRoutes reads the kernel's table of IPv4 routes, /proc/net/route.
func parseRoutes(raw string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for i, line := range strings.Split(strings.TrimSpace(raw), "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) == 0 {
			continue // the heading
		}
		if len(f) < 8 {
			return nil, fmt.Errorf("parse routes: line %d has %d fields, want at least 8", i+1, len(f))
		}
		dst, err := hexAddr(f[1])
		if err != nil {
			return nil, fmt.Errorf("parse routes: line %d: destination: %w", i+1, err)
		}
		mask, err := hexAddr(f[7])
		if err != nil {
			return nil, fmt.Errorf("parse routes: line %d: mask: %w", i+1, err)
		}
		bits := 0
		for m := binary.BigEndian.Uint32(mask[:]); m&(1<<31) != 0; m <<= 1 {
			bits++
		}
		out = append(out, netip.PrefixFrom(netip.AddrFrom4(dst), bits).Masked())
	}
	return out, nil
}

// hexAddr reads an address as the kernel prints it: in the machine's byte order,
// which is little-endian wherever this program runs.
func hexAddr(s string) ([4]byte, error) {
	var a [4]byte
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 4 {
		return a, fmt.Errorf("%q is not eight hexadecimal digits", s)
	}
	for i := range a {
		a[i] = raw[3-i]
	}
	return a, nil
}
