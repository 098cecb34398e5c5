package archtest

import (
	"path"
	"regexp"
	"strings"
)

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	linked = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// checkReadmes looks for paths in README files that lead nowhere: the targets
// of links, and in the root README the right column of the table "I want to…".
func checkReadmes(t *tree) []violation {
	const why = "a map with a wrong way on it is worse than none"
	var found []violation
	for name, text := range t.texts {
		inMap := false
		for i, line := range strings.Split(text, "\n") {
			report := func(what string) { found = append(found, violation{name, i + 1, what, why}) }
			for _, m := range linked.FindAllStringSubmatch(line, -1) {
				target, _, _ := strings.Cut(m[1], "#")
				if target != "" && !strings.Contains(target, ":") && !t.paths[path.Join(path.Dir(name), target)] {
					report("links to " + m[1] + ", which does not exist")
				}
			}
			if name != "README.md" {
				continue
			}
			row := strings.HasPrefix(line, "|")
			inMap = row && (inMap || strings.Contains(line, "I want to"))
			if inMap {
				for _, wrong := range t.missing(line) {
					report("names " + wrong + ", which does not exist")
				}
			}
		}
	}
	return found
}

// missing returns the paths in the last column of a table row that do not
// exist. A name may be short for one beside the path before it.
func (t *tree) missing(row string) []string {
	cells := strings.Split(strings.Trim(row, "| "), "|")
	var wrong []string
	last := ""
	for _, m := range quoted.FindAllStringSubmatch(cells[len(cells)-1], -1) {
		p := strings.TrimSuffix(strings.TrimSuffix(m[1], "…"), "/")
		if strings.ContainsAny(p, " *<>=") || strings.HasPrefix(p, "-") { // a command, a pattern or a flag
			continue
		}
		switch {
		case t.paths[p]:
			last = p
		case last != "" && (t.paths[path.Join(last, p)] || t.paths[path.Join(path.Dir(last), p)]):
		default:
			wrong = append(wrong, m[1])
		}
	}
	return wrong
}
