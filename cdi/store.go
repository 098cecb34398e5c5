package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"
)

var (
	// ErrInvalid is wrapped when a spec, a name or a directory that was handed
	// in can never work. Trying again does not help.
	ErrInvalid = errors.New("invalid")

	// ErrStale is wrapped by [Store.Check] when the file on disk does not
	// describe the claim: it is missing, damaged, or lacks a device. Writing
	// it again cures it.
	ErrStale = errors.New("CDI spec is missing or out of date")
)

const (
	// specSuffix is one of the two suffixes that make a file a spec to a
	// container runtime.
	specSuffix = ".yaml"

	// tempSuffix is none of them, so a runtime that looks into the directory
	// while a spec is being written does not see half of it.
	tempSuffix = ".tmp"

	// maxClaimUID is far above the 36 characters of a UUID and keeps the file
	// name below the 255 bytes a file system allows.
	maxClaimUID = 100
)

// A Store is a directory of CDI specs, one file per claim:
//
//	<dir>/<vendor>-<class>_<claim UID>.yaml
//
// The files are read by the container runtime at any moment, so a file is
// either complete or absent. Files of other vendors and classes in the same
// directory are left alone. The methods may be called from several goroutines
// and from several processes.
type Store struct {
	dir     string
	vendor  string
	class   string
	encoder encoder
}

// OpenStore returns the store in dir for specs of the kind vendor/class. It
// makes the directory when it is missing and follows a symbolic link. That the
// directory can be written is found out by the first Write.
func OpenStore(dir, vendor, class string) (*Store, error) {
	if dir == "" {
		return nil, fmt.Errorf("open CDI directory: %w: its name is empty; it is usually %s", ErrInvalid, cdi.DefaultDynamicDir)
	}
	if err := parser.ValidateVendorName(vendor); err != nil {
		return nil, fmt.Errorf("open CDI directory %s: %w vendor %q: %w", dir, ErrInvalid, vendor, err)
	}
	if err := parser.ValidateClassName(class); err != nil {
		return nil, fmt.Errorf("open CDI directory %s: %w class %q: %w", dir, ErrInvalid, class, err)
	}
	s := &Store{dir: filepath.Clean(dir), vendor: vendor, class: class}
	if err := s.makeDir(); err != nil {
		return nil, fmt.Errorf("open CDI directory %s: %w", s.dir, err)
	}
	return s, nil
}

// DeviceID returns the name by which kubelet asks the runtime for the device
// with this name in a spec: vendor/class=name.
func (s *Store) DeviceID(name string) string {
	return parser.QualifiedName(s.vendor, s.class, name)
}

// Path returns the file that holds the spec of the claim.
func (s *Store) Path(claimUID string) (string, error) {
	if err := checkClaimUID(claimUID); err != nil {
		return "", err
	}
	return filepath.Join(s.dir, s.prefix()+claimUID+specSuffix), nil
}

// Write replaces the spec of the claim. The devices' edits reach only a
// container that uses the device; common reaches every container that uses any
// device of the claim.
//
// When Write returns nil the file is complete, valid and on disk. When it
// returns an error there is the old file or the new one, never a part of one.
// The error wraps [ErrInvalid] if no directory could take this spec.
func (s *Store) Write(claimUID string, devices []specs.Device, common specs.ContainerEdits) error {
	path, err := s.Path(claimUID)
	if err != nil {
		return fmt.Errorf("write CDI spec: %w", err)
	}
	spec, err := s.encode(claimUID, devices, common)
	if err != nil {
		return fmt.Errorf("write CDI spec of claim %s: %w", claimUID, err)
	}
	if err := s.replace(path, spec); err != nil {
		return fmt.Errorf("write CDI spec %s: %w", path, s.explain(err))
	}
	return nil
}

// Remove removes the spec of the claim. That there is none is success.
func (s *Store) Remove(claimUID string) error {
	path, err := s.Path(claimUID)
	if err != nil {
		return fmt.Errorf("remove CDI spec: %w", err)
	}
	err = os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("remove CDI spec %s: %w", path, s.explain(err))
	}
	return nil
}

// List returns, sorted, the UIDs of the claims that have a spec of this kind.
// It looks at names only; a damaged file is listed like any other.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list CDI specs: %w", err)
	}
	var uids []string
	for _, e := range entries {
		uid, ours := s.claimUID(e.Name())
		if ours && !e.IsDir() {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids, nil
}

// Check reports whether a container runtime would find every one of the
// devices in the spec of the claim. The error wraps [ErrStale] when writing
// the spec again would cure it.
func (s *Store) Check(claimUID string, deviceNames []string) error {
	path, err := s.Path(claimUID)
	if err != nil {
		return fmt.Errorf("check CDI spec: %w", err)
	}
	spec, err := cdi.ReadSpec(path, 0)
	if err != nil {
		return fmt.Errorf("check CDI spec %s: %w: %w", path, ErrStale, err)
	}
	if kind := s.kind(); spec.Kind != kind {
		return fmt.Errorf("check CDI spec %s: %w: its kind is %q, not %q", path, ErrStale, spec.Kind, kind)
	}
	for _, name := range deviceNames {
		if spec.GetDevice(name) == nil {
			return fmt.Errorf("check CDI spec %s: %w: it has no device %q", path, ErrStale, name)
		}
	}
	return nil
}

// RemoveTemporary removes what writers that were killed left behind: temporary
// files of this store that nobody has touched for the given time. It returns
// how many it removed.
func (s *Store) RemoveTemporary(untouched time.Duration) (int, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("remove temporary CDI specs: %w", err)
	}
	removed := 0
	var problems []error
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || !strings.HasPrefix(name, "."+s.prefix()) || !strings.HasSuffix(name, tempSuffix) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // its writer has just finished
		}
		if err == nil && time.Since(info.ModTime()) < untouched {
			continue
		}
		if err == nil {
			err = os.Remove(filepath.Join(s.dir, name))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
			continue
		}
		removed++
	}
	if err := errors.Join(problems...); err != nil {
		return removed, fmt.Errorf("remove temporary CDI specs: %w", err)
	}
	return removed, nil
}

