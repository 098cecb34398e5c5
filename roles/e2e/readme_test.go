package e2e

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The README of the scripts lists the verbs as they are.
func TestReadmeListsVerbs(t *testing.T) {
	const begin, end = "<!-- verbs -->\n", "<!-- end of verbs -->"
	file := filepath.Join(scriptsDir, "README.md")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place between %q and %q", file, begin, end)
	}
	var want strings.Builder
	verbs := (&world{}).verbs(io.Discard)
	for _, name := range slices.Sorted(maps.Keys(verbs)) {
		u := verbs[name].Usage()
		fmt.Fprintf(&want, "* `%s`: %s\n\n", strings.TrimSpace(name+" "+u.Args), u.Summary)
		for line := range strings.Lines(u.Detail[0]) {
			fmt.Fprintf(&want, "      %s\n", strings.TrimSpace(line))
		}
		want.WriteString("\n")
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want.String(), have); diff != "" {
		t.Errorf("%s does not list the verbs as they are (-update rewrites it):\n%s", file, diff)
	}
}
