package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// maxSocketPath is how long the path of a socket may be on Linux.
const maxSocketPath = 107

// short calls f with a path that leads to the socket and is short enough for a
// socket address: itself, or through its opened directory.
func short(path string, f func(path string) error) error {
	if len(path) <= maxSocketPath {
		return f(path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}

// Listen makes the socket below a driver root, in place of one left behind by a
// simulator that has died. It refuses when a simulator still serves it. Everybody
// may connect, as to the real driver.
func Listen(ctx context.Context, root string) (net.Listener, error) {
	path := filepath.Join(root, SocketBelow)
	if c, err := Dial(ctx, path); err == nil {
		c.Close()
		return nil, fmt.Errorf("listen on %s: another simulator serves it; stop that first", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	var l *net.UnixListener
	err := short(path, func(p string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: p})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The socket file stays: by the time this listener closes, a successor may
	// have put its own there.
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o777); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}
