package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"nvdra.test/cluster/box"
)

// A record is what is known about a cluster on disk. It is written before
// anything is made outside the state directory, so that whatever exists can be
// found and removed by a later run.
type record struct {
	Version    int       `json:"version"`
	Name       string    `json:"name"`
	Kubernetes string    `json:"kubernetes"` // the minor version
	BootID     string    `json:"bootID"`     // numbers of processes mean nothing after a boot
	Up         bool      `json:"up"`         // the start came to its end
	Net        int       `json:"net"`        // which of the networks in subnet.go
	Link       string    `json:"link"`
	Cgroup     box.Group `json:"cgroup"`
	Kubectl    string    `json:"kubectl"`
	Machines   []machine `json:"machines"` // the control plane first
	Parts      []started `json:"parts"`
}

// A machine is one box of the cluster.
type machine struct {
	Name      string      `json:"name"`
	Number    int         `json:"number"` // 0 is the control plane
	Address   string      `json:"address"`
	Simulated string      `json:"simulated,omitempty"` // the machine profile whose GPUs it seems to have
	Init      box.Process `json:"init"`
}

// A started is one process of the cluster that this program started.
type started struct {
	Name    string      `json:"name"` // etcd, node-1/kubelet
	Machine string      `json:"machine"`
	Args    []string    `json:"args"`
	Process box.Process `json:"process"`
}

const (
	recordVersion = 1
	recordFile    = "cluster.json"
)

// errNotUp is the kind of error of a cluster that is not there.
var errNotUp = errors.New("not up")

// loadRecord reads a cluster's record. Without one the error is errNotUp.
func loadRecord(p place) (*record, error) {
	raw, err := os.ReadFile(p.file(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cluster %s is %w; start it with: go run . up", p.name, errNotUp)
	}
	if err != nil {
		return nil, fmt.Errorf("read cluster: %w", err)
	}
	r, err := parseRecord(raw)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p.file(recordFile), err)
	}
	if r.Name != p.name {
		return nil, fmt.Errorf("read %s: it belongs to cluster %s, not %s; give another --dir or --cluster", p.file(recordFile), r.Name, p.name)
	}
	return r, nil
}

// parseRecord refuses what this program cannot have written, because removal
// follows what the record says.
func parseRecord(raw []byte) (*record, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("parse record: %w", err)
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("parse record: version %d, want %d; end that cluster with the launcher that started it", r.Version, recordVersion)
	}
	p := place{name: r.Name}
	if !nameForm.MatchString(r.Name) || r.Cgroup.Path != p.cgroup() || r.Link != p.link() {
		return nil, fmt.Errorf("parse record: name %q, cgroup %q and link %q do not belong together", r.Name, r.Cgroup.Path, r.Link)
	}
	for _, tree := range append(slices.Clone(r.Cgroup.Cgroups.V1), r.Cgroup.Cgroups.V2) {
		if tree != "" && (tree != filepath.Clean(tree) || !strings.HasPrefix(tree, "/sys/fs/cgroup")) {
			return nil, fmt.Errorf("parse record: cgroup tree %q is not below /sys/fs/cgroup", tree)
		}
	}
	return &r, nil
}

// save replaces the record in one step.
func (r *record) save(p place) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	tmp := p.file(recordFile + ".new")
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := os.Rename(tmp, p.file(recordFile)); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// machine finds a machine by what a person calls it: 1, node-1, control-plane.
func (r *record) machine(word string) (*machine, error) {
	for i := range r.Machines {
		m := &r.Machines[i]
		if m.Name == word || m.Number > 0 && fmt.Sprint(m.Number) == word {
			return m, nil
		}
	}
	var names []string
	for _, m := range r.Machines {
		names = append(names, m.Name)
	}
	return nil, fmt.Errorf("%w: there is no machine %q; there are %s", errUsage, word, strings.Join(names, ", "))
}

// nodes are the machines that run pods.
func (r *record) nodes() []machine {
	return slices.DeleteFunc(slices.Clone(r.Machines), func(m machine) bool { return m.Number == 0 })
}

// box is the running box of a machine.
func (r *record) box(m machine) box.Box {
	return box.Box{Init: m.Init, Cgroup: r.Cgroup.Child(m.Name).Child("system")}
}

// dead lists what should run and does not.
func (r *record) dead() []string {
	var names []string
	for _, m := range r.Machines {
		if !m.Init.Alive() {
			names = append(names, m.Name)
		}
	}
	for _, s := range r.Parts {
		if !s.Process.Alive() {
			names = append(names, s.Name)
		}
	}
	return names
}

// logFile is where a part writes.
func (p place) logFile(part string) string {
	return p.file("logs", strings.ReplaceAll(part, "/", "-")+".log")
}

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
