package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func root(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(dir+"/usr/bin", 0o755),
		os.WriteFile(dir+"/usr/bin/prog", []byte("program"), 0o755),
		os.Symlink("usr/bin", dir+"/bin"),
		os.Mkdir(dir+"/tmp", 0o755),
		os.Chmod(dir+"/tmp", os.ModeSticky|0o777),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, raw []byte) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, headers := map[string][]byte{}, map[string]*tar.Header{}
	r := tar.NewReader(bytes.NewReader(raw))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		headers[h.Name] = h
	}
}

func TestWrite(t *testing.T) {
	dir := root(t)
	var archive bytes.Buffer
	if err := Write(&archive, dir, "localhost/x:dev", Config{Entrypoint: []string{"/bin/prog"}, Env: []string{"A=b"}, User: "0:0"}); err != nil {
		t.Fatal(err)
	}
	files, _ := read(t, archive.Bytes())
	// Follow it as a runtime does: index, manifest, configuration, layer.
	var index struct{ Manifests []descriptor }
	decode(t, files["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/x:dev" {
		t.Fatalf("index: %+v", index)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, get(t, files, index.Manifests[0]), &manifest)
	var config struct {
		Config struct {
			Entrypoint, Env []string
			User            string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, get(t, files, manifest.Config), &config)
	if d := cmp.Diff([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "A=b"}, config.Config.Env); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
	if len(manifest.Layers) != 1 || len(config.RootFS.DiffIDs) != 1 || config.RootFS.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Errorf("layers %v and diff ids %v differ", manifest.Layers, config.RootFS.DiffIDs)
	}
	content, headers := read(t, get(t, files, manifest.Layers[0]))
	if string(content["usr/bin/prog"]) != "program" || headers["usr/bin/prog"].Mode != 0o755 {
		t.Errorf("file: %q, %+v", content["usr/bin/prog"], headers["usr/bin/prog"])
	}
	if h := headers["bin"]; h == nil || h.Typeflag != tar.TypeSymlink || h.Linkname != "usr/bin" {
		t.Errorf("link: %+v", h)
	}
	if h := headers["tmp/"]; h == nil || h.Mode != 0o1777 {
		t.Errorf("sticky directory: %+v", h)
	}
	// docker load reads this one.
	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	decode(t, files["manifest.json"], &docker)
	if len(docker) != 1 || files[docker[0].Config] == nil || files[docker[0].Layers[0]] == nil {
		t.Errorf("docker manifest: %+v", docker)
	}
}

func get(t *testing.T, files map[string][]byte, d descriptor) []byte {
	t.Helper()
	raw := files[blobPath(d)]
	sum := sha256.Sum256(raw)
	if d.Digest != "sha256:"+hex.EncodeToString(sum[:]) || d.Size != int64(len(raw)) {
		t.Fatalf("blob %s is not what it says: %d bytes", d.Digest, len(raw))
	}
	return raw
}

func decode(t *testing.T, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

func TestSameDirectorySameImage(t *testing.T) {
	var a, b bytes.Buffer
	one, two := root(t), root(t)
	if err := os.Chtimes(two+"/usr/bin/prog", time.Unix(1, 0), time.Unix(2, 0)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Write(&a, one, "localhost/x:dev", Config{}), Write(&b, two, "localhost/x:dev", Config{})); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("two equal directories made two different images")
	}
}

func TestWriteRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ root, name, says string }{
		{dir, "x", "must look like"},
		{dir, "localhost/x", "must look like"},
		{dir, "localhost/X:dev", "must look like"},
		{file, "localhost/x:dev", "not a directory"},
		{dir + "/none", "localhost/x:dev", "no such file"},
	} {
		err := Write(io.Discard, c.root, c.name, Config{})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s as %s: %v, want %q", c.root, c.name, err, c.says)
		}
	}
}

func TestParseConfigRefuses(t *testing.T) {
	for _, bad := range []string{``, `{`, `{"entrypint":["/x"]}`, `{"env":["A"]}`, `{"env":["=b"]}`, `{} {}`, `[]`} {
		if _, err := ParseConfig([]byte(bad)); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, want %v", bad, err, ErrConfig)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"entrypoint":["/nvdra"],"cmd":["--help"],"env":["A=b"],"workdir":"/","user":"0","labels":{"a":"b"}}`))
	f.Add([]byte(`{"env":["A"]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseConfig(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseConfig(again); err != nil {
			t.Errorf("what was accepted is refused when it comes back: %v", err)
		}
	})
}

// TestPause builds the first process of pods and boxes.
func TestPause(t *testing.T) {
	dir := t.TempDir()
	pause := filepath.Join(dir, "pause")
	if err := BuildPause(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	if loader, err := interpreter(pause); err != nil || loader != "" {
		t.Errorf("pause asks for loader %q, %v; want a static program", loader, err)
	}
	c, err := PauseRoot(dir+"/p", pause)
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(io.Discard, dir+"/p", PauseName, c); err != nil {
		t.Fatal(err)
	}
	if err := mustBeStatic("/bin/sh"); err == nil || !strings.Contains(err.Error(), "busybox-static") {
		t.Errorf("a program with shared libraries as busybox: %v", err)
	}
}
