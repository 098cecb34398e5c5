package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rsc.io/script"
)

// checkpointVerb shows what the plugin remembers, without asking it.
func checkpointVerb(w *world) script.Cmd {
	const example = `It prints one line for each record: claim, state, devices. What lies about besides,
	such as temporary files, is printed too. With -damaged it lists the records that were set aside.
	checkpoint
	cmp stdout prepared.txt
	checkpoint -damaged`
	return verb("[-damaged]", "show the records of the plugin", example, func(_ *script.State, args []string) (string, error) {
		if len(args) == 1 && args[0] == "-damaged" {
			entries, err := os.ReadDir(filepath.Join(w.claimsDir(), "damaged"))
			var all []string
			for _, e := range entries {
				uid, _, _ := strings.Cut(e.Name(), ".")
				all = append(all, w.nameOf(uid))
			}
			return lines(all), err
		}
		if len(args) > 0 {
			return "", noMore(nil, args)
		}
		all, err := w.records()
		return lines(all), err
	})
}

// records describes everything in the directory of records, sorted.
func (w *world) records() ([]string, error) {
	entries, err := os.ReadDir(w.claimsDir())
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var all []string
	for _, e := range entries {
		uid, isRecord := strings.CutSuffix(e.Name(), ".json")
		switch {
		case isRecord && e.Type().IsRegular():
			all = append(all, w.nameOf(uid)+" "+describeRecord(filepath.Join(w.claimsDir(), e.Name())))
		case e.Name() == ".lock" || e.Name() == "damaged": // always there
		default:
			all = append(all, "besides "+w.anonymous(e.Name()))
		}
	}
	slices.Sort(all)
	return all, nil
}

// describeRecord reads a record as somebody would who knows only that it is a
// line of JSON.
func describeRecord(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var r struct {
		State   string `json:"state"`
		Devices []struct {
			Name string `json:"name"`
		} `json:"devices"`
	}
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return "damaged"
	}
	words := []string{r.State}
	for _, d := range r.Devices {
		words = append(words, d.Name)
	}
	return strings.Join(words, " ")
}
