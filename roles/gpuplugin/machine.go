package gpuplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"nvdra/nvml"
	"nvdra/nvml/host"
	"nvdra/roles/gpuplugin/device"
	"nvdra/roles/internal/claims"
)

const (
	// lookEvery is how often the kernel's view is compared with the last one.
	// Nothing announces that an administrator made a MIG device, and a look
	// costs well under a millisecond.
	lookEvery = 10 * time.Second
	// fresh is how long a look counts: claims prepared at the same time share one.
	fresh = 500 * time.Millisecond
	// scanEvery bounds how long a change stays unnoticed that the kernel does
	// not show, such as MIG mode switched on a GPU without MIG devices.
	scanEvery = 10 * time.Minute
	// A machine that is not as it should be (no driver, no GPU, a GPU that
	// cannot be read) is read again after retryFirst, then ever more rarely.
	retryFirst = 2 * time.Second
	retryMost  = 30 * time.Second
	// patience is how long a driver may be away before its devices are
	// withdrawn: a library that is being replaced answers again at once.
	patience = 15 * time.Second
	// scanLimit ends a reading that hangs in the driver.
	scanLimit = 40 * time.Second
)

// A machine is the node's GPUs, read when they have changed and remembered in
// between. No claim waits for the driver unless the kernel shows a change.
type machine struct {
	node  nvml.Node
	box   host.Host
	names *names

	scanning sync.Mutex // one reading at a time
	current  atomic.Pointer[reading]
	nudge    chan struct{} // asks Watch to look now
}

// A reading is what one look at the machine found.
type reading struct {
	inv         *inventory // of the last successful scan; never nil
	fingerprint string
	looked      time.Time // when the fingerprint was last seen to hold
	scanned     time.Time
	err         error     // of the last scan
	failing     time.Time // since when scans fail; zero when they do not
}

func newMachine(node nvml.Node, box host.Host, n *names) *machine {
	m := &machine{node: node, box: box, names: n, nudge: make(chan struct{}, 1)}
	m.current.Store(&reading{inv: newInventory(nvml.Scan{}, nil, nil), err: errNotRead})
	return m
}

var errNotRead = fmt.Errorf("%w: it has not been asked yet", nvml.ErrDriver)

// Inventory is what the last reading found; it reads nothing itself.
func (m *machine) Inventory() *inventory { return m.current.Load().inv }

// Err is why the machine cannot be read now, or nil.
func (m *machine) Err() error { return m.current.Load().err }

// Away says that the driver has been gone for longer than a restart of it takes.
func (m *machine) Away() bool {
	r := m.current.Load()
	return r.err != nil && !r.failing.IsZero() && time.Since(r.failing) > patience
}

// Look makes sure that the inventory is what the kernel shows now. It costs
// next to nothing while nothing has changed.
func (m *machine) Look(ctx context.Context) error {
	if r := m.current.Load(); r.err == nil && time.Since(r.looked) < fresh {
		return nil
	}
	m.scanning.Lock()
	defer m.scanning.Unlock()
	r := m.current.Load()
	if r.err == nil && time.Since(r.looked) < fresh {
		return nil // whoever had the lock has just looked
	}
	print := m.fingerprint()
	if r.err == nil && print == r.fingerprint {
		same := *r
		same.looked = time.Now()
		m.current.Store(&same)
		return nil
	}
	return m.scan(ctx, print)
}

// Scan reads the machine whether or not anything seems to have changed.
func (m *machine) Scan(ctx context.Context) error {
	m.scanning.Lock()
	defer m.scanning.Unlock()
	return m.scan(ctx, m.fingerprint())
}

// fingerprint is what the kernel shows. That it shows nothing readable is a
// state like others: it is reported with the next scan, and compared.
func (m *machine) fingerprint() string {
	print, err := m.box.Fingerprint()
	if err != nil {
		return unreadable + err.Error()
	}
	return print
}

const (
	unreadable       = "unreadable: "
	changedMeanwhile = "changed while it was read" // equals no fingerprint
)

