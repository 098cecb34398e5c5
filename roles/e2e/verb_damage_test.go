package e2e

import (
	"bytes"
	"os"

	"rsc.io/script"
)

// damageVerb spoils a file.
func damageVerb(w *world) script.Cmd {
	const example = `flip changes one digit in its last line, truncate leaves half of it, empty leaves nothing, garbage replaces it.
	damage flip $CLAIMS/$UID_job.json`
	return verb("flip|truncate|empty|garbage FILE", "damage a file in place", example, func(s *script.State, args []string) (string, error) {
		if len(args) != 2 {
			return "", usage("damage takes a way and a file")
		}
		path := s.Path(args[1])
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		switch args[0] {
		case "flip":
			i := bytes.LastIndexAny(data, "0123456789")
			if i < 0 {
				return "", usage("there is no digit in %s", path)
			}
			data[i] = '0' + (data[i]-'0'+1)%10
		case "truncate":
			data = data[:len(data)/2]
		case "empty":
			data = nil
		case "garbage":
			data = []byte("\x00{not: [a file")
		default:
			return "", usage("there is no way %q to damage a file", args[0])
		}
		return "", os.WriteFile(path, data, 0o600)
	})
}
