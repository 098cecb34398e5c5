package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	var table table
	table.add("prepare, 8 claims", row{what: "p50", ours: milliseconds(5500 * time.Microsecond), floor: milliseconds(2 * time.Millisecond), aim: "5 ms"})
	table.add("pods", row{what: "alone", ours: seconds(1250 * time.Millisecond), note: "a note"}, row{what: "requests", ours: value{0, "requests"}, floor: value{0, "requests"}})
	var b strings.Builder
	if err := table.print(&b); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.Fields(line))
	}
	want := [][]string{
		{"ours", "floor", "ours/floor", "aim"},
		{"prepare,", "8", "claims"},
		{"p50", "5.5", "ms", "2.0", "ms", "2.75", "5", "ms"},
		{"pods"},
		{"alone", "1.25", "s"},
		{"a", "note"},
		{"requests", "0", "requests", "0", "requests"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestValue(t *testing.T) {
	for want, v := range map[string]value{
		"":        {},
		"0 ms":    milliseconds(0),
		"0.42 ms": milliseconds(420 * time.Microsecond),
		"9.5 ms":  milliseconds(9500 * time.Microsecond),
		"123 ms":  milliseconds(123 * time.Millisecond),
		"1.04 s":  seconds(1040 * time.Millisecond),
		"0.50 s":  seconds(500 * time.Millisecond),
		"1.12 ×":  {1.124, "×"},
		"71.3 s":  seconds(71300 * time.Millisecond),
		"47 MiB":  mebibytes(47 << 20),
		"9.5 MiB": mebibytes(95 << 20 / 10),
	} {
		if got := v.String(); got != want {
			t.Errorf("%+v: %q, want %q", v, got, want)
		}
	}
}
