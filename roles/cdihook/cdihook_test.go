package cdihook

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nvdra/roles/internal/process"
)

// run runs a hook as the container runtime does: the state of the container is
// on standard input.
func run(t *testing.T, state string, args ...string) (stderr string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "state.json")
	if err := os.WriteFile(file, []byte(state), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	old := os.Stdin
	os.Stdin = in
	defer func() { os.Stdin = old }()
	var out bytes.Buffer
	err = Run(context.Background(), process.Env{Stdout: io.Discard, Stderr: &out}, append([]string{"/plugins/" + Name}, args...))
	return out.String(), err
}

func TestCreateSymlinks(t *testing.T) {
	bundle := t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion":"1.2.0","root":{"path":"rootfs"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	state := `{"ociVersion":"1.2.0","id":"c","status":"creating","pid":1,"bundle":"` + bundle + `"}`
	if out, err := run(t, state, "create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if target, err := os.Readlink(filepath.Join(root, "usr/lib/libcuda.so")); err != nil || target != "libcuda.so.1" {
		t.Errorf("the link leads to %q: %v", target, err)
	}
	if _, err := run(t, "no json", "create-symlinks", "--link", "a::/b"); err == nil || !strings.HasPrefix(err.Error(), Name+": ") {
		t.Errorf("a bad state: %v", err)
	}
}

// TestUnknownHookIsAWarning lets a container start although its CDI spec is
// newer than this program.
func TestUnknownHookIsAWarning(t *testing.T) {
	out, err := run(t, "{}", "hook-of-the-future", "--flag=x")
	if err != nil || !strings.Contains(out, "hook-of-the-future") {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := run(t, "{}", "noop"); err != nil || out != "" {
		t.Errorf("%q, %v", out, err)
	}
}
