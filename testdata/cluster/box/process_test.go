package box

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	for _, name := range []string{"(sh)", "(a b)", "(x) S 9 (y)"} {
		state, start, err := parseStat([]byte("12 " + name + rest))
		if err != nil || state != 'S' || start != 4711 {
			t.Errorf("%s: got %c, %d, %v; want S, 4711", name, state, start, err)
		}
	}
	for _, bad := range []string{"", "12 (sh", "12 (sh) S 1 2", "12 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20"} {
		if _, _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"))
	f.Add([]byte(")"))
	f.Add([]byte("1 ()) Z"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, _, err := parseStat(raw); err != nil {
			return // refusing is fine; panicking is not
		}
	})
}

func TestProcessLife(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() {
		t.Fatal("a process that sleeps is not alive")
	}
	// The same number at another time is another process, and must not be hurt.
	other := Process{PID: p.PID, Start: p.Start + 1}
	if other.Alive() {
		t.Error("a process that began at another time counts as this one")
	}
	if err := other.End(0); err != nil {
		t.Errorf("end another process: %v", err)
	}
	if !p.Alive() {
		t.Fatal("ending another process ended this one")
	}
	if err := p.End(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := <-done; !errors.As(err, &exit) {
		t.Errorf("wait: %v", err)
	}
	if err := p.End(0); err != nil {
		t.Errorf("end a process that has ended: %v", err)
	}
	if (Process{}).Alive() {
		t.Error("no process is alive")
	}
}

func TestEndKillsWhatWillNotEnd(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.End(100 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v, want signal: killed", err)
	}
}

func TestIdentifyNobody(t *testing.T) {
	if _, err := Identify(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
}
