package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"nvdra.test/cluster/image"
)

// A loading is what the command load was asked to do.
type loading struct {
	from   string // a root directory or an archive
	name   string
	config image.Config // what the flags say; it goes before image.json
	out    string       // only write the archive there
}

func parseLoading(args []string) (loading, error) {
	var l loading
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	fs.StringVar(&l.name, "name", "", "name of the image, e.g. localhost/nvdra:dev")
	fs.StringVar(&l.config.WorkingDir, "workdir", "", "working directory")
	fs.StringVar(&l.config.User, "user", "", "user, and perhaps group: 0:0")
	fs.StringVar(&l.out, "o", "", "only write the archive to this file")
	list := func(to *[]string, sep string) func(string) error {
		return func(s string) error {
			*to = append(*to, strings.Split(s, sep)...)
			return nil
		}
	}
	fs.Func("entrypoint", "program and first arguments, separated by commas", list(&l.config.Entrypoint, ","))
	fs.Func("cmd", "default arguments, separated by commas", list(&l.config.Cmd, ","))
	fs.Func("env", "NAME=VALUE; may be given more than once", func(s string) error {
		if name, _, ok := strings.Cut(s, "="); !ok || name == "" {
			return fmt.Errorf("%q is not NAME=VALUE", s)
		}
		l.config.Env = append(l.config.Env, s)
		return nil
	})
	words, err := parseMixed(fs, args)
	if err != nil {
		return loading{}, err
	}
	if len(words) != 1 {
		return loading{}, fmt.Errorf("%w: load takes one root directory or archive, got %q", errUsage, words)
	}
	l.from = words[0]
	return l, nil
}

func runLoad(_ context.Context, p place, args []string) error {
	l, err := parseLoading(args)
	if err != nil {
		return err
	}
	began := time.Now()
	archive, remove, err := l.archive()
	if err != nil {
		return err
	}
	defer remove()
	if l.out != "" {
		fmt.Printf("%-28s %s\n", l.out, seconds(time.Since(began)))
		return nil
	}
	r, err := loadRecord(p)
	if err != nil {
		return err
	}
	if err := importEverywhere(r, archive); err != nil {
		return fmt.Errorf("load %s: %w", l.from, err)
	}
	what := l.name
	if what == "" {
		what = l.from
	}
	fmt.Printf("%-28s on %s in %s\n", what, count(len(r.nodes())), seconds(time.Since(began)))
	return nil
}

// archive makes the archive, or finds that it was given one.
func (l loading) archive() (path string, remove func(), err error) {
	nothing := func() {}
	st, err := os.Stat(l.from)
	if err != nil {
		return "", nothing, fmt.Errorf("load image: %w", err)
	}
	if !st.IsDir() {
		if l.name != "" || l.out != "" {
			return "", nothing, fmt.Errorf("%w: %s is an archive, which has its name in it; --name and -o go with a directory", errUsage, l.from)
		}
		return l.from, nothing, nil
	}
	if l.name == "" {
		return "", nothing, fmt.Errorf("%w: an image made of directory %s needs --name, e.g. localhost/nvdra:dev", errUsage, l.from)
	}
	beside, err := readImageConfig(l.from)
	if err != nil {
		return "", nothing, err
	}
	config := overlay(beside, l.config)
	if l.out != "" {
		return l.out, nothing, writeArchive(l.out, l.from, l.name, config)
	}
	dir, err := os.MkdirTemp("", "nvdra-image-")
	if err != nil {
		return "", nothing, fmt.Errorf("create archive: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	path = filepath.Join(dir, "image.tar")
	if err := writeArchive(path, l.from, l.name, config); err != nil {
		remove()
		return "", nothing, err
	}
	return path, remove, nil
}

// overlay puts what the flags say over what image.json says.
func overlay(file, flags image.Config) image.Config {
	c := file
	if len(flags.Entrypoint) > 0 {
		c.Entrypoint = flags.Entrypoint
	}
	if len(flags.Cmd) > 0 {
		c.Cmd = flags.Cmd
	}
	if flags.WorkingDir != "" {
		c.WorkingDir = flags.WorkingDir
	}
	if flags.User != "" {
		c.User = flags.User
	}
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], flags.Env...)
	return c
}

// adminOf makes a client from the kubeconfig that this program wrote.
func adminOf(p place) (client, error) {
	raw, err := os.ReadFile(p.file("kubeconfig"))
	if err != nil {
		return client{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	ca, admin, err := parseKubeconfig(raw)
	if err != nil {
		return client{}, fmt.Errorf("read %s: %w", p.file("kubeconfig"), err)
	}
	return newClient(ca, admin)
}
