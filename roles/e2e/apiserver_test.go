package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"
)

const (
	// adminToken is good only for an API server that listens on this machine's
	// loopback address while the tests run.
	adminToken = "admin-of-a-test"
	installDir = "../../testdata/manifests/install"
)

// An apiServer is a real kube-apiserver on an etcd of its own.
type apiServer struct {
	address string // host:port
	ca      []byte
	kube    *kubernetes.Clientset // as administrator, without limits
	etcd    *child
	server  *child
}

// startAPIServer starts etcd and an API server with what we install in it. All
// its files are below dir.
func startAPIServer(ctx context.Context, dir string) (_ *apiServer, err error) {
	etcdProgram, serverProgram, err := findParts(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	a := &apiServer{address: fmt.Sprintf("127.0.0.1:%d", ports[2])}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.stop())
		}
	}()
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	a.etcd, err = startChild("etcd", filepath.Join(dir, "etcd.log"), os.Environ(), etcdProgram,
		"--data-dir="+filepath.Join(dir, "etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		"--unsafe-no-fsync", "--log-level=warn")
	if err != nil {
		return nil, err
	}
	key, tokens := filepath.Join(dir, "sa.key"), filepath.Join(dir, "tokens.csv")
	if err := writeKey(key); err != nil {
		return nil, err
	}
	if err := os.WriteFile(tokens, []byte(adminToken+`,admin,admin,"system:masters"`+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write tokens: %w", err)
	}
	policy := filepath.Join(dir, "audit-policy.json")
	if err := writeAuditPolicy(policy); err != nil {
		return nil, fmt.Errorf("write audit policy: %w", err)
	}
	certs := filepath.Join(dir, "certs")
	a.server, err = startChild("kube-apiserver", filepath.Join(dir, "kube-apiserver.log"), os.Environ(), serverProgram,
		"--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]),
		"--cert-dir="+certs, "--token-auth-file="+tokens, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--audit-policy-file="+policy, "--audit-log-path="+auditLog(dir),
		"--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none", "--allow-privileged=true", "--v=1")
	if err != nil {
		return nil, err
	}
	if err := a.connect(ctx, filepath.Join(certs, "apiserver.crt")); err != nil {
		return nil, fmt.Errorf("%w\netcd:\n%s\nkube-apiserver:\n%s", err, a.etcd.tail(), a.server.tail())
	}
	return a, a.install(ctx)
}

// stop ends what was started, the API server first.
func (a *apiServer) stop() error {
	var errs []error
	for _, c := range []*child{a.server, a.etcd} {
		if c != nil {
			errs = append(errs, c.kill())
		}
	}
	return errors.Join(errs...)
}

// connect waits until the API server answers.
func (a *apiServer) connect(ctx context.Context, certificate string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return poll(ctx, 100*time.Millisecond, func() error {
		if a.server.ended() || a.etcd.ended() {
			return fmt.Errorf("%w: etcd: %v, kube-apiserver: %v", errGivenUp, a.etcd.err, a.server.err)
		}
		ca, err := os.ReadFile(certificate)
		if err != nil {
			return err
		}
		a.ca = ca
		if a.kube, err = kubernetes.NewForConfig(a.config()); err != nil {
			return err
		}
		return a.kube.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// config is how an administrator connects.
func (a *apiServer) config() *rest.Config {
	return &rest.Config{
		Host: "https://" + a.address, BearerToken: adminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.ca}, QPS: -1,
	}
}

// install applies testdata/manifests/install, as the README tells users to.
func (a *apiServer) install(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(installDir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("find manifests in %s: there are %d: %w", installDir, len(files), errors.Join(err, os.ErrNotExist))
	}
	for _, file := range files {
		objects, err := readManifest(file)
		if err != nil {
			return err
		}
		if err := a.apply(ctx, objects); err != nil {
			return fmt.Errorf("apply %s: %w", file, err)
		}
	}
	return a.waitForPolicy(ctx)
}

// apply creates objects of any kind.
func (a *apiServer) apply(ctx context.Context, objects []*unstructured.Unstructured) error {
	groups, err := restmapper.GetAPIGroupResources(a.kube.Discovery())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	clients, err := dynamic.NewForConfig(a.config())
	if err != nil {
		return err
	}
	for _, o := range objects {
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		client := dynamic.ResourceInterface(clients.Resource(mapping.Resource))
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			client = clients.Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		if _, err := client.Create(ctx, o, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil {
			return fmt.Errorf("create %s %s: %w", kind.Kind, o.GetName(), err)
		}
	}
	return nil
}

// readManifest reads the objects of a file.
func readManifest(file string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	documents := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []*unstructured.Unstructured
	for {
		doc, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read manifest %s: %w", file, err)
		}
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &o.Object); err != nil {
			return nil, fmt.Errorf("read manifest %s: %w", file, err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// waitForPolicy waits until the admission policy is in force: a plugin must not
// be able to write slices of another node. Then every script runs under it.
func (a *apiServer) waitForPolicy(ctx context.Context) error {
	n, err := a.addNode(ctx, probeNode)
	if err != nil {
		return err
	}
	token, _, err := a.pluginToken(ctx, n, probeNode)
	if err != nil {
		return err
	}
	plugin, err := a.clientWithToken(token)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return poll(ctx, 100*time.Millisecond, func() error {
		foreign := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-probe-"}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.nvidia.com", NodeName: new("another-node"), Pool: resourceapi.ResourcePool{Name: "another-node", ResourceSliceCount: 1},
		}}
		made, err := plugin.ResourceV1().ResourceSlices().Create(ctx, foreign, metav1.CreateOptions{})
		if err == nil {
			return errors.Join(errors.New("the admission policy lets a plugin write slices of another node"),
				a.kube.ResourceV1().ResourceSlices().Delete(ctx, made.Name, metav1.DeleteOptions{}))
		}
		if !apierrors.IsForbidden(err) || !bytes.Contains([]byte(err.Error()), []byte("may only write ResourceSlices")) {
			return fmt.Errorf("write a slice of another node: %w; want the admission policy to refuse it", err)
		}
		return nil
	})
}

// clientWithToken is a client of whoever has the token.
func (a *apiServer) clientWithToken(token string) (*kubernetes.Clientset, error) {
	c := a.config()
	c.BearerToken = token
	return kubernetes.NewForConfig(c)
}

// writeKey makes the key that signs tokens of service accounts.
func writeKey(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// freePorts finds ports that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // all are held until all are found
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// errGivenUp ends a poll before its time.
var errGivenUp = errors.New("no use waiting")

// poll calls f until it returns nil. The error is the last one of f.
func poll(ctx context.Context, every time.Duration, f func() error) error {
	for {
		err := f()
		if err == nil || errors.Is(err, errGivenUp) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(every):
		}
	}
}

// addNode registers a node, and a namespace of the same name for the claims of
// its pods. Admin access is allowed there, as it is for an administrator's.
func (a *apiServer) addNode(ctx context.Context, name string) (*corev1.Node, error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}}}
	if _, err := a.kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("add node: %w", err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"nvidia.com/gpu.present": "true"}}}
	n, err := a.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("add node: %w", err)
	}
	return n, nil
}
