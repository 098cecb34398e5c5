package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"nvdra/nvml"
)

// A Node is the driver below one root. Make one with [Open].
type Node struct {
	library library
	idle    time.Duration
	argv0   string // the program to start as child

	mu    sync.Mutex
	child *child // the one new calls go to; nil when there is none
}

// call runs one request in the child and decodes its result.
//
// A session that ended because the driver was restarted or replaced is opened
// again once: the answers that mean this (see stale in returns.go) say that
// the call had no effect, so it is safe to repeat whatever it is.
func (n *Node) call(ctx context.Context, req request, result any) error {
	for attempt := 1; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := n.acquire()
		if err != nil {
			return err
		}
		resp, err := c.call(ctx, req)
		if err != nil || resp.Stale {
			n.drop(c)
		}
		c.release(n.idle, func() { n.drop(c) })
		switch {
		case err != nil:
			return err
		case resp.Err != nil && resp.Retry && attempt == 1:
			continue
		case resp.Err != nil && ctx.Err() != nil && errors.Is(resp.Err, context.Canceled):
			return ctx.Err() // the child knows only that, not why
		case resp.Err != nil && result != nil && len(resp.Result) > 0:
			// A mode that could not be switched comes with the mode found.
			if err := decode(resp.Result, result); err != nil {
				return errors.Join(resp.Err, err)
			}
			return resp.Err
		case resp.Err != nil:
			return resp.Err
		case result == nil:
			return nil
		}
		return decode(resp.Result, result)
	}
}

func decode(data json.RawMessage, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read answer of the NVML child: %w", err)
	}
	return nil
}

// acquire is the child to use now, with one call counted on it. A child that
// has loaded another file than the library is now is left to finish what it
// does, and a new one is started.
func (n *Node) acquire() (*child, error) {
	file, err := n.library.find()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.child != nil && (err != nil || n.child.library != file || !n.child.acquire()) {
		n.child.retire()
		n.child = nil
	}
	if err != nil {
		return nil, err
	}
	if n.child == nil {
		c, err := startChild(n.argv0, file)
		if err != nil {
			return nil, fmt.Errorf("%w: start NVML child: %w", nvml.ErrDriver, err)
		}
		c.acquire()
		n.child = c
	}
	return n.child, nil
}

// drop sends no more calls to c.
func (n *Node) drop(c *child) {
	n.mu.Lock()
	if n.child == c {
		n.child = nil
	}
	n.mu.Unlock()
	c.retire()
}
