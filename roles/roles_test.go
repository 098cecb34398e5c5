package roles

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nvdra/roles/internal/process"
)

var update = flag.Bool("update", false, "rewrite testdata/golden/help")

const golden = "../testdata/golden/help"

// TestHelp keeps flags from changing unseen: what --help prints is on file.
func TestHelp(t *testing.T) {
	want := map[string]bool{}
	check := func(file string, argv ...string) {
		t.Helper()
		want[file] = true
		role, args, err := Parse(argv)
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		if err := Run(t.Context(), role, args, &stdout, &stderr); err != nil || stderr.Len() > 0 {
			t.Fatalf("%v %s", err, stderr.String())
		}
		if title, _, _ := strings.Cut(stdout.String(), "\n"); role.Doc != "" && title != "nvdra --role="+role.Name+": "+role.Doc {
			t.Errorf("the help of %s begins with %q, and the table says %q", role.Name, title, role.Doc)
		}
		path := filepath.Join(golden, file)
		if *update {
			if err := os.WriteFile(path, stdout.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		old, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%v; run go test ./roles -update", err)
			return
		}
		if diff := cmp.Diff(string(old), stdout.String()); diff != "" {
			t.Errorf("%s is out of date; if the change is meant, run go test ./roles -update\n%s", path, diff)
		}
	}
	check("nvdra.txt", "nvdra", "--help")
	for _, role := range All {
		check(role.Name+".txt", "nvdra", "--role="+role.Name, "--help")
	}
	files, err := filepath.Glob(filepath.Join(golden, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !want[filepath.Base(f)] {
			t.Errorf("%s belongs to no role", f)
		}
	}
}

func TestAllIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, role := range All {
		if role.Name == "" || role.Doc == "" || role.Run == nil || seen[role.Name] || strings.HasSuffix(role.Doc, ".") {
			t.Errorf("%+v", role)
		}
		seen[role.Name] = true
	}
}

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		argv []string
		role string
		args []string
	}{
		"with equals":   {[]string{"/usr/bin/nvdra", "--role=gpu-plugin", "--v=4"}, "gpu-plugin", []string{"--v=4"}},
		"with a space":  {[]string{"nvdra", "--role", "gpu-plugin", "--v=4"}, "gpu-plugin", []string{"--v=4"}},
		"with one dash": {[]string{"nvdra", "-role=gpu-plugin"}, "gpu-plugin", []string{}},
		"help":          {[]string{"nvdra", "--help"}, "help", []string{}},
		"short help":    {[]string{"nvdra", "-h"}, "help", []string{}},
		"version":       {[]string{"nvdra", "--version"}, "version", []string{}},
	} {
		role, args, err := Parse(test.argv)
		if err != nil || role.Name != test.role || cmp.Diff(test.args, args) != "" {
			t.Errorf("%s: %q, %q, %v", name, role.Name, args, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for says, argv := range map[string][]string{
		"choose a role: nvdra --role=NAME, where NAME is gpu-plugin": {"nvdra"},
		"choose a role": {},
		`unknown role "webhook": want gpu-plugin`:          {"nvdra", "--role=webhook"},
		`unknown role ""`:                                  {"nvdra", "--role="},
		"flag --role needs a value":                        {"nvdra", "--role"},
		`unexpected "gpu-plugin": --role=NAME comes first`: {"nvdra", "gpu-plugin"},
		`unexpected "--v=4"`:                               {"nvdra", "--v=4", "--role=gpu-plugin"},
		`unknown role "nvidia-cdi-hook"`:                   {"nvdra", "--role=nvidia-cdi-hook"},
	} {
		_, _, err := Parse(argv)
		if !errors.Is(err, process.ErrUsage) || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%q) = %v, want %q", argv, err, says)
		}
	}
}

func TestExitCode(t *testing.T) {
	for _, test := range []struct {
		err  error
		code int
		says string
	}{
		{nil, 0, ""},
		{io.EOF, 1, "nvdra: EOF\n"},
		{fmt.Errorf("gpu-plugin: %w", process.Usagef("missing --node-name")), 2, "nvdra: gpu-plugin: missing --node-name\n"},
		{errors.Join(io.EOF, errors.New("two\r\nlines")), 1, "nvdra: EOF; two; lines\n"},
	} {
		var stderr bytes.Buffer
		if code := ExitCode(&stderr, test.err); code != test.code || stderr.String() != test.says {
			t.Errorf("%v: %d %q", test.err, code, stderr.String())
		}
	}
}

func TestVersion(t *testing.T) {
	role, args, err := Parse([]string{"nvdra", "--version"})
	if err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	if err := Run(t.Context(), role, args, &stdout, io.Discard); err != nil || !strings.HasPrefix(stdout.String(), "nvdra ") {
		t.Errorf("%q, %v", stdout.String(), err)
	}
}

// TestMistakesOfARole goes through the real table to a real role.
func TestMistakesOfARole(t *testing.T) {
	for says, args := range map[string][]string{
		"unknown flag --nonsense": {"--nonsense"},
		"no such feature gate":    {"--node-name=n", "--feature-gates=Nonsense=true"},
		`unexpected argument`:     {"--node-name=n", "extra"},
	} {
		role, args, err := Parse(append([]string{"nvdra", "--role=gpu-plugin"}, args...))
		if err != nil {
			t.Fatal(err)
		}
		err = Run(t.Context(), role, args, io.Discard, io.Discard)
		var stderr bytes.Buffer
		if code := ExitCode(&stderr, err); code != 2 || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), says) {
			t.Errorf("%q: exit %d, %q", args, code, stderr.String())
		}
	}
}
