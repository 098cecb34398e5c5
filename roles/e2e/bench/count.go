package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// runCount is the counter: it passes requests on to the API server, unchanged but
// for who asks, and writes each of them down. It runs on the node.
func runCount(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("count", flag.ContinueOnError)
	kubeconfig := f.String("kubeconfig", "", "file that says how to reach the API server")
	file := f.String("file", "", "file for the requests")
	addresses := map[string]string{}
	f.Func("for", "WHO=ADDRESS: listen there for somebody's requests", func(s string) error {
		who, address, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("%q is not WHO=ADDRESS", s)
		}
		addresses[who] = address
		return nil
	})
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return fmt.Errorf("read the API server's address: %w", err)
	}
	out, err := os.Create(*file)
	if err != nil {
		return fmt.Errorf("write requests: %w", err)
	}
	defer out.Close()
	c := &counter{write: out.Write}
	var servers []*http.Server
	var listeners []net.Listener
	for who, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("count requests of %s: %w", who, err)
		}
		listeners = append(listeners, l)
		servers = append(servers, &http.Server{Handler: c.handler(who, server, transport), ReadHeaderTimeout: 10 * time.Second})
	}
	fmt.Println(countStarted)
	errs := make([]error, len(servers))
	var group sync.WaitGroup
	for i, s := range servers {
		group.Go(func() {
			if err := s.Serve(listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				errs[i] = fmt.Errorf("count requests: %w", err)
			}
		})
	}
	<-ctx.Done()
	for _, s := range servers {
		errs = append(errs, s.Close())
	}
	group.Wait()
	return errors.Join(append(errs, c.err)...)
}

// A counter writes requests down.
type counter struct {
	write func([]byte) (int, error)

	mu  sync.Mutex
	err error // the first
}

// handler passes somebody's requests on.
func (c *counter) handler(who string, server *url.URL, transport http.RoundTripper) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport:     transport,
		FlushInterval: -1, // a watch never comes to its end
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.count(request{At: time.Now().UnixNano(), Who: who, Did: did(r.Method, r.URL)})
		proxy.ServeHTTP(w, r)
	})
}

func (c *counter) count(r request) {
	line, err := json.Marshal(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		_, err = c.write(append(line, '\n'))
	}
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("write request: %w", err)
	}
}

// did says what a request does, in the words of Kubernetes: "list resourceslices".
func did(method string, u *url.URL) string {
	verbs := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}
	path := strings.Split(strings.Trim(u.Path, "/"), "/")
	switch {
	case len(path) > 2 && path[0] == "api":
		path = path[2:]
	case len(path) > 3 && path[0] == "apis":
		path = path[3:]
	default:
		return strings.ToLower(method) + " " + u.Path
	}
	if len(path) > 2 && path[0] == "namespaces" {
		path = path[2:]
	}
	verb, other := verbs[method]
	switch {
	case other:
	case u.Query().Get("watch") == "1" || u.Query().Get("watch") == "true":
		verb = "watch"
	case len(path) == 1:
		verb = "list"
	default:
		verb = "get"
	}
	return verb + " " + path[0]
}

// writeCounted writes the kubeconfig that leads to the counter, where the plugin
// of a driver finds it.
func (b *bench) writeCounted(driver string, port int) error {
	dir := nodeDir
	if driver == ourDriver {
		dir = nodeImage
	}
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:%d"}}],"users":[{"name":"u","user":{}}]}`, port)
	if err := os.WriteFile(b.cluster.file(dir+counted), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
