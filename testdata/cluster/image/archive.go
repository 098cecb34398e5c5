// Package image makes container images out of directories, without a registry
// and without a container engine.
//
//	f, err := os.Create("nvdra.tar")
//	err = image.Write(f, "build/rootfs", "localhost/nvdra:dev", image.Config{Entrypoint: []string{"/nvdra"}})
//
// The archive is an OCI layout that also carries Docker's manifest, so that
// containerd, docker load and kind load can all read it. The same directory
// gives the same image, whenever and by whomever it is made.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Config says how a container of the image is run.
type Config struct {
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Env        []string          `json:"env,omitempty"`
	WorkingDir string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// ErrConfig is the kind of error of a description nobody can follow.
var ErrConfig = errors.New("invalid image description")

// ParseConfig reads an image.json. A field it does not know is an error.
func ParseConfig(raw []byte) (Config, error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if d.More() {
		return Config{}, fmt.Errorf("%w: more than one JSON value", ErrConfig)
	}
	for _, e := range c.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return Config{}, fmt.Errorf("%w: env %q is not NAME=VALUE", ErrConfig, e)
		}
	}
	return c, nil
}

// CheckName says whether a name can be an image's: it needs a registry-like first
// part and a tag, because kubelet asks for exactly such a name.
func CheckName(name string) error {
	host, rest, ok := strings.Cut(name, "/")
	repo, tag, tagged := strings.Cut(rest, ":")
	if !ok || host == "" || repo == "" || !tagged || tag == "" || strings.ContainsAny(name, " \t\n@") || strings.ToLower(repo) != repo {
		return fmt.Errorf("%w: name %q must look like localhost/NAME:TAG, in lower case", ErrConfig, name)
	}
	return nil
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// Write writes an archive of one image with one layer: the directory root.
func Write(w io.Writer, root, name string, c Config) error {
	if err := CheckName(name); err != nil {
		return err
	}
	layer, err := os.CreateTemp("", "nvdra-layer-*")
	if err != nil {
		return fmt.Errorf("create layer: %w", err)
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	sum := sha256.New()
	if err := writeLayer(io.MultiWriter(layer, sum), root); err != nil {
		return fmt.Errorf("pack %s: %w", root, err)
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return fmt.Errorf("size layer: %w", err)
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind layer: %w", err)
	}
	layerDesc := descriptor{MediaType: typeLayer, Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Size: size}

	config, configDesc, err := blob(typeConfig, map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config": map[string]any{
			"Entrypoint": c.Entrypoint, "Cmd": c.Cmd, "Env": withPath(c.Env), "WorkingDir": c.WorkingDir, "User": c.User, "Labels": c.Labels,
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerDesc.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, manifestDesc, err := blob(typeManifest, map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": configDesc, "layers": []descriptor{layerDesc},
	})
	if err != nil {
		return err
	}
	manifestDesc.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:]}
	index, _, err := blob(typeIndex, map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{manifestDesc}})
	if err != nil {
		return err
	}
	docker, err := json.Marshal([]any{map[string]any{"Config": blobPath(configDesc), "RepoTags": []string{name}, "Layers": []string{blobPath(layerDesc)}}})
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}

	t := tar.NewWriter(w)
	for _, f := range []struct {
		path string
		size int64
		from io.Reader
	}{
		{"oci-layout", 0, strings.NewReader(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", 0, bytes.NewReader(index)},
		{"manifest.json", 0, bytes.NewReader(docker)},
		{blobPath(manifestDesc), 0, bytes.NewReader(manifest)},
		{blobPath(configDesc), 0, bytes.NewReader(config)},
		{blobPath(layerDesc), size, layer},
	} {
		if sized, ok := f.from.(interface{ Len() int }); ok {
			f.size = int64(sized.Len())
		}
		if err := t.WriteHeader(&tar.Header{Name: f.path, Mode: 0o644, Size: f.size, ModTime: time.Unix(0, 0)}); err != nil {
			return fmt.Errorf("write archive: %w", err)
		}
		if _, err := io.Copy(t, f.from); err != nil {
			return fmt.Errorf("write archive: %w", err)
		}
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

func blob(mediaType string, v any) ([]byte, descriptor, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	sum := sha256.Sum256(raw)
	return raw, descriptor{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(raw))}, nil
}

func blobPath(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }

// withPath adds the search path every image is expected to have.
func withPath(env []string) []string {
	for _, e := range env {
		if strings.HasPrefix(e, "PATH=") {
			return env
		}
	}
	return append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
}

// writeLayer packs a directory: root owns everything, nothing has a date. WalkDir
// goes by name, so the order is always the same.
func writeLayer(w io.Writer, root string) error {
	st, err := os.Stat(root)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a directory", root)
	}
	t := tar.NewWriter(w)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		case !info.IsDir() && !info.Mode().IsRegular():
			return fmt.Errorf("%s is neither a file, a directory nor a link; an image cannot carry it", path)
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name = filepath.ToSlash(rel)
		if info.IsDir() {
			h.Name += "/"
		}
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
		h.ModTime, h.AccessTime, h.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
		h.Format = tar.FormatPAX
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	})
	if err != nil {
		return err
	}
	return t.Close()
}
