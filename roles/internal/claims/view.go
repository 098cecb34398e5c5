package claims

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// view is what this process has read of all records. Another process may write
// records too, so it looks at the files again each time it is asked, but reads
// only those that changed.
type view struct {
	store interface {
		list() ([]types.UID, error)
		load(uid types.UID) (*Record, error)
	}
	stamp func(uid types.UID) (stamp, error)

	mu   sync.Mutex
	seen map[types.UID]seen
}

// seen is a record as it was when it was read.
type seen struct {
	stamp  stamp
	recent bool // the file could have changed since without its stamp changing
	record *Record
	err    error
}

// stamp changes when a record is replaced.
type stamp struct {
	inode    uint64
	size     int64
	modified time.Time
}

// clockTick is longer than the steps in which a file system's clock runs. Two
// files written within one step may have equal times, and, one after the other,
// the same inode.
const clockTick = 50 * time.Millisecond

func newView(d *directory) *view {
	return &view{store: d, stamp: d.stamp, seen: map[types.UID]seen{}}
}

// stamp returns the stamp of a record's file.
func (d *directory) stamp(uid types.UID) (stamp, error) {
	info, err := os.Lstat(d.path(uid, recordSuffix))
	if err != nil {
		return stamp{}, err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}, fmt.Errorf("stat %s: it has no inode", info.Name())
	}
	return stamp{inode: sys.Ino, size: info.Size(), modified: info.ModTime()}, nil
}

// records returns all records that can be read, sorted by UID, and what was
// wrong with the others. Nobody may change the records. The last error is that
// there is no telling what records there are.
func (v *view) records() ([]*Record, map[types.UID]error, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	uids, err := v.store.list()
	if err != nil {
		return nil, nil, err
	}
	now := map[types.UID]seen{}
	var records []*Record
	problems := map[types.UID]error{}
	for _, uid := range uids {
		s, err := v.look(uid)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since it was listed
		}
		now[uid] = s
		if s.err != nil {
			problems[uid] = s.err
		}
		if s.record != nil {
			records = append(records, s.record)
		}
	}
	v.seen = now
	slices.SortFunc(records, func(a, b *Record) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return records, problems, nil
}

// look reads a record if it is not the one that was read last.
func (v *view) look(uid types.UID) (seen, error) {
	stamp, err := v.stamp(uid)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return seen{}, err
		}
		return seen{err: err, recent: true}, nil
	}
	last, ok := v.seen[uid]
	if ok && last.stamp == stamp && !last.recent {
		return last, nil
	}
	s := seen{stamp: stamp, recent: time.Since(stamp.modified) < clockTick}
	s.record, s.err = v.store.load(uid)
	if s.record == nil && s.err == nil {
		return seen{}, fs.ErrNotExist
	}
	if s.err != nil && !errors.Is(s.err, ErrDamaged) && !errors.Is(s.err, ErrNewer) {
		s.recent = true // the disk may read better next time
	}
	return s, nil
}
