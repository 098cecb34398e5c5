// Package libnvml holds the simulated libnvidia-ml.so.1 in plain C: it speaks
// the protocol of package wire to the simulator that owns the machine.
//
// The sources are embedded, so that a program can build the library where it
// has a C compiler and nothing else. They need only libc, and of that only what
// has been there for long, because the library is loaded in whatever container
// a workload brings.
//
//	err := libnvml.Build(ctx, "build/libnvidia-ml.so.1")
package libnvml

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Sources are the C files, below src.
//
//go:embed src
var Sources embed.FS

// SOName is the name programs link against and load.
const SOName = "libnvidia-ml.so.1"

// Build compiles the library into file with cc (the environment variable CC, or
// gcc).
func Build(ctx context.Context, file string) error {
	dir, err := os.MkdirTemp("", "libnvml-")
	if err != nil {
		return fmt.Errorf("build %s: %w", SOName, err)
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, Sources); err != nil {
		return fmt.Errorf("build %s: unpack sources: %w", SOName, err)
	}
	sources, err := filepath.Glob(filepath.Join(dir, "src", "*.c"))
	if err != nil {
		return fmt.Errorf("build %s: %w", SOName, err)
	}
	return compile(ctx, file, SOName, sources)
}

// BuildEmpty compiles a shared object with nothing in it: a stand-in for the
// driver's other libraries.
func BuildEmpty(ctx context.Context, file, soname string) error {
	dir, err := os.MkdirTemp("", "libempty-")
	if err != nil {
		return fmt.Errorf("build %s: %w", soname, err)
	}
	defer os.RemoveAll(dir)
	source := filepath.Join(dir, "empty.c")
	// A translation unit must declare something.
	if err := os.WriteFile(source, []byte("typedef int simulated_driver_library;\n"), 0o644); err != nil {
		return fmt.Errorf("build %s: %w", soname, err)
	}
	return compile(ctx, file, soname, []string{source})
}

func compile(ctx context.Context, file, soname string, sources []string) error {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	args := append([]string{
		"-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden",
		"-Wl,-soname," + soname, "-Wl,-z,defs", "-Wl,--build-id=none", "-o", file,
	}, sources...)
	if out, err := exec.CommandContext(ctx, cc, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %s: %w: %s", soname, cc, err, strings.TrimSpace(string(out)))
	}
	return nil
}
