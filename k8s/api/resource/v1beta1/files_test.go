package v1beta1

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// check is what happens to a configuration from a claim.
func check(raw []byte) error {
	cfg, err := DecodeConfig(raw)
	if err != nil {
		return err
	}
	cfg.Normalize()
	return cfg.Validate()
}

// files reads a directory of configurations: as JSON, the way they arrive from
// the API server, and as they are written.
func files(t *testing.T, dir string) (asJSON map[string][]byte, asWritten map[string]string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files in %s (%v)", dir, err)
	}
	asJSON, asWritten = make(map[string][]byte), make(map[string]string)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		asJSON[path], asWritten[path] = raw, string(text)
	}
	return asJSON, asWritten
}

// Every file in testdata/bad/configs is refused with the sentence in its first
// line.
func TestBadFiles(t *testing.T) {
	asJSON, asWritten := files(t, "../../../../testdata/bad/configs")
	for path, raw := range asJSON {
		first, _, _ := strings.Cut(asWritten[path], "\n")
		want, ok := strings.CutPrefix(first, "# want: ")
		if !ok || want == "" {
			t.Errorf("%s: the first line is not `# want: SENTENCE`", path)
			continue
		}
		if err := check(raw); err == nil {
			t.Errorf("%s: accepted, want %q", path, want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n got %q\nwant %q", path, err, want)
		}
	}
}

func TestGoodFiles(t *testing.T) {
	asJSON, _ := files(t, "testdata/good")
	for path, raw := range asJSON {
		if err := check(raw); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
