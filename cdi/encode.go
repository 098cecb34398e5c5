package cdi

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/specs-go"
)

// maxAccepted is how many shapes are remembered: more than the devices of a
// machine.
const maxAccepted = 256

// An encoder turns specs into the text of their files. Nearly all of a claim's
// text is the common edits, which are the same in every claim until the driver is
// replaced; encoding them as YAML, and having the library read them, takes
// longer than everything else about a claim. So the text of the last ones is
// kept, and so is which shapes of specs the library has read.
type encoder struct {
	mu       sync.Mutex
	common   string          // the last common edits, as JSON
	text     []byte          // the same as YAML
	accepted map[string]bool // by shape
}

// encoded is a spec as it is written.
type encoded struct {
	text []byte
	// shape is the same for two specs that differ in the UID of their claim only.
	shape string
}

// encode encodes a spec, exactly as if it were encoded in one piece.
func (e *encoder) encode(claimUID string, spec *specs.Spec) (encoded, error) {
	front, err1 := yaml.Marshal(struct {
		Version string `json:"cdiVersion"`
	}{spec.Version})
	// Keys are sorted, so what is common stands between the version and these.
	back, err2 := yaml.Marshal(struct {
		Devices []specs.Device `json:"devices"`
		Kind    string         `json:"kind"`
	}{spec.Devices, spec.Kind})
	key, err3 := json.Marshal(spec.ContainerEdits)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return encoded{}, err
		}
	}
	common, err := e.commonText(string(key), spec.ContainerEdits)
	if err != nil {
		return encoded{}, err
	}
	shape, err := shapeOf(claimUID, spec, key)
	if err != nil {
		return encoded{}, err
	}
	text := make([]byte, 0, len(front)+len(common)+len(back))
	return encoded{append(append(append(text, front...), common...), back...), shape}, nil
}

// commonText is the common edits as YAML; key is the same as JSON.
func (e *encoder) commonText(key string, common specs.ContainerEdits) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.text != nil && e.common == key {
		return e.text, nil
	}
	text, err := yaml.Marshal(struct {
		ContainerEdits specs.ContainerEdits `json:"containerEdits"`
	}{common})
	if err != nil {
		return nil, err
	}
	e.common, e.text = key, text
	return text, nil
}

// shapeOf is what a spec says, without the UID that all its device names begin
// with; what a valid UID can consist of makes no difference to the library.
func shapeOf(claimUID string, spec *specs.Spec, common []byte) (string, error) {
	var shape strings.Builder
	fmt.Fprintf(&shape, "%s\n%s\n%s\n", spec.Version, spec.Kind, common)
	for _, d := range spec.Devices {
		rest, ours := strings.CutPrefix(d.Name, claimUID+"-")
		if !ours {
			return "", fmt.Errorf("%w: device %q is not of claim %s", ErrInvalid, d.Name, claimUID)
		}
		d.Name = rest
		line, err := json.Marshal(d)
		if err != nil {
			return "", err
		}
		shape.Write(line)
		shape.WriteByte('\n')
	}
	return shape.String(), nil
}

// knows reports whether the library has read a spec of this shape.
func (e *encoder) knows(shape string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.accepted[shape]
}

// accept remembers that the library has read a spec of this shape.
func (e *encoder) accept(shape string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.accepted) >= maxAccepted {
		e.accepted = nil // an old driver's, most of them
	}
	if e.accepted == nil {
		e.accepted = map[string]bool{}
	}
	e.accepted[shape] = true
}
