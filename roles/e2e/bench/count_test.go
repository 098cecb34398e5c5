package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDid(t *testing.T) {
	for line, want := range map[string]string{
		"GET /api/v1/nodes/n": "get nodes",
		"GET /apis/resource.k8s.io/v1/resourceslices?fieldSelector=x":       "list resourceslices",
		"GET /apis/resource.k8s.io/v1/resourceslices?watch=true":            "watch resourceslices",
		"GET /apis/resource.k8s.io/v1/resourceslices?watch=1":               "watch resourceslices",
		"POST /apis/resource.k8s.io/v1/resourceslices":                      "create resourceslices",
		"GET /apis/resource.k8s.io/v1/namespaces/bench/resourceclaims/c":    "get resourceclaims",
		"PUT /apis/resource.k8s.io/v1/namespaces/b/resourceclaims/c/status": "update resourceclaims",
		"GET /api/v1/namespaces/bench":                                      "get namespaces",
		"PATCH /apis/events.k8s.io/v1/namespaces/default/events/e":          "patch events",
		"DELETE /apis/resource.k8s.io/v1/resourceslices/s":                  "delete resourceslices",
		"GET /version": "get /version",
		"GET /":        "get /",
	} {
		method, rest, _ := strings.Cut(line, " ")
		u, err := url.Parse(rest)
		if err != nil {
			t.Fatal(err)
		}
		if got := did(method, u); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestCounter sends requests through a counter and reads what it wrote.
func TestCounter(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/nodes/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "requests")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c := &counter{write: out.Write}
	front := httptest.NewServer(c.handler("us", u, http.DefaultTransport))
	defer front.Close()
	for path, status := range map[string]int{"/api/v1/nodes/a": 200, "/api/v1/nodes/missing": 404} {
		res, err := http.Get(front.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, status)
		}
	}
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	all, err := parseRequests(in)
	if err != nil || c.err != nil {
		t.Fatal(err, c.err)
	}
	if n := len(between(all, time.Now().Add(-time.Minute), time.Now())); n != 2 {
		t.Errorf("%d requests, want 2: %v", n, all)
	}
	if n := len(between(all, time.Now(), time.Now().Add(time.Minute))); n != 0 {
		t.Errorf("%d requests of the future", n)
	}
}

func TestRequestRow(t *testing.T) {
	all := []request{{Who: ourDriver, Did: "get resourceclaims"}, {Who: ourDriver, Did: "get resourceclaims"}, {Who: ourDriver, Did: "watch resourceslices"}, {Who: floorDriver, Did: "get nodes"}}
	got := requestRow("per prepare", all, 0.5)
	want := row{what: "per prepare", ours: value{1, "requests"}, floor: value{0.5, "requests"}, note: "ours: 2 get resourceclaims, 1 watch resourceslices"}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(row{}, value{})); d != "" {
		t.Error(d)
	}
}

func TestParseRequestsRefuses(t *testing.T) {
	if all, err := parseRequests(strings.NewReader(`{"at":1,"who":"a","did":"b"}` + "\n{")); err == nil {
		t.Errorf("half a line was read: %v", all)
	}
}
