package featuregates

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table in README.md")

func TestKnownIsWellFormed(t *testing.T) {
	if len(Known) > 64 {
		t.Fatalf("%d gates do not fit into a Set", len(Known))
	}
	seen := map[Gate]bool{AllAlpha: true, AllBeta: true}
	for _, spec := range Known {
		if seen[spec.Gate] {
			t.Errorf("%s is declared twice", spec.Gate)
		}
		seen[spec.Gate] = true
		if spec.Stage != Alpha && spec.Stage != Beta {
			t.Errorf("%s: stage %q", spec.Gate, spec.Stage)
		}
		if spec.Default != (spec.Stage == Beta) {
			t.Errorf("%s: alpha gates start off and beta gates start on", spec.Gate)
		}
		if !strings.HasSuffix(spec.Doc, ".") {
			t.Errorf("%s: Doc is not a sentence", spec.Gate)
		}
	}
	for _, spec := range Known {
		for _, other := range append(append([]Gate{}, spec.Requires...), spec.Excludes...) {
			if index(other) < 0 {
				t.Errorf("%s: its rule names %s, which is not in Known", spec.Gate, other)
			}
		}
	}
	if err := (Set{}).Validate(); err != nil {
		t.Errorf("the defaults are not valid: %v", err)
	}
}

const begin, end = "<!-- gates: generated from gates.go, do not edit -->\n", "<!-- end of gates -->\n"

func TestReadmeHasTheTable(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), begin)
	old, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md has no line %q followed by %q", begin, end)
	}
	want := table()
	if old == want {
		return
	}
	if !*update {
		t.Fatalf("the table in README.md is out of date; run go test ./featuregates -update\n%s", want)
	}
	if err := os.WriteFile("README.md", []byte(head+begin+want+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

func table() string {
	var b strings.Builder
	b.WriteString("| Gate | Stage | Default | Rules | Meaning |\n|---|---|---|---|---|\n")
	for _, spec := range Known {
		state := "off"
		if spec.Default {
			state = "on"
		}
		var rules []string
		for _, g := range spec.Requires {
			rules = append(rules, fmt.Sprintf("requires %s", g))
		}
		for _, g := range spec.Excludes {
			rules = append(rules, fmt.Sprintf("excludes %s", g))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", spec.Gate, spec.Stage, state, strings.Join(rules, ", "), spec.Doc)
	}
	return b.String()
}
