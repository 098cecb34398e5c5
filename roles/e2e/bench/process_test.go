package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

const rollup = `55d0c0a00000-7ffd1b1f2000 ---p 00000000 00:00 0                          [rollup]
Rss:               48128 kB
Pss:               40000 kB
Anonymous:         10240 kB
AnonHugePages:      2048 kB
`

func TestParseRollup(t *testing.T) {
	m, err := parseRollup([]byte(rollup))
	if err != nil || m != (memory{47 << 20, 10 << 20}) {
		t.Errorf("%+v, %v", m, err)
	}
	for _, bad := range []string{"", "Rss: 1 kB\n", "Rss: 1 MB\nAnonymous: 1 kB\n", "Rss: -1 kB\nAnonymous: 1 kB\n", "Rss: 99999999999999 kB\nAnonymous: 1 kB\n"} {
		if m, err := parseRollup([]byte(bad)); !errors.Is(err, errRollup) {
			t.Errorf("%q: %+v, %v", bad, m, err)
		}
	}
}

func FuzzParseRollup(f *testing.F) {
	for _, seed := range []string{rollup, "", "Rss: 1 kB\nAnonymous: 1 kB", "Rss:\nAnonymous:", "\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseRollup(raw)
		if err != nil && !errors.Is(err, errRollup) {
			t.Fatal(err)
		}
		if m.resident < 0 || m.anonymous < 0 {
			t.Fatalf("%+v", m)
		}
	})
}

// TestProcess looks at this process and a child of it.
func TestProcess(t *testing.T) {
	self := os.Getpid()
	if m, err := memoryOf(self); err != nil || m.resident <= m.anonymous || m.anonymous == 0 {
		t.Errorf("memory: %+v, %v", m, err)
	}
	before, err := processorTime(self)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
	}
	if after, err := processorTime(self); err != nil || after-before < time.Millisecond {
		t.Errorf("computed %v in 20 ms, %v", after-before, err)
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if pid, err := childOf(self); err != nil || pid != child.Process.Pid {
		t.Errorf("child %d, %v; want %d", pid, err, child.Process.Pid)
	}
	if p := parentOf(child.Process.Pid); p != self {
		t.Errorf("parent %d, want %d", p, self)
	}
	var pid int
	for range 100 { // until it has become sleep
		if pid, err = inCgroup("", "sleep", "60"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("found %d, %v", pid, err) // others may run the same
	if err := child.Process.Kill(); err != nil {
		t.Error(err)
	}
	child.Wait() //nolint:errcheck // it was killed
	if _, err := childOf(self); err == nil {
		t.Error("a child that is gone was found")
	}
	if _, err := memoryOf(child.Process.Pid); err == nil {
		t.Error("memory of a process that is gone")
	}
}
