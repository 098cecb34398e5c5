package e2e

import (
	"fmt"
	"net"
	"sync"
)

// A proxy is the way from one node to the API server. It can be cut: then
// connections end and new ones are refused, as when the API server is down. Or
// it can go silent: then connections stay and nothing comes back, as when a
// firewall drops packets.
type proxy struct {
	to      string
	address string

	mu       sync.Mutex
	listener net.Listener // nil while cut
	silent   bool
	open     map[net.Conn]bool
}

func newProxy(to string) (*proxy, error) {
	p := &proxy{to: to, address: "127.0.0.1:0", open: map[net.Conn]bool{}}
	if err := p.mend(); err != nil {
		return nil, err
	}
	p.address = p.listener.Addr().String()
	return p, nil
}

// mend lets connections through again.
func (p *proxy) mend() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent {
		p.silent = false
		p.closeAll() // what was swallowed is missing in them
	}
	if p.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		return fmt.Errorf("open the way to the API server: %w", err)
	}
	p.listener = l
	go p.accept(l)
	return nil
}

// cut ends all connections and refuses new ones.
func (p *proxy) cut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeAll()
	if p.listener == nil {
		return nil
	}
	err := p.listener.Close()
	p.listener = nil
	return err
}

// silence keeps connections but lets nothing through.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

func (p *proxy) closeAll() {
	for c := range p.open {
		c.Close() // its copying ends, and that is the purpose
	}
	clear(p.open)
}

func (p *proxy) accept(l net.Listener) {
	for {
		in, err := l.Accept()
		if err != nil {
			return // cut
		}
		go p.serve(in)
	}
}

func (p *proxy) serve(in net.Conn) {
	defer p.forget(in)
	if !p.remember(in) {
		return
	}
	out, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer p.forget(out)
	if !p.remember(out) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(out, in) })
	both.Go(func() { p.copy(in, out) })
	both.Wait()
}

func (p *proxy) remember(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return false
	}
	p.open[c] = true
	return true
}

func (p *proxy) forget(c net.Conn) {
	c.Close() // it may be closed already
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// copy copies until either side ends, and then ends the other.
func (p *proxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.isSilent() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) isSilent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silent
}
