package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// A value is one figure, with the unit it is printed in.
type value struct {
	n    float64
	unit string
}

func (v value) String() string {
	if v.unit == "" {
		return ""
	}
	digits := 0
	switch {
	case v.n != 0 && v.n < 1:
		digits = 2
	case v.n != 0 && v.n < 10 || v.unit == "s" && v.n < 100:
		digits = 1
	}
	if v.unit == "s" && v.n < 10 || v.unit == "×" {
		digits = 2
	}
	return fmt.Sprintf("%.*f %s", digits, v.n, v.unit)
}

func seconds(d time.Duration) value      { return value{d.Seconds(), "s"} }
func milliseconds(d time.Duration) value { return value{float64(d) / float64(time.Millisecond), "ms"} }
func mebibytes(bytes int64) value        { return value{float64(bytes) / (1 << 20), "MiB"} }

// A row is one line of the table: ours, the floor's, and what we want ours to be.
type row struct {
	what  string
	ours  value
	floor value
	aim   string
	note  string // more about it, on a line below
}

// A section is rows about one thing.
type section struct {
	title string
	rows  []row
}

// A table is what the program has found out.
type table struct{ sections []section }

func (t *table) add(title string, rows ...row) {
	t.sections = append(t.sections, section{title, rows})
}

// ratio is ours by the floor's.
func (r row) ratio() string {
	if r.floor.n == 0 || r.floor.unit != r.ours.unit {
		return ""
	}
	return fmt.Sprintf("%.2f", r.ours.n/r.floor.n)
}

// print writes the table for a screen of 100 columns.
func (t *table) print(w io.Writer) error {
	var b strings.Builder
	line := func(what string, cells ...any) {
		text := fmt.Sprintf("%-52s"+strings.Repeat(" %13v", len(cells)), append([]any{what}, cells...)...)
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	line("", "ours", "floor", "ours/floor", "aim")
	for _, s := range t.sections {
		line(s.title)
		for _, r := range s.rows {
			line("  "+r.what, r.ours, r.floor, r.ratio(), r.aim)
			if r.note != "" {
				line("    " + r.note)
			}
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}
