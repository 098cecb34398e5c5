package e2e

import "rsc.io/script"

// kubeletVerb lets something happen to kubelet.
func kubeletVerb(w *world) script.Cmd {
	const example = `drop: its connections end, the next call dials anew. restart: it also finds and registers all plugins again. plugins:
	print the registration sockets it knows, oldest first.
	kubelet restart`
	return verb("drop|restart|plugins", "let something happen to kubelet, or look at it", example, func(_ *script.State, args []string) (string, error) {
		if len(args) == 1 {
			switch args[0] {
			case "drop":
				w.kubelet.drop()
				return "", nil
			case "restart":
				w.kubelet.close()
				w.kubelet = startKubelet(w.registry())
				return "", nil
			case "plugins":
				return lines(w.kubelet.registered(gpuDriver)), nil
			}
		}
		return "", usage("kubelet takes drop, restart or plugins")
	})
}
