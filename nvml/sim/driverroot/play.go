package driverroot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"nvdra/nvml/sim"
	"nvdra/nvml/sim/wire"
)

// A Config says where a played machine is.
type Config struct {
	DriverRoot string
	ReadyFile  string // written last, removed first
	StateFile  string // "" keeps nothing over restarts
	Files      string // what simbuild built; see Open
	SocketOnly bool   // write nothing below the driver root but the socket
	Options    Options
	Log        func(line string) // may be nil
	// Playing, when not nil, is called once everything is there. The Root is nil
	// with SocketOnly.
	Playing func(*sim.Machine, *Root)
}

// Below fills in the places that are not set with those a driver container uses
// below a directory such as /run/nvidia.
func (c *Config) Below(root string) {
	for _, p := range []struct {
		place *string
		below string
	}{{&c.DriverRoot, "driver"}, {&c.ReadyFile, "validations/.driver-ctr-ready"}, {&c.StateFile, ".gpusim-state.json"}} {
		if *p.place == "" {
			*p.place = filepath.Join(root, p.below)
		}
	}
}

// Play plays the part of the driver container until the context ends: it
// shows the machine below the driver root, serves it, and says when it is ready.
// The machine's state outlives Play in the state file.
func Play(ctx context.Context, p *sim.Profile, c Config) error {
	if c.Log == nil {
		c.Log = func(string) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := restore(p, c)
	if err != nil {
		return err
	}
	// The socket comes first, since it shows whether somebody else is here.
	l, err := wire.Listen(ctx, c.DriverRoot)
	if err != nil {
		return err
	}
	defer l.Close()
	var root *Root
	show := func(sim.View) error { return nil }
	if !c.SocketOnly {
		if root, err = Open(c.DriverRoot, c.Files, c.Options); err != nil {
			return err
		}
		if why := root.NoNodes(); why != "" {
			c.Log("device nodes are regular files: " + why + "; container runtimes and nvcdi will not find devices here")
		}
		show = root.Show
	}
	err = m.OnChange(func(v sim.View) error {
		err := errors.Join(show(v), save(c.StateFile, v.State), ready(c.ReadyFile, v))
		if err != nil {
			c.Log(err.Error())
		}
		return err
	})
	if err != nil {
		return err
	}
	defer os.Remove(c.ReadyFile)
	served := make(chan error, 1)
	go func() { served <- wire.Serve(ctx, l, m, func(err error) { c.Log(err.Error()) }) }()
	c.Log(fmt.Sprintf("playing %s with %d GPUs, driver %s, in %s", p.Name, len(m.View().GPUs()), m.View().State.Driver, c.DriverRoot))
	if c.Playing != nil {
		c.Playing(m, root)
	}
	select {
	case <-ctx.Done():
		os.Remove(c.ReadyFile) // first of all: nobody should come now
		return <-served
	case err := <-served:
		return err
	}
}

// restore makes the machine, as an earlier run has left it.
func restore(p *sim.Profile, c Config) (*sim.Machine, error) {
	if c.StateFile == "" {
		return sim.New(p)
	}
	data, err := os.ReadFile(c.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return sim.New(p)
	}
	if err != nil {
		return nil, fmt.Errorf("read simulator state: %w", err)
	}
	var whose struct{ Machine string }
	if json.Unmarshal(data, &whose) == nil && whose.Machine != p.Name {
		c.Log(fmt.Sprintf("the state kept is that of machine %q: starting afresh", whose.Machine))
		return sim.New(p)
	}
	s, err := sim.ParseState(p, data)
	if err != nil {
		return nil, fmt.Errorf("read simulator state %s: %w", c.StateFile, err)
	}
	return sim.Restore(p, s), nil
}

// save keeps the state.
func save(file string, s sim.State) error {
	if file == "" {
		return nil
	}
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return fmt.Errorf("save simulator state: %w", err)
	}
	return replace(file, data)
}

// ready writes or removes the file that says that the driver is loaded. It tells
// which additional modules are, as the driver container does: none.
func ready(file string, v sim.View) error {
	if v.State.Gone {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove ready file: %w", err)
		}
		return nil
	}
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	return replace(file, []byte("GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: false\n"))
}

// replace writes a file by renaming.
func replace(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(file), err)
	}
	next := filepath.Join(filepath.Dir(file), strings.TrimPrefix(filepath.Base(file), ".")+".new")
	if err := os.WriteFile(next, data, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(file), err)
	}
	if err := os.Rename(next, file); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(file), err)
	}
	return nil
}
