package featuregates

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// What can be wrong with the text of a setting. Errors of Parse wrap one or
// more of them.
var (
	ErrSyntax  = errors.New("not of the form Name=true or Name=false")
	ErrUnknown = errors.New("no such feature gate")
)

// Parse reads settings of the form Name=bool[,Name=bool…] and returns the
// defaults changed by them. Texts are applied one after the other, so a later
// one wins; give the environment's first and the command line's after it.
//
// AllAlpha and AllBeta set every gate of their stage that nothing has set so
// far; a gate's own name in the same text wins over them wherever it stands.
// Spaces and empty segments, such as the one after a trailing comma, are
// ignored. All mistakes of all texts are reported together.
func Parse(texts ...string) (Set, error) {
	var s Set
	var assigned uint64
	var errs []error
	for _, text := range texts {
		byName, groups, err := assignments(text)
		errs = append(errs, err...)
		for i, on := range byName {
			s = s.set(i, on)
			s.byGroup &^= 1 << i
			assigned |= 1 << i
		}
		for stage, on := range groups {
			for i, spec := range Known {
				if spec.Stage == stage && !spec.OnlyByName && assigned&(1<<i) == 0 {
					s = s.set(i, on)
					s.byGroup |= 1 << i
					assigned |= 1 << i
				}
			}
		}
	}
	if len(errs) > 0 {
		return Set{}, &parseError{errs}
	}
	return s, nil
}

// assignments splits one text into what it says about single gates (by index
// in Known) and about whole stages.
func assignments(text string) (byName map[int]bool, groups map[Stage]bool, errs []error) {
	byName, groups = map[int]bool{}, map[Stage]bool{}
	for segment := range strings.SplitSeq(text, ",") {
		segment = strings.TrimSpace(segment)
		if segment == "" {
			continue
		}
		name, value, found := strings.Cut(segment, "=")
		name = strings.TrimSpace(name)
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		switch {
		case !found || err != nil:
			errs = append(errs, fmt.Errorf("%q is %w", segment, ErrSyntax))
		case Gate(name) == AllAlpha:
			groups[Alpha] = on
		case Gate(name) == AllBeta:
			groups[Beta] = on
		case index(Gate(name)) >= 0:
			byName[index(Gate(name))] = on
		default:
			errs = append(errs, fmt.Errorf("%q: %w; %s", name, ErrUnknown, suggestion(name)))
		}
	}
	return byName, groups, errs
}

// suggestion names the gate that differs only in case, or all there are.
func suggestion(name string) string {
	names := []string{string(AllAlpha), string(AllBeta)}
	for i := range Known {
		names = append(names, string(Known[i].Gate))
	}
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return "did you mean " + n + "?"
		}
	}
	sort.Strings(names)
	return "known are " + strings.Join(names, ", ")
}

// parseError puts all mistakes on one line, where errors.Join would take one
// line for each.
type parseError struct{ errs []error }

func (e *parseError) Error() string   { return "parse feature gates: " + oneLine(e.errs) }
func (e *parseError) Unwrap() []error { return e.errs }

func oneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}
