package claims

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestNext(t *testing.T) {
	for _, from := range states {
		for _, e := range events {
			got, err := Next(from, e)
			want, listed := transitions[from][e]
			if listed && (err != nil || got != want) {
				t.Errorf("%s in %s: %s, %v, want %s", e, from, got, err, want)
			}
			if !listed && (!errors.Is(err, ErrRefused) || got != from) {
				t.Errorf("%s in %s: %s, %v, want a refusal", e, from, got, err)
			}
		}
	}
	if _, err := Next("Dreaming", PrepareCalled); !errors.Is(err, ErrRefused) {
		t.Errorf("unknown state: %v", err)
	}
}

// Every state can be reached, every state can be left, and no transition leads
// out of the table.
func TestTransitionsAreComplete(t *testing.T) {
	reached := map[State]bool{StateAbsent: true}
	for range states {
		for from := range reached {
			for _, to := range transitions[from] {
				reached[to] = true
			}
		}
	}
	known := map[Event]bool{}
	for _, e := range events {
		known[e] = true
	}
	for _, s := range states {
		if !reached[s] {
			t.Errorf("%s cannot be reached", s)
		}
	}
	for from, row := range transitions {
		left := false
		for e, to := range row {
			left = left || to != from
			if _, ok := transitions[to]; !ok {
				t.Errorf("%s in %s leads to %s, which has no row", e, from, to)
			}
			if !known[e] {
				t.Errorf("event %s is not listed", e)
			}
		}
		if !left {
			t.Errorf("%s cannot be left", from)
		}
	}
	if len(transitions) != len(states) {
		t.Errorf("%d rows, %d states", len(transitions), len(states))
	}
}

// Whatever state a claim is in, unprepare calls alone make it go away.
func TestUnprepareEndsEveryState(t *testing.T) {
	for _, s := range states {
		at := s
		for range 4 {
			for _, e := range []Event{UnprepareCalled, UndoDone, TombstoneOld} {
				if next, err := Next(at, e); err == nil {
					at = next
				}
			}
		}
		if at != StateAbsent {
			t.Errorf("from %s unprepare ends in %s", s, at)
		}
	}
}

func TestDiagramInREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "```mermaid\n" + diagram() + "```\n"; !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not have the diagram of the table; put this there:\n%s", want)
	}
}
