package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// server speaks protobuf as the API server does and remembers what it was asked.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   [][]byte
}

func newServer(t *testing.T, answer runtime.Object) *server {
	s := &server{}
	codec := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.requests, s.bodies = append(s.requests, r), append(s.bodies, body)
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		if err := codec.Encode(answer, w); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestProtobufForDRAAndEvents(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "train", Name: "job-7", UID: "u"}}
	claim.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"))
	s := newServer(t, claim)
	clients, err := fromConfig(&rest.Config{Host: s.URL}, 5, 10, "nvdra/test (role)")
	if err != nil {
		t.Fatal(err)
	}
	got, err := clients.Prompt.ResourceV1().ResourceClaims("train").Get(t.Context(), "job-7", metav1.GetOptions{})
	if err != nil || got.UID != "u" {
		t.Fatalf("got %v, %v", got, err)
	}
	if _, err := clients.Kube.ResourceV1().ResourceSlices().Create(t.Context(), &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := clients.Kube.EventsV1().Events("train").Create(t.Context(), &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	for i, want := range []runtime.Object{nil, &resourceapi.ResourceSlice{}, &eventsv1.Event{}} {
		r := s.requests[i]
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") || !strings.Contains(accept, "json") {
			t.Errorf("%s %s: Accept: %s", r.Method, r.URL, accept)
		}
		if agent := r.Header.Get("User-Agent"); agent != "nvdra/test (role)" {
			t.Errorf("User-Agent: %s", agent)
		}
		if want == nil {
			continue
		}
		if ct := r.Header.Get("Content-Type"); ct != "application/vnd.kubernetes.protobuf" {
			t.Errorf("%s %s: Content-Type: %s", r.Method, r.URL, ct)
		}
		if _, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(s.bodies[i], nil, want); err != nil {
			t.Errorf("%s %s: body: %v", r.Method, r.URL, err)
		}
	}
	if clients.Rest.ContentType != "" {
		t.Errorf("custom resources would be sent as %s", clients.Rest.ContentType)
	}
}

func TestLimits(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"))
	s := newServer(t, claim)
	clients, err := fromConfig(&rest.Config{Host: s.URL}, 0.001, 2, "test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 50 { // at 0.001 per second this would take half a day
		if _, err := clients.Prompt.ResourceV1().ResourceClaims("a").Get(ctx, "b", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var n int
	for ; n < 5; n++ {
		if _, err = clients.Kube.ResourceV1().ResourceClaims("a").Get(short, "b", metav1.GetOptions{}); err != nil {
			break
		}
	}
	if n != 2 || err == nil {
		t.Errorf("%d calls went through the limit of 2: %v", n, err)
	}
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := New("", 5, 10, "test"); !errors.Is(err, ErrNoCluster) || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("no kubeconfig: %v", err)
	}
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	if _, err := New(missing, 5, 10, "test"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("missing kubeconfig: %v", err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(bad, 5, 10, "test"); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("bad kubeconfig: %v", err)
	}
	good := filepath.Join(dir, "good")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"k","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(good, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(good, 5, 10, "test")
	if err != nil || c.Rest.Host != "http://127.0.0.1:1" || c.Rest.QPS != 5 || c.Rest.Burst != 10 {
		t.Errorf("%+v, %v", c, err)
	}
}
