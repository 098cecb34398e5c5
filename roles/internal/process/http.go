package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

var (
	errStarting = errors.New("starting")
	errStopping = errors.New("stopping")
)

// newRegistry makes the registry of one process, with the Go runtime's and the
// kernel's figures about it.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// endpoint is the HTTP server for metrics and health.
type endpoint struct {
	listener net.Listener
	server   *http.Server

	mu    sync.Mutex
	ready func() error // what /readyz asks
}

// listen opens the address at once, so that a taken port is an error at start
// and not a line in the log later.
func listen(address, metricsPath string, registry *prometheus.Registry, log *zap.Logger) (*endpoint, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve --http-endpoint (HTTP_ENDPOINT) %q: %w", address, err)
	}
	errorLog, err := zap.NewStdLogAt(log.Named("http"), zap.WarnLevel)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("log errors of HTTP: %w", err)
	}
	e := &endpoint{listener: l, ready: func() error { return errStarting }}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET "+readyPath, func(w http.ResponseWriter, _ *http.Request) { answer(w, e.readiness()) })
	if metricsPath != "" {
		mux.Handle("GET "+metricsPath, promhttp.InstrumentMetricHandler(registry,
			promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry, ErrorLog: errorLog, ErrorHandling: promhttp.ContinueOnError})))
	}
	e.server = &http.Server{
		Handler:           mux,
		ErrorLog:          errorLog,
		ReadHeaderTimeout: 5 * time.Second, // a client that says nothing must not hold a connection for ever
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    1 << 14,
	}
	return e, nil
}

// answer writes "ok", or what is missing with status 503.
func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	text := "ok"
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = err.Error()
	}
	io.WriteString(w, text+"\n") //nolint:errcheck // whoever asked has gone
}

// setReady replaces what /readyz asks.
func (e *endpoint) setReady(ready func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = ready
}

func (e *endpoint) readiness() error {
	e.mu.Lock()
	ready := e.ready
	e.mu.Unlock()
	return ready() // not under the lock: it may be slow
}

// run serves until ctx is done and over is closed: metrics and health can be
// read while the role is stopping.
func (e *endpoint) run(ctx context.Context, over <-chan struct{}) error {
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		e.setReady(func() error { return errStopping })
		<-over
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		err := e.server.Shutdown(last)
		if err != nil { // someone still reads; that is no reason to stay
			err = e.server.Close()
		}
		stopped <- err
	}()
	if err := e.server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", e.listener.Addr(), err)
	}
	return <-stopped
}
