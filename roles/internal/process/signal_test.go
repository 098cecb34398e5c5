package process

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startChild runs this test binary as a role and waits until it works.
func startChild(t *testing.T, what string) (cmd *exec.Cmd, out *bufio.Reader, stderr *bytes.Buffer) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	out = bufio.NewReader(pipe)
	expect(t, out, "started")
	return cmd, out, stderr
}

func expect(t *testing.T, out *bufio.Reader, want string) {
	t.Helper()
	if line, err := out.ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("the child says %q, %v; want %q", line, err, want)
	}
}

func send(t *testing.T, cmd *exec.Cmd, s syscall.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func TestSignalStopsGracefully(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		cmd, out, stderr := startChild(t, "idle")
		send(t, cmd, s)
		expect(t, out, "stopping")
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v\n%s", s, err, stderr)
		}
		if !strings.Contains(stderr.String(), `"msg":"end"`) {
			t.Errorf("%v: the log does not end:\n%s", s, stderr)
		}
	}
}

func TestSecondSignalKills(t *testing.T) {
	cmd, out, _ := startChild(t, "stubborn")
	send(t, cmd, syscall.SIGTERM)
	expect(t, out, "stopping")
	before := time.Now()
	send(t, cmd, syscall.SIGTERM)
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("ended with %v", err)
	}
	if took := time.Since(before); took > Grace/2 {
		t.Errorf("took %v", took)
	}
}

func TestUSR2DumpsAndGoesOn(t *testing.T) {
	if err := os.Remove(stackDumpPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(stackDumpPath) })
	cmd, out, stderr := startChild(t, "idle")
	send(t, cmd, syscall.SIGUSR2)
	deadline := time.Now().Add(10 * time.Second)
	var dump []byte
	for !bytes.Contains(dump, []byte("process.Main")) {
		if time.Now().After(deadline) {
			t.Fatalf("no dump: %q\n%s", dump, stderr)
		}
		time.Sleep(10 * time.Millisecond)
		dump, _ = os.ReadFile(stackDumpPath) // not there at first
	}
	send(t, cmd, syscall.SIGTERM)
	expect(t, out, "stopping")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestDumpFallsBackToStderr(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	target := filepath.Join(dir, "target")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "missing", "dump"), link} {
		var stderr bytes.Buffer
		where, err := dumpStacks(path, &stderr)
		if where != "stderr" || err == nil || !strings.Contains(stderr.String(), "goroutine") {
			t.Errorf("%s: written to %s, %v", path, where, err)
		}
	}
	if _, err := os.Stat(target); err == nil {
		t.Error("a symbolic link was followed")
	}
	good := filepath.Join(dir, "dump")
	if where, err := dumpStacks(good, nil); where != good || err != nil {
		t.Errorf("written to %s, %v", where, err)
	}
}
