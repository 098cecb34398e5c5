package e2e

import "rsc.io/script"

// apiserverVerb takes the API server away from the node.
func apiserverVerb(w *world) script.Cmd {
	const example = `stop: connections end and new ones are refused. silent: nothing comes back. start: it is there again. The script
	itself still reaches it.
	apiserver stop`
	return verb("stop|silent|start", "take the API server away from the node, or bring it back", example, func(_ *script.State, args []string) (string, error) {
		if len(args) == 1 {
			switch args[0] {
			case "stop":
				return "", w.proxy.cut()
			case "silent":
				w.proxy.silence()
				return "", nil
			case "start":
				return "", w.proxy.mend()
			}
		}
		return "", usage("apiserver takes stop, silent or start")
	})
}
