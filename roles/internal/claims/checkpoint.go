package claims

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	recordSuffix = ".json"
	tempSuffix   = ".tmp"
	lockName     = ".lock"
	damagedDir   = "damaged"

	// maxRecord is far above what the largest claim needs. A larger file was
	// not written by us.
	maxRecord = 4 << 20

	// keepDamaged is how many damaged files are kept for whoever wants to know
	// what happened to them.
	keepDamaged = 32
)

// checkpoints is what the engine needs of the place where records are kept.
type checkpoints interface {
	// list returns the UIDs that have a record, readable or not.
	list() ([]types.UID, error)
	// load returns a record, or nil if there is none.
	load(uid types.UID) (*Record, error)
	// stage writes a record to disk without anybody seeing it yet.
	stage(r *Record) error
	// discard forgets a staged record.
	discard(uid types.UID) error
	// publish makes the staged record the record. It is seen at once, but is
	// sure to outlive a power cut only after sync.
	publish(uid types.UID) error
	// sync waits until everything published is on disk.
	sync() error
	// remove removes a record and what was staged. That there is none is success.
	remove(uid types.UID) error
}

// directory keeps records as files, one per claim:
//
//	<dir>/<uid>.json               the record
//	<dir>/<uid>.tmp                the next one, until it replaces the first
//	<dir>/.lock                    what locks are on; it stays empty
//	<dir>/damaged/<uid>.<boot>.<n> records that could not be read
//
// The lock of a claim is held by whoever writes, removes or stages its record.
// Reading needs no lock: a record is replaced as a whole.
type directory struct {
	dir string
}

// openDirectory makes the directory and finds out whether it can be used.
func openDirectory(dir string) (*directory, error) {
	if dir == "" {
		return nil, fmt.Errorf("its name is empty")
	}
	d := &directory{dir: filepath.Clean(dir)}
	for _, path := range []string{d.dir, filepath.Join(d.dir, damagedDir)} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
	}
	if _, err := d.list(); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *directory) path(uid types.UID, suffix string) string {
	return filepath.Join(d.dir, string(uid)+suffix)
}

func (d *directory) list() ([]types.UID, error) { return d.withSuffix(recordSuffix) }

// staged returns the claims of which a staged record lies about.
func (d *directory) staged() ([]types.UID, error) { return d.withSuffix(tempSuffix) }

func (d *directory) withSuffix(suffix string) ([]types.UID, error) {
	names, err := readNames(d.dir)
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	var uids []types.UID
	for _, name := range names {
		uid, ours := strings.CutSuffix(name, suffix)
		if ours && checkUID(types.UID(uid)) == nil {
			uids = append(uids, types.UID(uid))
		}
	}
	slices.Sort(uids)
	return uids, nil
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}

func (d *directory) load(uid types.UID) (*Record, error) {
	if err := checkUID(uid); err != nil {
		return nil, err
	}
	path := d.path(uid, recordSuffix)
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	r, err := decode(data)
	if r != nil && r.UID != uid {
		r, err = nil, fmt.Errorf("%w: it is of claim %s", ErrDamaged, r.UID)
	}
	if err != nil {
		return r, fmt.Errorf("read checkpoint %s: %w", path, err)
	}
	return r, nil
}

// readFile reads a file that is expected to be an ordinary one of ordinary size.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return nil, fmt.Errorf("%s: %w: it is no ordinary file of at most %d bytes", path, ErrDamaged, maxRecord)
	}
	return io.ReadAll(io.LimitReader(f, maxRecord))
}

func (d *directory) stage(r *Record) error {
	if err := checkUID(r.UID); err != nil {
		return err
	}
	data, err := encode(r)
	if err == nil {
		err = writeFile(d.path(r.UID, tempSuffix), data)
	}
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

// writeFile leaves a complete file on disk, or none.
func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func (d *directory) publish(uid types.UID) error {
	if err := os.Rename(d.path(uid, tempSuffix), d.path(uid, recordSuffix)); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

func (d *directory) discard(uid types.UID) error {
	if err := os.Remove(d.path(uid, tempSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove checkpoint: %w", err)
	}
	return nil
}

func (d *directory) sync() error {
	f, err := os.Open(d.dir)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

func (d *directory) remove(uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	// No sync: if the file is there again after a power cut, it is from before
	// a reboot, and then undone once more or forgotten.
	for _, suffix := range []string{tempSuffix, recordSuffix} {
		if err := os.Remove(d.path(uid, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove checkpoint: %w", err)
		}
	}
	return nil
}

// has reports whether a claim has a record, readable or not.
func (d *directory) has(uid types.UID) (bool, error) {
	_, err := os.Lstat(d.path(uid, recordSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// setAside moves a damaged record out of the way and says where to.
func (d *directory) setAside(uid types.UID, bootID string) (string, error) {
	if err := checkUID(uid); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s.%s.%d", uid, bootMark(bootID), time.Now().UnixNano())
	to := filepath.Join(d.dir, damagedDir, name)
	if err := os.Rename(d.path(uid, recordSuffix), to); err != nil {
		return "", fmt.Errorf("set damaged checkpoint aside: %w", err)
	}
	return to, d.pruneDamaged()
}

// damagedSince returns the claims whose records were set aside since the boot.
// Their pods may still run.
func (d *directory) damagedSince(bootID string) (map[types.UID]bool, error) {
	names, err := readNames(filepath.Join(d.dir, damagedDir))
	if err != nil {
		return nil, fmt.Errorf("list damaged checkpoints: %w", err)
	}
	uids := map[types.UID]bool{}
	for _, name := range names {
		if parts := strings.Split(name, "."); len(parts) == 3 && parts[1] == bootMark(bootID) {
			uids[types.UID(parts[0])] = true
		}
	}
	return uids, nil
}

// pruneDamaged removes the oldest damaged records if there are too many.
func (d *directory) pruneDamaged() error {
	dir := filepath.Join(d.dir, damagedDir)
	names, err := readNames(dir)
	if err != nil {
		return fmt.Errorf("list damaged checkpoints: %w", err)
	}
	age := func(name string) int64 {
		n, err := strconv.ParseInt(name[strings.LastIndexByte(name, '.')+1:], 10, 64)
		if err != nil {
			return 0 // not named by us: the first to go
		}
		return n
	}
	slices.SortFunc(names, func(a, b string) int { return int(min(max(age(a)-age(b), -1), 1)) })
	for len(names) > keepDamaged {
		if err := os.RemoveAll(filepath.Join(dir, names[0])); err != nil {
			return fmt.Errorf("remove old damaged checkpoint: %w", err)
		}
		names = names[1:]
	}
	return nil
}

// bootMark is a short name of a boot that can stand in a file name.
func bootMark(bootID string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(bootID), castagnoli))
}
