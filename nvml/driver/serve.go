package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"nvdra/nvml"
)

// ChildName is the name (argv[0]) under which a program that uses a [Node]
// starts itself again to talk to the driver. It is what `ps` shows.
const ChildName = "nvdra-nvml"

// childEnv marks the environment of a child, so that a program which does not
// ask IsChild cannot start itself without end.
const childEnv = "NVDRA_NVML_CHILD"

// childSocket is the descriptor of the socket to the parent.
const childSocket = 3

// IsChild reports whether this process was started by a [Node] to talk to the
// driver. If so it has nothing to do but [ServeChild]: no flags, no signals, no
// log.
func IsChild() bool {
	return len(os.Args) == 2 && filepath.Base(os.Args[0]) == ChildName && os.Getenv(childEnv) != ""
}

// ServeChild is the whole life of a child: it answers the requests of its
// parent until the parent hangs up. The process is to end when it returns,
// with a status other than 0 and the error on standard error if there is one;
// from there the parent takes it into its own error.
func ServeChild() error {
	if !IsChild() {
		return fmt.Errorf("serve %s: this process was not started by a driver.Node", ChildName)
	}
	conn := os.NewFile(childSocket, "parent")
	s := &server{library: os.Args[1], enc: json.NewEncoder(conn), cancel: map[uint64]context.CancelFunc{}}
	if err := s.serve(conn); err != nil {
		return fmt.Errorf("serve %s: %w", ChildName, err)
	}
	return nil
}

// A server is the child's side: it runs each request on its own.
type server struct {
	library string

	open    sync.Once
	session *session
	openErr error

	mu     sync.Mutex
	enc    *json.Encoder
	cancel map[uint64]context.CancelFunc
}

// serve reads requests until the parent hangs up. The parent does that only
// when nothing runs; so if something does, the parent has died, and the child
// leaves at once as the parent did: what it would go on doing to a GPU nobody
// knows of, and another process may have taken over.
func (s *server) serve(conn io.Reader) error {
	dec := json.NewDecoder(conn)
	for {
		var req request
		if err := dec.Decode(&req); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		if req.Op == opCancel {
			s.giveUp(req.ID)
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		s.mu.Lock()
		s.cancel[req.ID] = cancel
		s.mu.Unlock()
		go s.answer(ctx, req)
	}
	s.mu.Lock()
	running := len(s.cancel)
	s.mu.Unlock()
	if running > 0 {
		return fmt.Errorf("the parent went away during %d calls", running)
	}
	return s.close()
}

// close ends the session, if there is one.
func (s *server) close() error {
	s.open.Do(func() { s.openErr = errors.New("closed") })
	if s.session == nil {
		return nil
	}
	return s.session.close()
}

func (s *server) giveUp(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancel[id]; cancel != nil {
		cancel()
	}
}

// answer runs one request and writes the response.
func (s *server) answer(ctx context.Context, req request) {
	resp := response{ID: req.ID}
	s.open.Do(func() { s.session, s.openErr = openSession(s.library) })
	result, err := any(nil), s.openErr
	if err == nil {
		result, err = s.run(ctx, req)
		resp.Retry = err != nil && stale(err)
	}
	resp.Stale = s.openErr != nil || resp.Retry
	if err != nil {
		resp.Err = newFailure(err)
	}
	if result != nil {
		data, encErr := json.Marshal(result)
		if encErr != nil {
			resp.Err = newFailure(fmt.Errorf("encode answer: %w", encErr))
		}
		resp.Result = data
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel[req.ID]()
	delete(s.cancel, req.ID)
	// An error means that the parent is gone, which serve finds out as well.
	_ = s.enc.Encode(resp)
}

// run is one request. A result is returned with an error only where the
// caller wants both.
func (s *server) run(ctx context.Context, req request) (any, error) {
	switch req.Op {
	case opScan:
		scan, err := s.session.scan(ctx)
		if err != nil {
			return nil, err
		}
		return newWireScan(scan), nil
	case opGPU:
		gpu, err := s.session.gpu(ctx, req.UUID)
		if err != nil {
			return nil, err
		}
		return newWireGPU(gpu), nil
	case opProfiles:
		profiles, err := s.session.profiles(ctx, req.UUID)
		if err != nil {
			return nil, err
		}
		return profiles, nil
	case opMode:
		return s.session.setMode(ctx, req.UUID, req.Enable)
	case opCreate:
		device, err := s.session.create(ctx, req.Placement)
		if err != nil {
			return nil, err
		}
		return device, nil
	case opDestroy:
		return nil, s.session.destroy(ctx, req.UUID)
	}
	return nil, fmt.Errorf("%w: unknown operation %q", nvml.ErrUnsupported, req.Op)
}
