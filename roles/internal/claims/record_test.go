package claims

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

const (
	goodRecords = "../../../testdata/checkpoints/v1"
	badRecords  = "../../../testdata/bad/checkpoints"
)

var update = flag.Bool("update", false, "write checkpoint fixtures that do not exist yet; existing ones must load for ever and are never rewritten")

// fixtures are the records in testdata/checkpoints/v1, by file name without the
// UID. A released one must not be changed.
func fixtures() map[string]*Record {
	at := time.Date(2026, 9, 1, 12, 30, 15, 250_000_000, time.UTC)
	share := types.UID("3c1f9a52-6a0e-4b7f-9d53-0f4f4c1f7a10")
	const bus = "0000:65:00.0"
	record := func(n int, name string, state State, devices []Prepared, steps ...Step) *Record {
		uid := types.UID(fmt.Sprintf("6f0c2b1e-0000-4000-8000-%012d", n))
		for i := range devices {
			if state == StatePrepared || state == StateUnpreparing {
				devices[i].CDIDevices = []string{"k8s.gpu.nvidia.com/claim=" + devices[i].cdiName(uid)}
			}
		}
		r := &Record{Ref: Ref{uid, "train", name}, ResourceVersion: "4711", Generation: 1, BootID: "0e9ff2b4-7c43-4d39-b33b-b0a5a4f2c911",
			State: state, Since: at, Devices: devices, Steps: steps}
		if state == StatePrepared {
			r.Spec = "2c26b46b68ffc68ff99b453c1d304134"
		}
		return r
	}
	dev := func(kind, name string, occupies ...string) Prepared {
		return Prepared{Device: Device{Requests: []string{"gpu"}, Pool: "node-a", Name: name, Type: kind, Occupies: occupies}}
	}
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	gpuStep := Step{Kind: "gpu", Key: "GPU-0a1", Device: "gpu-0", Want: raw(`{"uuid":"GPU-0a1"}`), Result: raw("null")}
	migWant := raw(`{"gpu":"GPU-0a1","placement":{"size":4,"start":0},"profile":"3g.71gb"}`)
	migDone := raw(`{"ci":0,"gi":1,"uuid":"MIG-77"}`)
	shares := []Prepared{dev("gpu", "gpu-0", bus+"/share-1"), dev("gpu", "gpu-0")}
	shares[0].ShareID = &share
	shares[1].Admin = true
	return map[string]*Record{
		"prepared-gpu": record(1, "whole", StatePrepared, []Prepared{dev("gpu", "gpu-0", bus)}, gpuStep),
		"prepared-static-mig": record(2, "static", StatePrepared, []Prepared{dev("mig", "gpu-0-mig-1g12gb-19-0", bus+"/0")},
			Step{Kind: "migdevice", Key: "MIG-12", Device: "gpu-0-mig-1g12gb-19-0", Want: raw(`{"uuid":"MIG-12"}`), Result: raw("null")}),
		"prepared-dynamic-mig": record(3, "dynamic", StatePrepared, []Prepared{dev("mig", "gpu-0-mig-3g71gb-9-0", bus+"/0", bus+"/1")},
			Step{Kind: "mig", Key: "GPU-0a1/9-0", Device: "gpu-0-mig-3g71gb-9-0", Want: migWant, Begun: true, Result: migDone}),
		"prepared-vfio": record(4, "vm", StatePrepared, []Prepared{dev("vfio", "gpu-vfio-0", bus)},
			Step{Kind: "vfio", Key: bus, Device: "gpu-vfio-0", Want: raw(`{"iommu":"legacy"}`), Begun: true, Result: raw(`{"driver":"nvidia","group":"12"}`)}),
		"prepared-shared": record(5, "shares", StatePrepared, shares,
			gpuStep, Step{Kind: "timeslice", Key: "GPU-0a1", Device: "gpu-0", Want: raw(`{"interval":"Long"}`), Begun: true, Result: raw("null")}),
		"prepared-channel": record(6, "channel", StatePrepared, []Prepared{dev("", "channel-0")},
			Step{Kind: "join", Key: "domain-1", Want: raw(`{"domain":"8e0d"}`), Begun: true, Result: raw(`{"label":true}`)},
			Step{Kind: "channel", Key: "0", Device: "channel-0", Want: raw(`{"ids":[0]}`), Result: raw("null")}),
		"preparing-dynamic-mig": record(7, "crashed", StatePreparing, []Prepared{dev("mig", "gpu-0-mig-3g71gb-9-0", bus+"/0", bus+"/1")},
			gpuStep, Step{Kind: "mig", Key: "GPU-0a1/9-0", Device: "gpu-0-mig-3g71gb-9-0", Want: migWant, Begun: true},
			Step{Kind: "mps", Key: "MIG", Device: "gpu-0-mig-3g71gb-9-0"}),
		"unpreparing-vfio": record(8, "leaving", StateUnpreparing, []Prepared{dev("vfio", "gpu-vfio-0", bus)},
			Step{Kind: "vfio", Key: bus, Device: "gpu-vfio-0", Want: raw(`{"iommu":"iommufd"}`), Begun: true, Result: raw(`{"driver":"nvidia","group":"12"}`)}),
		"aborting-mps": record(9, "given-up", StateAborting, []Prepared{dev("gpu", "gpu-0", bus)},
			Step{Kind: "mps", Key: "GPU-0a1", Device: "gpu-0", Want: raw(`{"limit":"10Gi","threads":50}`), Begun: true}),
		"aborted": record(10, "tombstone", StateAborted, nil),
	}
}