// scan reads the machine. The fingerprint was taken before; if it is another one
// afterwards, nobody knows which of the two was read, and the next look reads
// again, even if all is back to what it was by then. The caller holds scanning.
func (m *machine) scan(ctx context.Context, fingerprint string) error {
	ctx, cancel := context.WithTimeout(ctx, scanLimit)
	defer cancel()
	last := m.current.Load()
	next := &reading{inv: last.inv, fingerprint: fingerprint, looked: time.Now(), scanned: time.Now()}
	defer func() { m.current.Store(next) }()
	scan, err := m.node.Scan(ctx)
	if err != nil {
		next.err = err
		next.failing = last.failing
		if last.failing.IsZero() {
			next.failing = time.Now()
		}
		if time.Since(next.failing) > patience {
			next.inv = newInventory(nvml.Scan{}, nil, nil)
		}
		return err
	}
	if m.fingerprint() != fingerprint {
		next.fingerprint = changedMeanwhile
	}
	numbers, nameErr := m.names.update(scan.GPUs)
	places, placeErrs := m.places(scan.GPUs)
	next.inv = newInventory(scan, numbers, places)
	if text, bad := strings.CutPrefix(fingerprint, unreadable); bad {
		next.inv.problems = append(next.inv.problems, text)
	}
	for _, err := range append(placeErrs, nameErr) {
		if err != nil {
			next.inv.problems = append(next.inv.problems, err.Error())
		}
	}
	return nil
}

// places asks the kernel where the GPUs are. What it does not know is left out.
func (m *machine) places(gpus []nvml.GPU) (map[string]device.Place, []error) {
	places := map[string]device.Place{}
	var errs []error
	for _, g := range gpus {
		var p device.Place
		root, err := m.box.PCIERoot(g.PCI)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("leave out attribute pcieRoot of GPU %s: %w", g.UUID, err))
		}
		p.PCIeRoot = root
		numa, known, err := m.box.NUMANode(g.PCI)
		if err != nil {
			errs = append(errs, fmt.Errorf("leave out attribute numaNode of GPU %s: %w", g.UUID, err))
		}
		if known {
			p.NUMANode = &numa
		}
		places[g.PCI] = p
	}
	return places, errs
}

// Nudge makes Watch read the machine soon, because something about it was
// found not to be as remembered.
func (m *machine) Nudge() {
	select {
	case m.nudge <- struct{}{}:
	default: // it will read anyway
	}
}

// Watch reads the machine when it has changed, until ctx is done, and calls
// changed after every reading, with the error if it failed.
func (m *machine) Watch(ctx context.Context, changed func(*inventory, error)) error {
	retry := retryFirst
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		forced := false
		select {
		case <-ctx.Done():
			return nil
		case <-m.nudge:
			forced = true
		case <-timer.C:
		}
		last := m.current.Load()
		again := scanEvery
		if last.wanting() {
			again = retry
		}
		look := m.Look
		if forced || time.Since(last.scanned) >= again {
			look = m.Scan
		}
		_ = look(ctx) // recorded in the reading
		if ctx.Err() != nil {
			return nil
		}
		now := m.current.Load()
		wait := lookEvery
		switch {
		case !now.wanting():
			retry = retryFirst
		case now.scanned != last.scanned:
			wait = min(retry, lookEvery)
			retry = min(2*retry, retryMost)
		}
		if now.scanned != last.scanned {
			changed(now.inv, now.err)
		}
		timer.Reset(wait)
	}
}

// wanting says that the machine is not as it should be, so that it is worth
// reading again soon.
func (r *reading) wanting() bool {
	return r.err != nil || len(r.inv.gpus) == 0 || len(r.inv.problems) > 0
}

// Device is the device with that UUID as it is now. The error wraps
// claims.ErrRetry while the driver is away, and claims.ErrPermanent when the
// driver is there and does not have the device.
func (m *machine) Device(ctx context.Context, uuid nvml.UUID) (device.Device, error) {
	if err := m.Look(ctx); err != nil {
		return nil, fmt.Errorf("find %s: %w: %w", uuid, claims.ErrRetry, err)
	}
	inv := m.Inventory()
	d, ok := inv.byUUID[uuid]
	if ok {
		return d, nil
	}
	m.Nudge()
	if _, known := inv.gpus[uuid]; known {
		return nil, fmt.Errorf("find %s: %w: the GPU is in MIG mode now, so it cannot be used as a whole", uuid, claims.ErrPermanent)
	}
	return nil, fmt.Errorf("find %s: %w: it is not on this node any more; it was removed, is lost, or cannot be read", uuid, claims.ErrPermanent)
}
