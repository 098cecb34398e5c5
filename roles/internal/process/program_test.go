package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v2"
	"go.uber.org/zap"
	"k8s.io/klog/v2"

	"nvdra/featuregates"
)

// clearEnv takes away every variable that the flags read, so that the test
// sees only what it sets itself.
func clearEnv(t *testing.T) {
	var c Common
	var n Node
	for _, f := range append(c.flags(), n.flags()...) {
		for _, name := range f.(cli.DocGenerationFlag).GetEnvVars() {
			unset(t, name)
		}
	}
}

// config is a role's configuration as a role would write it.
type config struct {
	Common
	Node
	XIDs string
	Size int
}

// runRole runs a role that is over at once and returns what it was told.
func runRole(t *testing.T, args ...string) (cfg config, stdout, stderr string, err error) {
	var out, log bytes.Buffer
	err = Main(t.Context(), Env{&out, &log}, Program{
		Role: "test-role", Doc: "be tested", Common: &cfg.Common, Node: &cfg.Node,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "xids", EnvVars: []string{"TEST_XIDS"}, Destination: &cfg.XIDs, Usage: "numbers"},
			&cli.IntFlag{Name: "size", EnvVars: []string{"TEST_SIZE"}, Destination: &cfg.Size, Value: 3, Usage: "how large"},
		},
		Check: func() error {
			if cfg.Size > 100 {
				return errors.New("--size: too large")
			}
			return nil
		},
		Start: func(context.Context, *Process) error { return nil },
	}, args)
	return cfg, out.String(), log.String(), err
}

func TestFlagsAndDefaults(t *testing.T) {
	clearEnv(t)
	cfg, _, _, err := runRole(t, "--node-name=n1")
	if err != nil {
		t.Fatal(err)
	}
	want := Node{NodeName: "n1", Namespace: "default", CDIRoot: "/etc/cdi", DriverRoot: "/", ContainerDriverRoot: "/driver-root", HostRoot: "/",
		RegistrarDir: "/var/lib/kubelet/plugins_registry", PluginsDir: "/var/lib/kubelet/plugins", HealthcheckPort: -1}
	if diff := cmp.Diff(want, cfg.Node); diff != "" {
		t.Error(diff)
	}
	c := cfg.Common
	if c.LogLevel != "info" || c.LogFormat != "json" || c.HTTPEndpoint != "" || c.MetricsPath != "/metrics" || c.KubeAPIQPS != 5 || c.KubeAPIBurst != 10 || c.Gates != (featuregates.Set{}) {
		t.Errorf("%+v", c)
	}
	if cfg.Size != 3 {
		t.Errorf("size %d", cfg.Size)
	}
}

func TestEnvironmentAndFlags(t *testing.T) {
	clearEnv(t)
	for name, value := range map[string]string{
		"NODE_NAME": "from-env", "HOST_DRIVER_ROOT": "/run/nvidia/driver", "V": "6", "LOG_LEVEL": "warn", "LOGGING_FORMAT": "text",
		"HEALTHCHECK_PORT": "51516", "KUBE_API_QPS": "2.5", "FEATURE_GATES": "DynamicMIG=true,TimeSlicingSettings=true,", "TEST_SIZE": "7",
		"METRICS_PATH": "", "POD_UID": "u",
	} {
		t.Setenv(name, value)
	}
	cfg, _, _, err := runRole(t, "--node-name", "from-flag", "-v=2", "--feature-gates=TimeSlicingSettings=false", "--feature-gates", "ConsumableShares=true", "--cdi-root=/var/run/cdi")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.NodeName != "from-flag" || cfg.DriverRoot != "/run/nvidia/driver" || cfg.Verbosity != 2 || cfg.LogLevel != "warn" || cfg.LogFormat != "console" ||
		cfg.HealthcheckPort != 51516 || cfg.KubeAPIQPS != 2.5 || cfg.Size != 7 || cfg.MetricsPath != "" || cfg.CDIRoot != "/var/run/cdi" || cfg.PodUID != "u" {
		t.Errorf("%+v", cfg)
	}
	want := featuregates.Set{}.With(featuregates.DynamicMIG, true).With(featuregates.ConsumableShares, true)
	if cfg.Gates.String() != want.String() {
		t.Errorf("gates %v", cfg.Gates)
	}
	t.Setenv("NVIDIA_DRIVER_ROOT", "/first") // the first name of two wins
	if cfg, _, _, err := runRole(t, "--host_driver-root=/flag"); err != nil || cfg.DriverRoot != "/flag" {
		t.Errorf("%q, %v", cfg.DriverRoot, err)
	}
}

