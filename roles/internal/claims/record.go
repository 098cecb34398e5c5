package claims

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"
)

// A Record is what the engine remembers of a claim, and all it needs to undo it.
type Record struct {
	Ref
	// ResourceVersion and Generation are those of the newest claim object that
	// a prepare call brought.
	ResourceVersion string     `json:"resourceVersion,omitempty"`
	Generation      int64      `json:"generation,omitempty"`
	BootID          string     `json:"bootID,omitempty"`
	State           State      `json:"state"`
	Since           time.Time  `json:"since"` // when the state was entered
	Devices         []Prepared `json:"devices,omitempty"`
	Steps           []Step     `json:"steps,omitempty"`
	// Spec tells whether the CDI spec would be written differently today.
	Spec string `json:"spec,omitempty"`
}

// recordVersion is the version of the file format that is written. It grows
// when an older reader would misunderstand the file, not when a field is added.
const recordVersion = 1

// recordFile is the first line of a checkpoint file. The second is the checksum
// of the first.
type recordFile struct {
	Version int `json:"version"`
	Record
}

const checksumWord = "crc32c "

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the line that follows data in a checkpoint file.
func checksum(data []byte) string {
	return fmt.Sprintf("%s%08x\n", checksumWord, crc32.Checksum(data, castagnoli))
}

// encode returns the content of a checkpoint file.
func encode(r *Record) ([]byte, error) {
	data, err := json.Marshal(recordFile{Version: recordVersion, Record: *r})
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	data = append(data, '\n')
	return append(data, checksum(data)...), nil
}

// decode reads the content of a checkpoint file. The checksum is over the bytes
// as they were written, so fields it does not know do no harm. An error wraps
// ErrDamaged or ErrNewer; with ErrNewer comes what could be understood, which
// is enough to see what the claim occupies but not to undo it.
func decode(data []byte) (*Record, error) {
	body, err := checkChecksum(data)
	if err != nil {
		return nil, err
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if v.Version < 1 {
		return nil, fmt.Errorf("%w: its version is %d, the first was 1", ErrDamaged, v.Version)
	}
	var f recordFile
	err = json.Unmarshal(body, &f)
	if err == nil {
		err = f.Record.normalize()
	}
	if v.Version > recordVersion {
		newer := fmt.Errorf("%w: its version is %d, this program reads up to %d; run the newer program again, or drain the node before going back", ErrNewer, v.Version, recordVersion)
		if err != nil {
			return nil, newer
		}
		return &f.Record, newer
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return &f.Record, nil
}

// checkChecksum returns the bytes that the last line is the checksum of.
func checkChecksum(data []byte) ([]byte, error) {
	trimmed, ended := bytes.CutSuffix(data, []byte{'\n'})
	body := data[:bytes.LastIndexByte(trimmed, '\n')+1]
	switch got, want := string(data[len(body):]), checksum(body); {
	case !ended || len(body) == 0 || !strings.HasPrefix(got, checksumWord):
		return nil, fmt.Errorf("%w: it has %d bytes and does not end in a checksum", ErrDamaged, len(data))
	case got != want:
		return nil, fmt.Errorf("%w: its checksum is %q, that of its content is %q", ErrDamaged, strings.TrimSpace(got), strings.TrimSpace(want))
	}
	return body, nil
}

// normalize refuses a record that cannot be right and brings a right one into
// the form in which it compares equal to what was written.
func (r *Record) normalize() error {
	if err := checkUID(r.UID); err != nil {
		return err
	}
	// An adopted claim may have neither, see Adopted.
	if (r.Namespace == "") != (r.Name == "") || strings.Contains(r.Namespace+r.Name, "/") {
		return fmt.Errorf("%q in namespace %q is not the name of a claim", r.Name, r.Namespace)
	}
	if !r.State.recorded() {
		return fmt.Errorf("there is no state %q", r.State)
	}
	r.Since = r.Since.UTC()
	if y := r.Since.Year(); y < 0 || y > 9999 {
		return fmt.Errorf("the year is %d", y)
	}
	for _, d := range r.Devices {
		if err := d.check(); err != nil {
			return err
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if s.Kind == "" || s.Key == "" {
			return fmt.Errorf("step %d has no kind or no key", i+1)
		}
		var errs [2]error
		s.Want, errs[0] = canonical(s.Want)
		s.Result, errs[1] = canonical(s.Result)
		for _, err := range errs {
			if err != nil {
				return fmt.Errorf("step %d: %w", i+1, err)
			}
		}
	}
	return nil
}

// clone returns a copy that may be changed while others read r.
func (r *Record) clone() *Record {
	c := *r
	c.Devices = slices.Clone(r.Devices)
	for i, d := range c.Devices {
		c.Devices[i] = d.clone()
	}
	// The JSON values in steps are replaced, never changed.
	c.Steps = slices.Clone(r.Steps)
	return &c
}

// clone returns a copy that shares nothing with p.
func (p Prepared) clone() Prepared {
	p.Requests = slices.Clone(p.Requests)
	p.Occupies = slices.Clone(p.Occupies)
	p.CDIDevices = slices.Clone(p.CDIDevices)
	if p.ShareID != nil {
		id := *p.ShareID
		p.ShareID = &id
	}
	return p
}

// moved returns a copy of r in another state.
func (r *Record) moved(to State, now time.Time) *Record {
	c := r.clone()
	if c.State != to {
		c.State, c.Since = to, now.UTC().Round(0)
	}
	return c
}

// begun reports whether there is anything to undo.
func (r *Record) begun() bool {
	return slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Begun })
}
