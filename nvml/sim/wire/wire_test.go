package wire

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nvdra/nvml/sim"
)

func load(t testing.TB, name string) *sim.Machine {
	t.Helper()
	p, err := sim.LoadProfile(name, "../../../testdata/machines")
	if err != nil {
		t.Fatal(err)
	}
	m, err := sim.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// serve serves a machine below a root until the returned function is called.
func serve(t testing.TB, root string, m *sim.Machine) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l, err := Listen(ctx, root)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, m, nil) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func dial(t testing.TB, root string) *Client {
	t.Helper()
	c, err := Dial(context.Background(), filepath.Join(root, SocketBelow))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestCallAndControl(t *testing.T) {
	// The second is longer than a socket address may be.
	for _, root := range []string{t.TempDir(), filepath.Join(t.TempDir(), strings.Repeat("long/", 40))} {
		m := load(t, "t4x1")
		stop := serve(t, root, m)
		c := dial(t, root)
		got, err := c.Call("DeviceGetName", string(m.Profile().GPUs[0].UUID))
		if err != nil || !cmp.Equal(got, []string{"Tesla T4"}) {
			t.Errorf("name is %q, %v", got, err)
		}
		if _, err := c.Call("DeviceGetMigMode", string(m.Profile().GPUs[0].UUID)); !errors.Is(err, sim.NotSupported) {
			t.Errorf("MIG mode of a T4: %v", err)
		}
		if _, err := c.Call("DeviceGetTemperature", "x"); !errors.Is(err, sim.FunctionNotFound) {
			t.Errorf("an unknown call: %v", err)
		}
		if _, err := c.Control("lose", "0"); err != nil {
			t.Error(err)
		}
		if _, err := c.Control("lose", "a\tb\nc\\"); err == nil || !strings.Contains(err.Error(), "a\tb\nc\\") {
			t.Errorf("an error with tabs and newlines came as %v", err)
		}
		if _, err := Listen(t.Context(), root); err == nil {
			t.Error("a second simulator could listen on the same socket")
		}
		stop()
		if _, err := c.Call("Init"); err == nil {
			t.Error("a stopped simulator answered")
		}
		serve(t, root, m) // the socket left behind does not stand in the way
		if _, err := dial(t, root).Call("Init"); err != nil {
			t.Error(err)
		}
	}
}

// A held call does not stop other connections, and is done though its caller dies.
func TestHeldCallOutlivesItsCaller(t *testing.T) {
	root, m := t.TempDir(), load(t, "mixed")
	serve(t, root, m)
	control := dial(t, root)
	if _, err := control.Control("hold", "CreateGpuInstance"); err != nil {
		t.Fatal(err)
	}
	victim := dial(t, root)
	go victim.Call("DeviceCreateGpuInstance", string(m.Profile().GPUs[0].UUID), "9", "4", "4")
	await(t, func() bool { n, err := m.Held("CreateGpuInstance"); return err == nil && n == 1 })
	victim.Close()
	if n := len(m.View().GPUs()[0].Instances); n != 0 {
		t.Errorf("%d instances while the call is held", n)
	}
	if _, err := control.Control("release"); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return len(m.View().GPUs()[0].Instances) == 1 })
}

func await(t *testing.T, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 10 s")
		}
	}
}

func TestManyConnections(t *testing.T) {
	root, m := t.TempDir(), load(t, "h100x8")
	serve(t, root, m)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			c := dial(t, root)
			uuid := string(m.Profile().GPUs[i%8].UUID)
			for range 50 {
				if got, err := c.Call("DeviceGetUUID", uuid); err != nil || got[0] != uuid {
					t.Errorf("got %q, %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestServerRefusesStrangers(t *testing.T) {
	root := t.TempDir()
	serve(t, root, load(t, "none"))
	for _, first := range []string{"GET / HTTP/1.1\n", "hello\t2\n", "call\t\tInit\n", "hello\\\t1\n", "hello\\x\n", strings.Repeat("x", MaxLine+1) + "\n"} {
		conn, err := net.Dial("unix", filepath.Join(root, SocketBelow))
		if err != nil {
			t.Fatal(err)
		}
		go io.WriteString(conn, first)
		r := bufio.NewReader(conn)
		line, err := r.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "2\t") {
			t.Errorf("%.20q was answered %q, %v", first, line, err)
		}
		if _, err := r.ReadByte(); err == nil {
			t.Errorf("%.20q: the connection stays open", first)
		}
		conn.Close()
	}
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{"", "\t", "call\t\tInit", `a\tb\nc\\`, `\`, `\x`, "ctl\tlose\t0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		fields, err := decode(line)
		if err != nil {
			return
		}
		encoded, err := encode(fields)
		if err != nil {
			return // too long
		}
		again, err := readLine(bufio.NewReader(strings.NewReader(string(encoded))))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fields, again); diff != "" {
			t.Fatalf("changed on the way:\n%s", diff)
		}
	})
}

// Whatever a client sends, the server answers each line or hangs up, and the
// machine stays in order.
func FuzzServer(f *testing.F) {
	uuid := string(load(f, "mixed").Profile().GPUs[0].UUID)
	for _, s := range []string{
		"call\t\tInit\n", "call\t1/580.95.05\tDeviceGetCount\n", "call\t\tDeviceGetName\t" + uuid + "\n",
		"call\t\tDeviceCreateGpuInstance\t" + uuid + "\t9\t4\t4\n", "call\t\tGpuInstanceGetInfo\tgi:" + uuid + ":2:1\n",
		"call\t\tComputeInstanceGetInfo\tci:" + uuid + ":2:0:2\n", "call\t\tEventSetWait\t0\t0\t" + uuid + "\t8\n",
		"ctl\tfail\tGetName\tUNKNOWN\n", "ctl\treboot\tminors=2,1,0\n", "ctl\tbusy\t0\t1\n", "ctl\n", "\n", "call\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "delay") || strings.Contains(string(data), "hold") || strings.Contains(string(data), "EventSetWait") && !strings.Contains(string(data), "\t0\t0\t") {
			return // these wait, as they should
		}
		m := load(t, "mixed")
		ours, theirs := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		s := &server{machine: m, conns: map[net.Conn]bool{}}
		go func() {
			defer close(done)
			s.talk(ctx, theirs)
			theirs.Close()
		}()
		go io.Copy(io.Discard, ours)
		io.WriteString(ours, "hello\t1\n")
		ours.Write(data)
		ours.Close()
		<-done
		text := mustJSON(t, m)
		if _, err := sim.ParseState(m.Profile(), text); err != nil {
			t.Fatalf("the machine is out of order: %v", err)
		}
	})
}

func mustJSON(t *testing.T, m *sim.Machine) []byte {
	t.Helper()
	data, err := json.Marshal(m.View().State)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
