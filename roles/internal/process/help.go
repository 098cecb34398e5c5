package process

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// helpWidth is where lines of the help are broken.
const helpWidth = 100

// printHelp shows what a role does and all its flags with their environment
// variables and defaults.
func printHelp(w io.Writer, program, doc string, groups []flagGroup) {
	fmt.Fprintf(w, "%s: %s\n\nUsage: %s [flags]\n", program, doc, program)
	for _, group := range groups {
		if len(group.flags) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", group.title)
		for _, f := range group.flags {
			printFlag(w, f)
		}
	}
	fmt.Fprint(w, "\nEvery flag can be given by the environment variable after it; the flag wins.\n")
}

// flagGroup is one section of the help.
type flagGroup struct {
	title string
	flags []cli.Flag
}

func printFlag(w io.Writer, f cli.Flag) {
	names := make([]string, len(f.Names()))
	for i, name := range f.Names() {
		names[i] = dashed(name)
	}
	fmt.Fprintf(w, "  %s", strings.Join(names, ", "))
	doc, ok := f.(cli.DocGenerationFlag)
	if !ok {
		fmt.Fprintln(w)
		return
	}
	for _, env := range doc.GetEnvVars() {
		fmt.Fprintf(w, " $%s", env)
	}
	if required, ok := f.(cli.RequiredFlag); ok && required.IsRequired() {
		fmt.Fprint(w, " (required)")
	} else if text := strings.Trim(doc.GetDefaultText(), `"`); text != "" {
		fmt.Fprintf(w, " (default %s)", text)
	}
	fmt.Fprintln(w)
	for _, line := range wrap(doc.GetUsage(), helpWidth-8) {
		fmt.Fprintf(w, "        %s\n", line)
	}
}

// dashed is a flag as people write it: -v, --log-level.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// wrap breaks text at spaces into lines of at most width characters, if its
// words allow.
func wrap(text string, width int) []string {
	var lines []string
	var line string
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