func TestMistakesAreUsageErrors(t *testing.T) {
	for name, test := range map[string]struct {
		env  map[string]string
		args []string
		says []string
	}{
		"unknown flag":        {nil, []string{"--nonsense=1"}, []string{"test-role: unknown flag --nonsense", "nvdra --role=test-role --help"}},
		"positional":          {nil, []string{"run"}, []string{`unexpected argument "run"`}},
		"after two dashes":    {nil, []string{"--", "--help"}, []string{`unexpected argument "--help"`}},
		"no value":            {nil, []string{"--cdi-root"}, []string{"flag --cdi-root needs a value"}},
		"bad value":           {nil, []string{"--v=high"}, []string{`flag -v is "high": want a whole number`}},
		"bad number":          {nil, []string{"--kube-api-qps=many"}, []string{`flag --kube-api-qps is "many": want a number`}},
		"bad variable":        {map[string]string{"V": "high"}, nil, []string{`environment variable V is "high": want a whole number`}},
		"two bad variables":   {map[string]string{"V": "high", "KUBE_API_QPS": "x"}, nil, []string{"variable V", "variable KUBE_API_QPS"}},
		"a role's variable":   {map[string]string{"TEST_SIZE": "x"}, nil, []string{`environment variable TEST_SIZE is "x"`}},
		"required":            {map[string]string{"NODE_NAME": ""}, nil, []string{"missing --node-name (NODE_NAME)"}},
		"log level":           {map[string]string{"LOG_LEVEL": "loud"}, nil, []string{`--log-level (LOG_LEVEL) is "loud"`, "debug, info, warn or error"}},
		"log level of zap":    {nil, []string{"--log-level=fatal"}, []string{"debug, info, warn or error"}},
		"log format":          {nil, []string{"--log-format=xml"}, []string{"json or console"}},
		"negative verbosity":  {nil, []string{"--v=-1"}, []string{"-v (V) is -1"}},
		"qps":                 {nil, []string{"--kube-api-qps=0"}, []string{"--kube-api-qps (KUBE_API_QPS) is 0"}},
		"burst":               {nil, []string{"--kube-api-burst=0"}, []string{"--kube-api-burst (KUBE_API_BURST) is 0"}},
		"metrics path":        {nil, []string{"--metrics-path=metrics"}, []string{"begins with /"}},
		"taken metrics path":  {nil, []string{"--metrics-path=/readyz"}, []string{"is taken"}},
		"unknown gate":        {map[string]string{"FEATURE_GATES": "Nonsense=true"}, nil, []string{"--feature-gates (FEATURE_GATES)", `"Nonsense"`}},
		"gates that conflict": {nil, []string{"--feature-gates=DynamicMIG=true,MPSSupport=true"}, []string{"DynamicMIG excludes MPSSupport"}},
		"relative path":       {nil, []string{"--cdi-root=cdi"}, []string{`--cdi-root (CDI_ROOT) is "cdi": want an absolute path`}},
		"relative hook":       {nil, []string{"--nvidia-cdi-hook-path=hook"}, []string{"NVIDIA_CDI_HOOK_PATH"}},
		"port":                {nil, []string{"--healthcheck-port=70000"}, []string{"at most 65535"}},
		"the role's own":      {nil, []string{"--size=101"}, []string{"--size: too large"}},
		"everything at once":  {nil, []string{"--size=101", "--cdi-root=", "--log-format=xml"}, []string{"too large", "CDI_ROOT", "LOG_FORMAT"}},
	} {
		t.Run(name, func(t *testing.T) {
			clearEnv(t)
			t.Setenv("NODE_NAME", "n1")
			for k, v := range test.env {
				t.Setenv(k, v)
			}
			_, stdout, stderr, err := runRole(t, test.args...)
			if !errors.Is(err, ErrUsage) {
				t.Fatalf("Main = %v", err)
			}
			if stdout+stderr != "" {
				t.Errorf("something was printed: %s%s", stdout, stderr)
			}
			for _, s := range append(test.says, "test-role: ") {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestFlagDeclaredTwice(t *testing.T) {
	var c Common
	err := Main(t.Context(), Env{io.Discard, io.Discard}, Program{Role: "r", Common: &c, Flags: []cli.Flag{&cli.IntFlag{Name: "v"}}}, nil)
	if err == nil || errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "--v: it is declared twice") {
		t.Error(err)
	}
}

func TestHelpWinsOverMistakes(t *testing.T) {
	clearEnv(t)
	t.Setenv("V", "high")
	_, stdout, stderr, err := runRole(t, "--nonsense", "--help")
	if err != nil || stderr != "" {
		t.Fatalf("%v %s", err, stderr)
	}
	for _, want := range []string{
		"nvdra --role=test-role: be tested", "--xids $TEST_XIDS", "--size $TEST_SIZE (default 3)", "--node-name $NODE_NAME (required)",
		"--nvidia-driver-root, --host_driver-root $NVIDIA_DRIVER_ROOT $HOST_DRIVER_ROOT (default /)", "--feature-gates $FEATURE_GATES\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

func TestStartLine(t *testing.T) {
	clearEnv(t)
	_, _, stderr, err := runRole(t, "--node-name=n1", "--feature-gates=DynamicMIG=true")
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		Msg, Role, Version, FeatureGates, Level, Time string
		Flags                                         map[string]string
	}
	first, _, _ := strings.Cut(stderr, "\n")
	if err := json.Unmarshal([]byte(first), &line); err != nil {
		t.Fatalf("%v: %s", err, first)
	}
	if line.Msg != "start" || line.Role != "test-role" || line.Version == "" || line.Level != "info" || line.Flags["node-name"] != "n1" ||
		!strings.Contains(line.FeatureGates, "DynamicMIG=true") || strings.Count(line.FeatureGates, "=") != len(featuregates.Known) {
		t.Errorf("%s", first)
	}
	if _, err := time.Parse(time.RFC3339Nano, line.Time); err != nil {
		t.Error(err)
	}
}

// syncBuffer can be written and read at once.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

func TestEndpoint(t *testing.T) {
	clearEnv(t)
	var common Common
	ctx, cancel := context.WithCancel(t.Context())
	var log syncBuffer
	err := Main(ctx, Env{io.Discard, &log}, Program{
		Role: "test-role", Common: &common,
		Start: func(ctx context.Context, p *Process) error {
			base := "http://" + p.HTTPAddress()
			if code, body := get(t, base+"/readyz"); code != 503 || body != "starting" {
				t.Errorf("before the role says anything: %d %s", code, body)
			}
			p.SetReady(func() error { return errors.New("kubelet has not registered us") })
			if code, body := get(t, base+"/readyz"); code != 503 || body != "kubelet has not registered us" {
				t.Errorf("not ready: %d %s", code, body)
			}
			p.SetReady(func() error { return nil })
			if code, body := get(t, base+"/readyz"); code != 200 || body != "ok" {
				t.Errorf("ready: %d %s", code, body)
			}
			if code, body := get(t, base+"/healthz"); code != 200 || body != "ok" {
				t.Errorf("healthy: %d %s", code, body)
			}
			counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "test_total", Help: "of a role"})
			p.Registry.MustRegister(counter)
			counter.Inc()
			code, body := get(t, base+"/metrics")
			for _, want := range []string{"test_total 1", "go_goroutines ", "process_start_time_seconds ", "promhttp_metric_handler_requests_total"} {
				if code != 200 || !strings.Contains(body, want) {
					t.Errorf("metrics: %d, no %s", code, want)
				}
			}
			if code, _ := get(t, base+"/elsewhere"); code != 404 {
				t.Errorf("elsewhere: %d", code)
			}
			return p.Run(ctx, Task{"wait", func(ctx context.Context) error {
				cancel()
				<-ctx.Done()
				deadline := time.Now().Add(5 * time.Second)
				for {
					code, body := get(t, base+"/readyz")
					if code == 503 && body == "stopping" {
						return nil // it still serves while we are stopping
					}
					if time.Now().After(deadline) {
						t.Errorf("while stopping: %d %s", code, body)
						return nil
					}
				}
			}})
		},
	}, []string{"--http-endpoint=127.0.0.1:0"})
	if err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
}

func TestNoMetricsWithoutPath(t *testing.T) {
	clearEnv(t)
	var common Common
	err := Main(t.Context(), Env{io.Discard, io.Discard}, Program{Role: "r", Common: &common, Start: func(_ context.Context, p *Process) error {
		if code, _ := get(t, "http://"+p.HTTPAddress()+"/metrics"); code != 404 {
			t.Errorf("status %d", code)
		}
		return nil
	}}, []string{"--http-endpoint=127.0.0.1:0", "--metrics-path="})
	if err != nil {
		t.Error(err)
	}
}

func TestTakenPort(t *testing.T) {
	clearEnv(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var common Common
	err = Main(t.Context(), Env{io.Discard, io.Discard}, Program{Role: "r", Common: &common, Start: func(context.Context, *Process) error {
		t.Error("started all the same")
		return nil
	}}, []string{"--http-endpoint=" + l.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), `--http-endpoint (HTTP_ENDPOINT) "`+l.Addr().String()+`"`) {
		t.Error(err)
	}
}

func TestRoleThatFails(t *testing.T) {
	clearEnv(t)
	for _, args := range [][]string{nil, {"--http-endpoint=127.0.0.1:0"}} {
		var common Common
		var log bytes.Buffer
		err := Main(t.Context(), Env{io.Discard, &log}, Program{Role: "r", Common: &common, Start: func(context.Context, *Process) error {
			return io.ErrUnexpectedEOF
		}}, args)
		if err == nil || err.Error() != "r: unexpected EOF" || errors.Is(err, ErrUsage) {
			t.Error(err)
		}
	}
}

func TestConnect(t *testing.T) {
	clearEnv(t)
	unset(t, "KUBERNETES_SERVICE_HOST")
	var common Common
	err := Main(t.Context(), Env{io.Discard, io.Discard}, Program{Role: "r", Common: &common, Start: func(_ context.Context, p *Process) error {
		if agent := p.UserAgent(); !strings.HasPrefix(agent, "nvdra/") || !strings.HasSuffix(agent, " (r)") {
			t.Errorf("user agent %q", agent)
		}
		_, err := p.Connect()
		return err
	}}, []string{"--kubeconfig=/nonexistent/kubeconfig"})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/kubeconfig") {
		t.Error(err)
	}
}

// TestVerbosity shows which messages of the libraries each -v lets through.
func TestVerbosity(t *testing.T) {
	for _, test := range []struct {
		level     string
		verbosity int
		want      string
	}{
		{"info", 0, "error 0"},
		{"info", 4, "error 0 1 4"},
		{"info", 9, "error 0 1 4 9"},
		{"warn", 0, "error"},
		{"error", 0, "error"},
	} {
		var out bytes.Buffer
		role, libraries, err := newLoggers(&out, Common{LogLevel: test.level, LogFormat: "json", Verbosity: test.verbosity})
		if err != nil {
			t.Fatal(err)
		}
		if err := bridge(libraries, test.verbosity); err != nil {
			t.Fatal(err)
		}
		klog.ErrorS(io.EOF, "error")
		klog.InfoS("0")
		klog.V(1).InfoS("1")
		klog.FromContext(t.Context()).V(4).Info("4")
		klog.V(9).InfoS("9")
		klog.Flush()
		role.Debug("debug of the role")
		var got []string
		for line := range strings.Lines(out.String()) {
			var entry struct{ Msg, Level, Logger, Error string }
			if err := json.Unmarshal([]byte(line), &entry); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if entry.Logger != "k8s" || entry.Msg == "4" && entry.Level != "debug" || entry.Msg == "error" && entry.Error != "EOF" {
				t.Errorf("%s", line)
			}
			got = append(got, strings.TrimSpace(entry.Msg))
		}
		if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s, -v=%d: %s", test.level, test.verbosity, diff)
		}
	}
	if err := bridge(zap.NewNop(), 0); err != nil {
		t.Fatal(err)
	}
}

func TestConsole(t *testing.T) {
	var out bytes.Buffer
	log, _, err := newLoggers(&out, Common{LogLevel: "debug", LogFormat: "console"})
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("hello", zap.Duration("took", 1500*time.Millisecond))
	if !strings.Contains(out.String(), "\tdebug\thello\t{\"took\": \"1.5s\"}") {
		t.Errorf("%q", out.String())
	}
}

func TestVersionText(t *testing.T) {
	if s := (Build{"v1.2.3", "abc", "go1.26"}).String(); s != "nvdra v1.2.3 (commit abc, go1.26)" {
		t.Error(s)
	}
	if b := ThisBuild(); b.Version == "" || b.Go == "" {
		t.Errorf("%+v", b)
	}
}

func FuzzParseArguments(f *testing.F) {
	for _, seed := range []string{"", "--node-name=n", "--v=1 --node-name n", "-h", "--", "-", "---", "--=", "--v", "--feature-gates=,=", "x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		var c Common
		var n Node
		_, err := parse("test", append(c.flags(), n.flags()...), strings.Split(line, " "))
		if err != nil && !errors.Is(err, ErrUsage) && !errors.Is(err, errHelp) {
			t.Errorf("%q: %v", line, err)
		}
		if err == nil {
			_ = c.check()
			_ = n.check()
		}
	})
}
