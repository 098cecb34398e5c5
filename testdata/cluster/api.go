package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"nvdra.test/cluster/pki"
)

// A client talks to the servers of a cluster as its administrator. It is no
// Kubernetes client: it asks for health and makes two objects.
type client struct{ http *http.Client }

func newClient(ca []byte, admin pki.Pair) (client, error) {
	cert, err := tls.X509KeyPair(admin.Cert, admin.Key)
	if err != nil {
		return client{}, fmt.Errorf("load administrator's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return client{}, errors.New("load authority: no certificate in it")
	}
	return client{http: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}},
	}}, nil
}

// do sends in, if any, and decodes the answer into out, if any.
func (c client) do(ctx context.Context, method, url string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err // it names method and URL
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, url, res.Status, tail(string(raw), 3))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s %s: parse answer: %w", method, url, err)
	}
	return nil
}

// healthy asks a server whether it is well.
func (c client) healthy(url string) func(context.Context) error {
	return func(ctx context.Context) error { return c.do(ctx, http.MethodGet, url, nil, nil) }
}

// exists asks for an object.
func (c client) exists(url string) func(context.Context) error { return c.healthy(url) }

// nodeReady asks the API server whether a node can run pods.
func (c client) nodeReady(server, node string) func(context.Context) error {
	return func(ctx context.Context) error {
		var n struct {
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
		if err := c.do(ctx, http.MethodGet, server+"/api/v1/nodes/"+node, nil, &n); err != nil {
			return err
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type != "Ready" {
				continue
			}
			if cond.Status == "True" {
				return nil
			}
			return fmt.Errorf("node %s is not ready: %s", node, cond.Message)
		}
		return fmt.Errorf("node %s has not said yet whether it is ready", node)
	}
}

// listening asks whether somebody accepts connections at a socket.
func listening(path string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
