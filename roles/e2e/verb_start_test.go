package e2e

import (
	"regexp"
	"strings"

	"rsc.io/script"
)

var envSetting = regexp.MustCompile(`^[A-Z][A-Z0-9_]*=`)

// startVerb starts the program.
func startVerb(w *world) script.Cmd {
	const example = `Flags and environment variables are added to those of the pod's manifest. Each NAME is a pod of its own.
	start gpu-plugin --feature-gates=TimeSlicingSettings=true
	start new=gpu-plugin CDI_ROOT=$WORK/other
	start -without dac_override gpu-plugin   # a root that cannot read everything
	start -dev $WORK/dev gpu-plugin          # with a /dev of its own`
	return verb("[-without CAPABILITY|-dev DIR] [NAME=]gpu-plugin [VAR=VALUE…] [FLAGS…]", "start the program as a pod of the node", example, func(s *script.State, args []string) (string, error) {
		var wrap []string
		if len(args) > 2 && args[0] == "-without" {
			wrap = []string{"setpriv", "--bounding-set=-" + args[1], "--inh-caps=-" + args[1]}
			args = args[2:]
		}
		if len(args) > 2 && args[0] == "-dev" {
			wrap = []string{"unshare", "--mount", "--propagation=private", "sh", "-c", `mount --bind "$0" /dev && exec "$@"`, s.Path(args[1])}
			args = args[2:]
		}
		if len(args) == 0 {
			return "", usage("start takes a role")
		}
		name, role, named := strings.Cut(args[0], "=")
		if !named {
			role = name
		}
		if role != "gpu-plugin" {
			return "", usage("there is no role %q to start", role)
		}
		p := w.plugins[name]
		if p == nil {
			var err error
			if p, err = w.newPlugin(s.Context(), name); err != nil {
				return "", err
			}
			w.plugins[name] = p
		}
		p.args, p.env, p.wrap = nil, nil, wrap
		for _, a := range args[1:] {
			if envSetting.MatchString(a) {
				p.env = append(p.env, a)
			} else {
				p.args = append(p.args, a)
			}
		}
		return "", w.start(p)
	})
}