// encode returns the spec as it is written.
func (s *Store) encode(claimUID string, devices []specs.Device, common specs.ContainerEdits) (encoded, error) {
	if err := checkDevices(claimUID, devices, common); err != nil {
		return encoded{}, err
	}
	spec := &specs.Spec{Kind: s.kind(), Devices: devices, ContainerEdits: common}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return encoded{}, fmt.Errorf("choose cdiVersion: %w", err)
	}
	// The lowest version that can say all this: old runtimes refuse a file
	// that claims to be newer than they are.
	spec.Version = version
	out, err := s.encoder.encode(claimUID, spec)
	if err != nil {
		return encoded{}, fmt.Errorf("encode: %w", err)
	}
	return out, nil
}

// replace puts a spec into the file at path so that it is there completely or
// not at all, and is still there after a power cut.
func (s *Store) replace(path string, spec encoded) (err error) {
	if err := s.makeDir(); err != nil {
		return err
	}
	temp, err := os.CreateTemp(s.dir, "."+filepath.Base(path)+".*"+tempSuffix)
	if err != nil {
		return err
	}
	renamed := false
	defer func() {
		if !renamed {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	if err := fill(temp, spec.text, 0o644); err != nil {
		return err
	}
	// The judge is the library the runtimes use, and it reads what is on disk.
	// It has no other opinion about the same for another claim.
	if !s.encoder.knows(spec.shape) {
		if _, err := cdi.ReadSpec(temp.Name(), 0); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		s.encoder.accept(spec.shape)
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	renamed = true
	return syncDir(s.dir)
}

// explain adds to an error what the user can do about it, if anything.
func (s *Store) explain(err error) error {
	if errors.Is(err, fs.ErrPermission) || isReadOnly(err) {
		return fmt.Errorf("%w; the plugin must be able to write to the CDI directory: mount %s read-write or choose another one", err, s.dir)
	}
	return err
}

func (s *Store) kind() string { return s.vendor + "/" + s.class }

func (s *Store) prefix() string { return s.vendor + "-" + s.class + "_" }

// claimUID is the inverse of Path for the name of a file in the directory.
func (s *Store) claimUID(name string) (string, bool) {
	rest, ours := strings.CutPrefix(name, s.prefix())
	if !ours {
		return "", false
	}
	uid, ours := strings.CutSuffix(rest, specSuffix)
	return uid, ours && checkClaimUID(uid) == nil
}

func (s *Store) makeDir() error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		if target, linkErr := os.Readlink(s.dir); linkErr == nil {
			return fmt.Errorf("%w; it is a symbolic link to %s, which must be a directory", err, target)
		}
		return err
	}
	return nil
}

// checkClaimUID refuses everything that could be more than one element of a
// path or could not be part of a CDI device name.
func checkClaimUID(uid string) error {
	bad := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
	}
	if uid == "" || len(uid) > maxClaimUID || uid[0] == '-' || strings.ContainsFunc(uid, bad) {
		return fmt.Errorf("claim UID %.120q: %w: want letters, digits and dashes, as in a UUID", uid, ErrInvalid)
	}
	return nil
}

// checkDevices finds what the CDI library would refuse with a worse sentence,
// what would make it panic, and what would make two specs disagree.
func checkDevices(claimUID string, devices []specs.Device, common specs.ContainerEdits) error {
	if len(devices) == 0 {
		return fmt.Errorf("%w: it has no devices", ErrInvalid)
	}
	if hasNil(common) {
		return fmt.Errorf("%w: the edits common to all devices have an empty entry", ErrInvalid)
	}
	seen := map[string]bool{}
	for _, d := range devices {
		switch {
		case !strings.HasPrefix(d.Name, claimUID+"-"):
			// A runtime that finds a device in two files uses neither.
			return fmt.Errorf("%w: device %q must be called %q, so that no other claim has a device of that name", ErrInvalid, d.Name, claimUID+"-…")
		case seen[d.Name]:
			return fmt.Errorf("%w: device %q is there twice", ErrInvalid, d.Name)
		case IsEmpty(d.ContainerEdits):
			return fmt.Errorf("%w: device %q changes nothing in a container: it has no device node, mount, variable or hook", ErrInvalid, d.Name)
		case hasNil(d.ContainerEdits):
			return fmt.Errorf("%w: device %q has an empty entry in its edits", ErrInvalid, d.Name)
		}
		seen[d.Name] = true
	}
	return nil
}

// hasNil reports whether the edits have an entry that is not there.
func hasNil(e specs.ContainerEdits) bool {
	return slices.Contains(e.DeviceNodes, nil) || slices.Contains(e.Mounts, nil) ||
		slices.Contains(e.Hooks, nil) || slices.Contains(e.NetDevices, nil)
}
