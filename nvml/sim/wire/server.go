package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"nvdra/nvml/sim"
)

// Serve answers clients on a listener until the context ends. It closes the
// listener and all connections before it returns, and returns nil when the
// context was what ended it. Problems of single connections go to onError,
// which may be nil.
func Serve(ctx context.Context, l net.Listener, m *sim.Machine, onError func(error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if onError == nil {
		onError = func(error) {}
	}
	s := &server{machine: m, conns: map[net.Conn]bool{}}
	stop := context.AfterFunc(ctx, func() {
		l.Close() // wakes Accept
		s.closeAll()
	})
	defer stop()
	var wg sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil {
			ended := ctx.Err() != nil
			cancel()
			l.Close()
			s.closeAll()
			wg.Wait()
			if ended {
				return nil
			}
			return fmt.Errorf("serve simulated machine: %w", err)
		}
		if !s.add(conn) {
			conn.Close()
			continue
		}
		wg.Go(func() {
			defer s.remove(conn)
			err := s.talk(ctx, conn)
			if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				onError(err)
			}
		})
	}
}

// A server is one run of Serve.
type server struct {
	machine *sim.Machine

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

// add remembers a connection; false when the server is closing.
func (s *server) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = true
	return true
}

func (s *server) remove(c net.Conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.Close()
}

func (s *server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
}

// talk answers one connection until its client hangs up. A call goes on when its
// client dies, as a call in the kernel does.
func (s *server) talk(ctx context.Context, conn net.Conn) error {
	r := bufio.NewReader(conn)
	greeted := false
	for {
		fields, err := readLine(r)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLine):
			// The client is told and left, since where its next line begins is unknown.
			line, _ := encode([]string{"2", err.Error()})
			conn.Write(line)
			return fmt.Errorf("serve client: %w", err)
		case err != nil:
			return fmt.Errorf("serve client: %w", err)
		}
		answer, err := s.answer(ctx, fields, &greeted)
		if err != nil {
			return err
		}
		line, err := encode(answer)
		if err != nil {
			return fmt.Errorf("serve client: answer %s: %w", fields[0], err)
		}
		if _, err := conn.Write(line); err != nil {
			return fmt.Errorf("serve client: %w", err)
		}
		if !greeted {
			return fmt.Errorf("serve client: it did not say hello %s first", Version)
		}
	}
}

// answer does what one line says. The error is not nil only when the server ends.
func (s *server) answer(ctx context.Context, fields []string, greeted *bool) ([]string, error) {
	if !*greeted {
		if len(fields) != 2 || fields[0] != "hello" || fields[1] != Version {
			return []string{"2", "the first line must be hello and " + Version}, nil
		}
		*greeted = true
		return []string{"0", "nvdra-sim", Version}, nil
	}
	switch {
	case fields[0] == "call" && len(fields) >= 3:
		out, err := s.machine.Call(ctx, fields[1], fields[2], fields[3:])
		if err == nil {
			return append([]string{"0"}, out...), nil
		}
		if code, ok := errors.AsType[sim.Return](err); ok {
			return []string{strconv.Itoa(int(code))}, nil
		}
		return nil, err
	case fields[0] == "ctl":
		out, err := s.machine.Control(fields[1:])
		if err != nil {
			return []string{"2", err.Error()}, nil
		}
		return append([]string{"0"}, out...), nil
	}
	return []string{"2", "a line must be call SESSION NAME or ctl VERB"}, nil
}
