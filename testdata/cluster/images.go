package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"nvdra.test/cluster/box"
	"nvdra.test/cluster/image"
	"nvdra.test/cluster/part"
)

// builtin are the files every cluster needs besides its parts.
type builtin struct {
	init     string // the static program that buries orphans
	archives []string
}

// recipe changes when the same sources would make other images.
const recipe = "2"

// ensureImages makes the images every cluster has, once.
func ensureImages(ctx context.Context, cache string) (builtin, error) {
	sh, err := busybox()
	if err != nil {
		return builtin{}, err
	}
	raw, err := os.ReadFile(sh)
	if err != nil {
		return builtin{}, fmt.Errorf("read busybox: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%d %s\n%d ", recipe, len(image.PauseSource()), image.PauseSource(), len(raw))
	h.Write(raw)
	home := filepath.Join(cache, "images-"+hex.EncodeToString(h.Sum(nil))[:12])
	b := builtin{
		init:     filepath.Join(home, "pause"),
		archives: []string{filepath.Join(home, "pause.tar"), filepath.Join(home, "workload.tar")},
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return builtin{}, fmt.Errorf("create cache: %w", err)
	}
	lock, err := part.Lock(ctx, filepath.Join(cache, "images.lock"), nil)
	if err != nil {
		return builtin{}, err
	}
	defer lock.Close()
	if _, err := os.Stat(home); err == nil {
		return b, nil
	}
	tmp, err := os.MkdirTemp(cache, "images-new-")
	if err != nil {
		return builtin{}, fmt.Errorf("create cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := makeImages(ctx, tmp, sh); err != nil {
		return builtin{}, err
	}
	for _, dir := range []string{"root-pause", "root-workload"} {
		if err := os.RemoveAll(filepath.Join(tmp, dir)); err != nil {
			return builtin{}, fmt.Errorf("clear cache: %w", err)
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return builtin{}, fmt.Errorf("fill cache: %w", err)
	}
	if err := os.Rename(tmp, home); err != nil {
		return builtin{}, fmt.Errorf("fill cache: %w", err)
	}
	return b, nil
}

// runImages makes the images without a cluster; kind can load them too.
func runImages(ctx context.Context, _ place, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: images takes no arguments, got %q", errUsage, args)
	}
	dir, err := cache()
	if err != nil {
		return err
	}
	b, err := ensureImages(ctx, dir)
	if err != nil {
		return err
	}
	for _, archive := range b.archives {
		fmt.Println(archive)
	}
	return nil
}

func makeImages(ctx context.Context, dir, busybox string) error {
	pause := filepath.Join(dir, "pause")
	if err := image.BuildPause(ctx, pause); err != nil {
		return err
	}
	root := filepath.Join(dir, "root-pause")
	config, err := image.PauseRoot(root, pause)
	if err != nil {
		return err
	}
	if err := writeArchive(filepath.Join(dir, "pause.tar"), root, image.PauseName, config); err != nil {
		return err
	}
	root = filepath.Join(dir, "root-workload")
	if config, err = image.WorkloadRoot(ctx, root, busybox); err != nil {
		return err
	}
	return writeArchive(filepath.Join(dir, "workload.tar"), root, image.WorkloadName, config)
}

func writeArchive(to, root, name string, config image.Config) error {
	f, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("create archive: %w", err)
	}
	if err := image.Write(f, root, name, config); err != nil {
		f.Close()
		return fmt.Errorf("make image %s: %w", name, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

// importArchive gives an image archive to a node's containerd.
func importArchive(b box.Box, node, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open archive: %w", err)
	}
	defer f.Close()
	var words bytes.Buffer
	cmd := &exec.Cmd{Args: []string{"ctr", "--address", socket, "-n", "k8s.io", "images", "import", "-"}, Env: boxEnv(), Stdin: f, Stdout: &words}
	if err := b.Run(cmd, box.All); err != nil {
		return fmt.Errorf("import %s on %s: %w%s", archive, node, err, words.String())
	}
	return nil
}

// importEverywhere gives an image archive to all nodes at once.
func importEverywhere(r *record, archive string) error {
	nodes := r.nodes()
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, m := range nodes {
		wg.Go(func() { errs[i] = importArchive(r.box(m), m.Name, archive) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// readImageConfig reads the image.json beside a root directory, if there is one.
func readImageConfig(root string) (image.Config, error) {
	path := filepath.Join(filepath.Dir(filepath.Clean(root)), "image.json")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return image.Config{}, nil
	}
	if err != nil {
		return image.Config{}, fmt.Errorf("read image description: %w", err)
	}
	c, err := image.ParseConfig(raw)
	if err != nil {
		return image.Config{}, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}
