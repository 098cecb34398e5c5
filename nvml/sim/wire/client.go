package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"nvdra/nvml/sim"
)

// A Client talks to a simulated machine over one connection. It does one call at
// a time.
type Client struct {
	conn net.Conn
	r    *bufio.Reader
}

// Dial connects to the socket of a simulated machine.
func Dial(ctx context.Context, socket string) (*Client, error) {
	var d net.Dialer
	var conn net.Conn
	err := short(socket, func(path string) (err error) {
		conn, err = d.DialContext(ctx, "unix", path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to simulated driver: %w", err)
	}
	c := &Client{conn: conn, r: bufio.NewReader(conn)}
	if _, err := c.exchange("hello", Version); err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to simulated driver: %w", err)
	}
	return c, nil
}

// Close hangs up.
func (c *Client) Close() error { return c.conn.Close() }

// exchange sends a line and reads the answer: its fields after the code, or the
// code as a sim.Return with whatever text came with it.
func (c *Client) exchange(fields ...string) ([]string, error) {
	line, err := encode(fields)
	if err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(line); err != nil {
		return nil, fmt.Errorf("send to simulated driver: %w", err)
	}
	answer, err := readLine(c.r)
	if err != nil {
		return nil, fmt.Errorf("read answer of simulated driver: %w", err)
	}
	code, err := strconv.Atoi(answer[0])
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer of simulated driver: %w: it begins with %q", errLine, answer[0])
	case code == 0:
		return answer[1:], nil
	case len(answer) > 1:
		return nil, errors.New(answer[1])
	}
	return nil, sim.Return(code)
}

// Call does an NVML call without a session. The error is a sim.Return when the
// driver answered.
func (c *Client) Call(name string, args ...string) ([]string, error) {
	return c.exchange(append([]string{"call", "", name}, args...)...)
}

// Control sends a control verb and returns lines to print.
func (c *Client) Control(args ...string) ([]string, error) {
	return c.exchange(append([]string{"ctl"}, args...)...)
}
