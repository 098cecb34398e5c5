package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
)

// A place is where things of one cluster are: its state directory, and the names
// that follow from its own.
type place struct {
	name string
	dir  string
}

func defaultPlace() place {
	p := place{name: "nvdra"}
	if n := os.Getenv("NVDRA_CLUSTER"); n != "" {
		p.name = n
	}
	return p
}

func (p *place) set(flag, value string) {
	if flag == "--cluster" {
		p.name = value
	} else {
		p.dir = value
	}
}

// nameForm keeps a cluster's name usable in paths, cgroups and host names.
var nameForm = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,20}[a-z0-9])?$`)

func (p place) resolve() (place, error) {
	if !nameForm.MatchString(p.name) {
		return p, fmt.Errorf("%w: --cluster %q must be lower-case letters, digits and dashes, at most 22", errUsage, p.name)
	}
	if p.dir == "" {
		base, err := xdg("XDG_STATE_HOME", ".local/state")
		if err != nil {
			return p, err
		}
		p.dir = filepath.Join(base, "nvdra", p.name)
	}
	abs, err := filepath.Abs(p.dir)
	if err != nil {
		return p, fmt.Errorf("resolve state directory %s: %w", p.dir, err)
	}
	if abs == "/" {
		return p, fmt.Errorf("%w: the state directory cannot be /", errUsage)
	}
	p.dir = abs
	return p, nil
}

// cache is where what was built is kept.
func cache() (string, error) {
	base, err := xdg("XDG_CACHE_HOME", ".cache")
	if err != nil {
		return "", err
	}
	return filepath.Join(base, "nvdra"), nil
}

func xdg(variable, below string) (string, error) {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return dir, nil
	}
	home := os.Getenv("HOME")
	if home == "" {
		return "", fmt.Errorf("find a directory for files: neither %s nor HOME is set", variable)
	}
	return filepath.Join(home, below), nil
}

// link is the name of the network device by which this machine reaches the cluster.
func (p place) link() string {
	h := fnv.New32a()
	h.Write([]byte(p.name))
	return fmt.Sprintf("nvdra%08x", h.Sum32())
}

// cgroup is the control group of everything in the cluster.
func (p place) cgroup() string { return "/nvdra-" + p.name }

func (p place) file(path ...string) string {
	return filepath.Join(append([]string{p.dir}, path...)...)
}

// lockFile stands beside the directory, which comes and goes.
func (p place) lockFile() string { return p.dir + ".lock" }

// partsDir finds the pins of the parts, which lie beside this program's source.
func partsDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the parts: %w", err)
	}
	for _, try := range []string{dir, filepath.Join(dir, "testdata/cluster")} {
		parts := filepath.Join(try, "parts")
		if _, err := os.Stat(filepath.Join(parts, "etcd", "go.mod")); err == nil {
			return parts, nil
		}
	}
	return "", errors.New("find the parts: there is no parts/etcd/go.mod here; run this in testdata/cluster")
}