// A fixture of every released version loads for ever.
func TestFixtures(t *testing.T) {
	want := fixtures()
	if *update {
		writeFixtures(t, want)
	}
	files, err := filepath.Glob(filepath.Join(goodRecords, "*.json"))
	if err != nil || len(files) < len(want) {
		t.Fatalf("%d fixtures, want at least %d: %v", len(files), len(want), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(data)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if w := want[name]; w == nil {
			t.Logf("%s is compared with nothing", name)
		} else if diff := cmp.Diff(w, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func writeFixtures(t *testing.T, records map[string]*Record) {
	for name, r := range records {
		path := filepath.Join(goodRecords, name+".json")
		if _, err := os.Stat(path); err == nil {
			continue
		}
		data, err := encode(r)
		if err == nil {
			err = os.MkdirAll(goodRecords, 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// R001: this version works with what every released version left: it says what
// is prepared and unprepares it without asking anybody.
func TestR001Upgrade(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(goodRecords, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r, err := decode(data)
			if err != nil {
				t.Fatal(err)
			}
			n := newNode(fastDir(t))
			dir := filepath.Join(n.root, "claims")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, string(r.UID)+".json"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			b := open(t, n, bootID(r.BootID), func(c *Config) {
				c.Handlers = map[string]Handler{}
				for _, kind := range []string{"gpu", "mig", "migdevice", "vfio", "timeslice", "mps", "join", "channel"} {
					c.Handlers[kind] = act{node: n}
				}
			})
			if err := b.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r.State == StatePrepared && b.state(r.UID) != StatePrepared {
				t.Errorf("state %s", b.state(r.UID))
			}
			if err := b.Unprepare(t.Context(), r.Ref); err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, s := range slices.Backward(r.Steps) {
				if s.Begun {
					want = append(want, "undo "+s.Kind+" "+s.Key)
				}
			}
			if diff := cmp.Diff(want, b.node.calls()); diff != "" {
				t.Errorf("undone (-want +got):\n%s", diff)
			}
			mustBeEmpty(t, b)
			if reports := b.reported(); len(reports) > 0 {
				t.Errorf("reports: %v", reports)
			}
		})
	}
}

// Every file in testdata/bad is refused, for the reason that its name says.
func TestBadFixtures(t *testing.T) {
	if *update {
		writeBadFixtures(t)
	}
	files, err := filepath.Glob(filepath.Join(badRecords, "*"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d bad checkpoints: %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := ErrDamaged
		if strings.HasPrefix(filepath.Base(file), "newer-") {
			want = ErrNewer
		}
		if _, err := decode(data); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}

func writeBadFixtures(t *testing.T) {
	good, err := encode(fixtures()["prepared-dynamic-mig"])
	if err != nil {
		t.Fatal(err)
	}
	sealed := func(body string) []byte { return append([]byte(body+"\n"), checksum([]byte(body+"\n"))...) }
	line, _, _ := strings.Cut(string(good), "\n")
	change := func(old, with string) []byte {
		if !strings.Contains(line, old) {
			t.Fatalf("%q is not in the good record", old)
		}
		return sealed(strings.Replace(line, old, with, 1))
	}
	flipped := slices.Clone(good)
	flipped[len(flipped)-2] ^= 1
	for name, data := range map[string][]byte{
		"empty":             {},
		"zeros":             make([]byte, 512),
		"truncated":         good[:len(good)/2],
		"no-checksum":       []byte(line + "\n"),
		"checksum-flipped":  flipped,
		"content-changed":   []byte(strings.Replace(string(good), "3g.71gb", "4g.71gb", 1)),
		"twice":             append(slices.Clone(good), good...),
		"not-json":          sealed("version: 1"),
		"version-zero":      change(`"version":1`, `"version":0`),
		"no-version":        change(`"version":1,`, ``),
		"uid-is-a-path":     change(`"uid":"`, `"uid":"../../`),
		"no-name":           change(`"name":"dynamic"`, `"name":""`),
		"unknown-state":     change(`"Prepared"`, `"Dreaming"`),
		"absent":            change(`"Prepared"`, `"Absent"`),
		"year-10000":        change(`"2026-09-01T12:30:15.25Z"`, `"9999-12-31T23:59:59-01:00"`),
		"step-without-kind": change(`"kind":"mig"`, `"kind":""`),
		"newer-version":     change(`"version":1`, `"version":2`),
		"newer-and-strange": sealed(`{"version":9,"claims":"all of them"}`),
	} {
		path := filepath.Join(badRecords, name+".json")
		if _, err := os.Stat(path); err == nil {
			continue
		}
		err := os.MkdirAll(badRecords, 0o755)
		if err == nil {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Fields of a newer program do no harm as long as the version is the same.
func TestUnknownFields(t *testing.T) {
	body := `{"version":1,"uid":"u","namespace":"n","name":"c","state":"Prepared","since":"2026-09-01T00:00:00Z","colour":"blue","steps":[{"kind":"act","key":"k","begun":true,"tries":3}]}` + "\n"
	r, err := decode([]byte(body + checksum([]byte(body))))
	if err != nil || r.UID != "u" || !r.Steps[0].Begun {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		``:                               ``,
		`null`:                           `null`,
		` { "b" : 1 , "a":[ 1.0, 2 ]}`:   `{"a":[1.0,2],"b":1}`,
		`"<&>"`:                          `"\u003c\u0026\u003e"`,
		`123456789012345678901234567890`: `123456789012345678901234567890`,
	} {
		got, err := canonical(json.RawMessage(in))
		if err != nil || string(got) != want {
			t.Errorf("canonical(%s) = %s, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{`{`, `1 2`, `nul`} {
		if got, err := canonical(json.RawMessage(in)); err == nil {
			t.Errorf("canonical(%s) = %s", in, got)
		}
	}
}

func FuzzCheckpoint(f *testing.F) {
	for _, dir := range []string{goodRecords, badRecords} {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data, false)
			f.Add(data, true)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if seal { // get past the checksum, as damage never will
			line, _, _ := strings.Cut(string(data), "\n")
			data = append([]byte(line+"\n"), checksum([]byte(line+"\n"))...)
		}
		r, err := decode(data)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Fatalf("neither damaged nor newer: %v", err)
			}
			return
		}
		again, err := encode(r)
		if err != nil {
			t.Fatalf("read, but not written: %v", err)
		}
		back, err := decode(again)
		if err != nil || !reflect.DeepEqual(r, back) {
			t.Fatalf("changed in a round trip: %v\n%s", err, cmp.Diff(r, back))
		}
	})
}

// R002: a damaged checkpoint is set aside and reported; everything else goes
// on; the claim prepares anew; the spec its running pod may need stays.
func TestR002DamagedRecord(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"checksum digit": func(b []byte) []byte { b[len(b)-2] ^= 1; return b },
		"half":           func(b []byte) []byte { return b[:len(b)/2] },
		"empty":          func([]byte) []byte { return nil },
		"of another":     func(b []byte) []byte { return []byte(strings.ReplaceAll(string(b), "uid-bad", "uid-odd")) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setUp(t)
			good, bad := claim("good", gpu("gpu-0", "edit")), claim("bad", gpu("gpu-1", "edit"))
			mustPrepare(t, b, good)
			mustPrepare(t, b, bad)
			path := b.dir.path(bad.UID, recordSuffix)
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, damage(data), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			b = b.reopen(t)
			reports := b.reported()
			if len(reports) != 1 || reports[0].Reason != ReasonDamaged || reports[0].Ref.UID != bad.UID || !strings.Contains(reports[0].Message, path) {
				t.Errorf("reports: %+v", reports)
			}
			aside, err := os.ReadDir(filepath.Join(b.cfg.Dir, damagedDir))
			if err != nil || len(aside) != 1 {
				t.Errorf("set aside: %v, %v", aside, err)
			}
			if b.specText(bad.UID) == "" {
				t.Error("the spec of the claim is gone, and with it the running pod's next container")
			}
			if b.state(good.UID) != StatePrepared || b.state(bad.UID) != StateAbsent {
				t.Errorf("states %s and %s", b.state(good.UID), b.state(bad.UID))
			}
			mustPrepare(t, b, bad)
			mustUnprepare(t, b, bad)
			mustUnprepare(t, b, good)
			mustBeEmpty(t, b)
		})
	}
}

// R002: a claim whose record was damaged and whose pod is then deleted.
func TestUnprepareAfterDamage(t *testing.T) {
	b := setUp(t)
	c := claim("bad", gpu("gpu-1", "edit"))
	mustPrepare(t, b, c)
	if err := os.WriteFile(b.dir.path(c.UID, recordSuffix), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b = b.reopen(t)
	mustUnprepare(t, b, c)
	mustBeEmpty(t, b)

	// After a reboot no pod needs the spec.
	mustPrepare(t, b, c)
	if err := os.WriteFile(b.dir.path(c.UID, recordSuffix), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b = b.reopen(t)
	if b.specText(c.UID) == "" {
		t.Fatal("the spec is gone")
	}
	b = b.reopen(t, bootID("boot-2"))
	mustBeEmpty(t, b)
}

func TestDamagedFilesAreBounded(t *testing.T) {
	b := setUp(t)
	for i := range keepDamaged + 10 {
		uid := types.UID(fmt.Sprintf("uid-%d", i))
		if err := os.WriteFile(b.dir.path(uid, recordSuffix), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.Unprepare(t.Context(), Ref{UID: uid, Namespace: "n", Name: "c"}); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := readNames(filepath.Join(b.cfg.Dir, damagedDir))
	if err != nil || len(kept) != keepDamaged {
		t.Fatalf("%d kept: %v", len(kept), err)
	}
	for _, name := range kept {
		if strings.HasPrefix(name, "uid-0.") {
			t.Error("the oldest was kept")
		}
	}
}

// R002, third part: a directory that cannot be used is a fatal error with its name.
func TestUnusableDirectory(t *testing.T) {
	b := setUp(t)
	cfg := b.cfg
	cfg.Dir = filepath.Join(b.node.root, "file")
	if err := os.WriteFile(cfg.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(cfg)
	wantError(t, err, nil, cfg.Dir, "not a directory", "read and write")
	cfg.Dir = ""
	_, err = Open(cfg)
	wantError(t, err, nil, "empty")
	_, err = Open(Config{Dir: b.node.root, Handlers: map[string]Handler{"x": nil}})
	wantError(t, err, nil, "BootID", "Planner", "Specs", `"x"`)
	if os.Geteuid() == 0 {
		return // root may read everything
	}
	cfg.Dir = filepath.Join(b.node.root, "closed")
	if err := os.Mkdir(cfg.Dir, 0); err != nil {
		t.Fatal(err)
	}
	_, err = Open(cfg)
	wantError(t, err, os.ErrPermission, cfg.Dir)
}

// A record of a newer version is left alone and blocks its own claim only, and
// its devices.
func TestNewerRecord(t *testing.T) {
	b := setUp(t)
	c := claim("new", gpu("gpu-0", "edit"))
	mustPrepare(t, b, c)
	path := b.dir.path(c.UID, recordSuffix)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	line = strings.Replace(line, `"version":1`, `"version":2`, 1) + "\n"
	if err := os.WriteFile(path, []byte(line+checksum([]byte(line))), 0o600); err != nil {
		t.Fatal(err)
	}
	b = b.reopen(t)
	if r := b.reported(); len(r) != 1 || r[0].Reason != ReasonUnreadable || !strings.Contains(r[0].Message, "newer") {
		t.Errorf("reports: %+v", r)
	}
	_, err = b.Prepare(t.Context(), c)
	wantError(t, err, ErrNewer, path, "version is 2")
	wantError(t, b.Unprepare(t.Context(), RefOf(c)), ErrNewer, path)
	_, err = b.Prepare(t.Context(), claim("other", gpu("gpu-0", "edit")))
	wantError(t, err, ErrConflict, "train/new")
	mustPrepare(t, b, claim("third", gpu("gpu-1", "edit")))
	if b.specText(c.UID) == "" {
		t.Error("its spec is gone")
	}
}

// A record may be anything but a file; nothing hangs or follows it.
func TestStrangeFiles(t *testing.T) {
	b := setUp(t)
	secret := filepath.Join(b.node.root, "secret")
	if err := errors.Join(
		os.WriteFile(secret, []byte("x"), 0o600),
		os.Symlink(secret, b.dir.path("uid-link", recordSuffix)),
		os.Mkdir(b.dir.path("uid-dir", recordSuffix), 0o700),
		os.WriteFile(filepath.Join(b.cfg.Dir, "README.json.txt"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(secret, maxRecord+1); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(secret, b.dir.path("uid-huge", recordSuffix)); err != nil {
		t.Fatal(err)
	}
	b = b.reopen(t)
	if len(b.Records()) != 0 {
		t.Errorf("records: %v", b.Records())
	}
	mustPrepare(t, b, claim("job", gpu("gpu-0", "edit")))
	if err := b.Sweep(context.Background(), noClaims{}); err == nil {
		t.Error("a symbolic link in the place of a record was not worth a word")
	}
}
