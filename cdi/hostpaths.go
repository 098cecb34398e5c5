package cdi

import (
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"
)

// A root is one directory under two names.
type root struct {
	inside string // as this process sees it
	host   string // as the container runtime sees it
}

// toHost returns the path on the host of something this process sees at path.
// A path outside the root is the same on both sides.
func (r root) toHost(path string) string {
	if below, ok := r.below(path); ok {
		return filepath.Join(r.host, below)
	}
	return path
}

// below returns what follows the root in path, beginning with a slash. Unlike
// a comparison of strings it does not take /driver-root-2 for a part of
// /driver-root.
func (r root) below(path string) (string, bool) {
	if r.inside == "/" {
		return path, filepath.IsAbs(path)
	}
	below, ok := strings.CutPrefix(path, r.inside)
	if ok && below == "" {
		return "/", true
	}
	return below, ok && below[0] == '/'
}

// toHost rewrites edits that were made from what this process sees to what the
// runtime on the host sees. Paths in the container stay as they are. It changes
// e itself, which must not be shared.
func toHost(e *specs.ContainerEdits, driver, dev root) {
	path := func(p string) string {
		// Device nodes lie in the dev root, which may lie in the driver root.
		if _, ok := dev.below(p); ok && strings.HasPrefix(p, filepath.Join(dev.inside, "dev")+"/") {
			return dev.toHost(p)
		}
		return driver.toHost(p)
	}
	for _, n := range e.DeviceNodes {
		host := n.HostPath
		if host == "" {
			host = n.Path
		}
		n.HostPath = path(host)
		if n.HostPath == n.Path {
			n.HostPath = "" // means the same and lets older runtimes read the spec
		}
	}
	for _, m := range e.Mounts {
		m.HostPath = path(m.HostPath)
	}
	for _, h := range e.Hooks {
		if h.HookName == "createContainer" || h.HookName == "startContainer" {
			linksInContainer(h, driver, dev)
			continue
		}
		for i, arg := range h.Args {
			h.Args[i] = path(arg)
		}
	}
}

// linksInContainer repairs the arguments of a create-symlinks hook. They are
// paths in the container, but nvcdi leaves the root of the device nodes in
// those below /dev/dri/by-path, where no program would look for them.
func linksInContainer(h *specs.Hook, driver, dev root) {
	for i, arg := range h.Args {
		target, link, ok := strings.Cut(arg, "::")
		if !ok {
			continue
		}
		for _, r := range []root{dev, driver} {
			if below, ok := r.below(target); ok {
				target = below
			}
			if below, ok := r.below(link); ok {
				link = below
			}
		}
		h.Args[i] = target + "::" + link
	}
}
