package process

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
)

// errHelp says that --help was asked for.
var errHelp = errors.New("help was asked for")

// parse reads the environment and then args into flags, and returns the values
// that are not empty by flag name. Only the flags of cli are used, not its App:
// an App may print, exit and treat positional arguments as commands, and a role
// does none of that.
func parse(program string, flags []cli.Flag, args []string) (values map[string]string, err error) {
	if wantsHelp(args) {
		return nil, errHelp
	}
	set := flag.NewFlagSet(program, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	if err := apply(set, flags); err != nil {
		return nil, err
	}
	if err := set.Parse(args); err != nil {
		return nil, Usagef("%s; %s --help lists the flags", rephrase(flags, err), program)
	}
	if set.NArg() > 0 {
		return nil, Usagef("unexpected argument %q: everything is given by flags; %s --help lists them", set.Arg(0), program)
	}
	if err := required(set, flags); err != nil {
		return nil, err
	}
	values = map[string]string{}
	for _, f := range flags {
		name := f.Names()[0]
		if v := set.Lookup(name).Value.String(); v != "" {
			values[name] = v
		}
	}
	return values, nil
}

// apply declares the flags, which also reads their environment variables.
func apply(set *flag.FlagSet, flags []cli.Flag) error {
	var errs []error
	for _, f := range flags {
		for _, name := range f.Names() {
			if set.Lookup(name) != nil { // the flag package would panic
				return fmt.Errorf("declare flag --%s: it is declared twice", name)
			}
		}
		if err := f.Apply(set); err != nil {
			name, value := firstSet(f)
			if name == "" {
				return fmt.Errorf("declare flag --%s: %w", f.Names()[0], err)
			}
			errs = append(errs, Usagef("environment variable %s is %q: want %s", name, value, wanted(f)))
		}
	}
	return oneLine(errs)
}

// firstSet finds the environment variable that cli has read for f.
func firstSet(f cli.Flag) (name, value string) {
	if doc, ok := f.(cli.DocGenerationFlag); ok {
		for _, name := range doc.GetEnvVars() {
			if value, ok := os.LookupEnv(name); ok {
				return name, value
			}
		}
	}
	return "", ""
}

// wanted says in words what kind of value f takes.
func wanted(f cli.Flag) string {
	switch f.(type) {
	case *cli.IntFlag, *cli.Int64Flag:
		return "a whole number"
	case *cli.UintFlag, *cli.Uint64Flag:
		return "a whole number that is not negative"
	case *cli.Float64Flag:
		return "a number"
	case *cli.BoolFlag:
		return "true or false"
	case *cli.DurationFlag:
		return "a duration such as 30s or 5m"
	}
	return "another value"
}

// rephrase turns the flag package's errors, which show every flag with one
// dash and end in the name of a parser, into sentences.
func rephrase(flags []cli.Flag, err error) string {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		return "unknown flag " + dashed(name)
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return "flag " + dashed(name) + " needs a value"
	}
	for _, f := range flags {
		for _, name := range f.Names() {
			for _, mark := range []string{" for flag -" + name + ":", " for -" + name + ":"} {
				if bad, _, ok := strings.Cut(text, mark); ok {
					_, value, _ := strings.Cut(bad, "value ")
					return fmt.Sprintf("flag %s is %s: want %s", dashed(name), value, wanted(f))
				}
			}
		}
	}
	return text
}

// wantsHelp finds --help wherever it stands, so that an environment or a
// command line that is wrong elsewhere does not keep the help away.
func wantsHelp(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "-h", "--h", "-help", "--help":
			return true
		}
	}
	return false
}

// required reports all flags that must be given and are not.
func required(set *flag.FlagSet, flags []cli.Flag) error {
	var missing []string
	for _, f := range flags {
		name := f.Names()[0]
		if r, ok := f.(cli.RequiredFlag); ok && r.IsRequired() && set.Lookup(name).Value.String() == "" {
			text := dashed(name)
			if doc, ok := f.(cli.DocGenerationFlag); ok && len(doc.GetEnvVars()) > 0 {
				text += " (" + strings.Join(doc.GetEnvVars(), " or ") + ")"
			}
			missing = append(missing, text)
		}
	}
	if len(missing) > 0 {
		return Usagef("missing %s: set the flag or the environment variable", strings.Join(missing, ", "))
	}
	return nil
}
