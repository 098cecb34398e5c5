package claims

import (
	"fmt"
	"strings"
)

// overlap refuses a claim one of whose devices is, contains or is contained in
// something another claim has to itself. A claim that is being prepared or
// unprepared has its devices as much as one that is prepared.
func overlap(mine *Record, others []*Record) error {
	for _, other := range others {
		if other.UID == mine.UID || !other.State.live() {
			continue
		}
		for _, d := range mine.Devices {
			for _, o := range other.Devices {
				if d.conflicts(o.Device) {
					return fmt.Errorf("device %s: %w: claim %s has %s and is %s; it must be unprepared first",
						d.Name, ErrConflict, other.Ref, o.Name, strings.ToLower(string(other.State)))
				}
			}
		}
	}
	return nil
}

// conflicts reports whether two claims cannot have d and o at once. A device
// with admin access takes nothing from anybody.
func (d Device) conflicts(o Device) bool {
	if d.Admin || o.Admin {
		return false
	}
	for _, a := range d.Occupies {
		for _, b := range o.Occupies {
			if within(a, b) || within(b, a) {
				return true
			}
		}
	}
	return false
}

// within reports whether part is whole, or below it.
func within(part, whole string) bool {
	return part == whole || len(part) > len(whole) && part[len(whole)] == '/' && strings.HasPrefix(part, whole)
}

// disagreement refuses a claim one of whose steps another claim has done, or is
// about to do, in another way. steps that change nothing cannot disagree.
func disagreement(mine *Record, others []*Record, passive func(kind string) bool) error {
	for i, s := range mine.Steps {
		if passive(s.Kind) {
			continue
		}
		for _, sibling := range mine.Steps[:i] {
			if s.same(sibling) && string(s.Want) != string(sibling.Want) {
				return fmt.Errorf("step %s %s: %w: the claim itself wants it in two ways", s.Kind, s.Key, ErrConflict)
			}
		}
		for _, other := range others {
			if other.UID == mine.UID {
				continue
			}
			for _, o := range other.Steps {
				if s.same(o) && other.wants(o) && string(s.Want) != string(o.Want) {
					return fmt.Errorf("step %s %s: %w: claim %s has it set up in another way", s.Kind, s.Key, ErrConflict, other.Ref)
				}
			}
		}
	}
	return nil
}

// wants reports whether the claim relies on its step o, or will, or still has
// to undo it.
func (r *Record) wants(o Step) bool {
	return o.Begun || r.State == StatePreparing || r.State == StatePrepared
}

// held reports whether somebody else still holds what step i of mine changed:
// another claim, or an earlier step of the same claim.
func held(mine *Record, i int, others []*Record) bool {
	for _, sibling := range mine.Steps[:i] {
		if sibling.Begun && sibling.same(mine.Steps[i]) {
			return true
		}
	}
	for _, other := range others {
		if other.UID == mine.UID {
			continue
		}
		for _, o := range other.Steps {
			if o.Begun && o.same(mine.Steps[i]) {
				return true
			}
		}
	}
	return false
}
