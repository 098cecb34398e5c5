package process

import (
	"strings"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap/zapcore"

	"nvdra/featuregates"
)

// Common is what every role can be told. Embed it in the role's own
// configuration; its values are valid once Main calls Start.
type Common struct {
	LogLevel     string // debug, info, warn or error
	Verbosity    int    // of client-go's log, as klog counts
	LogFormat    string // json or console
	HTTPEndpoint string // address of metrics and health; empty for none
	MetricsPath  string // empty for no metrics
	Kubeconfig   string // empty inside a pod
	KubeAPIQPS   float64
	KubeAPIBurst int
	Gates        featuregates.Set

	gateTexts gateTexts
}

// flags are in the order that --help prints them.
func (c *Common) flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "log-level", EnvVars: []string{"LOG_LEVEL"}, Value: "info", Destination: &c.LogLevel,
			Usage: "least severe message to log: debug, info, warn or error"},
		&cli.IntFlag{Name: "v", EnvVars: []string{"V"}, Destination: &c.Verbosity,
			Usage: "verbosity of the Kubernetes client libraries, as klog counts; 4 and more logs what a developer needs"},
		&cli.StringFlag{Name: "log-format", Aliases: []string{"logging-format"}, EnvVars: []string{"LOG_FORMAT", "LOGGING_FORMAT"}, Value: "json", Destination: &c.LogFormat,
			Usage: "form of log lines: json, or console (also called text) for people"},
		&cli.StringFlag{Name: "http-endpoint", EnvVars: []string{"HTTP_ENDPOINT"}, Destination: &c.HTTPEndpoint,
			Usage: "address to serve metrics, /healthz and /readyz on, such as :8080; empty serves none"},
		&cli.StringFlag{Name: "metrics-path", EnvVars: []string{"METRICS_PATH"}, Value: "/metrics", Destination: &c.MetricsPath,
			Usage: "path of the metrics; empty serves none"},
		&cli.StringFlag{Name: "kubeconfig", EnvVars: []string{"KUBECONFIG"}, Destination: &c.Kubeconfig,
			Usage: "file that says how to reach the API server; empty in a pod"},
		&cli.Float64Flag{Name: "kube-api-qps", EnvVars: []string{"KUBE_API_QPS"}, Value: 5, Destination: &c.KubeAPIQPS,
			Usage: "requests per second to the API server, in the long run"},
		&cli.IntFlag{Name: "kube-api-burst", EnvVars: []string{"KUBE_API_BURST"}, Value: 10, Destination: &c.KubeAPIBurst,
			Usage: "requests to the API server that may be made at once"},
		&cli.GenericFlag{Name: "feature-gates", EnvVars: []string{"FEATURE_GATES"}, Value: &c.gateTexts,
			Usage: "features to switch on or off, as Name=true,Name=false; may be repeated, and is added to what the variable says"},
	}
}

// check looks at the values together, after all have been read, and fills in
// what is derived from them.
func (c *Common) check() error {
	var errs []error
	if _, err := zapcore.ParseLevel(c.LogLevel); err != nil || !strings.Contains(" debug info warn error ", " "+c.LogLevel+" ") {
		errs = append(errs, Usagef("--log-level (LOG_LEVEL) is %q: want debug, info, warn or error", c.LogLevel))
	}
	if c.LogFormat == "text" { // the word of Kubernetes' own components
		c.LogFormat = "console"
	}
	if c.LogFormat != "json" && c.LogFormat != "console" {
		errs = append(errs, Usagef("--log-format (LOG_FORMAT) is %q: want json or console", c.LogFormat))
	}
	if c.Verbosity < 0 {
		errs = append(errs, Usagef("-v (V) is %d: want 0 or more", c.Verbosity))
	}
	if c.MetricsPath != "" && !strings.HasPrefix(c.MetricsPath, "/") {
		errs = append(errs, Usagef("--metrics-path (METRICS_PATH) is %q: want a path that begins with /", c.MetricsPath))
	}
	if c.MetricsPath == healthPath || c.MetricsPath == readyPath {
		errs = append(errs, Usagef("--metrics-path (METRICS_PATH) is %q: that path is taken", c.MetricsPath))
	}
	if c.KubeAPIQPS <= 0 {
		errs = append(errs, Usagef("--kube-api-qps (KUBE_API_QPS) is %v: want more than 0", c.KubeAPIQPS))
	}
	if c.KubeAPIBurst < 1 {
		errs = append(errs, Usagef("--kube-api-burst (KUBE_API_BURST) is %d: want 1 or more", c.KubeAPIBurst))
	}
	gates, err := featuregates.Parse(c.gateTexts...)
	if err == nil {
		err = gates.Validate()
	}
	if err != nil {
		errs = append(errs, Usagef("--feature-gates (FEATURE_GATES): %w", err))
	}
	c.Gates = gates
	return oneLine(errs)
}

// gateTexts collects what the environment and each --feature-gates say, in
// that order. They are parsed together in check, so that all mistakes are
// reported at once.
type gateTexts []string

// Set adds one more text; it is what cli calls.
func (g *gateTexts) Set(text string) error {
	*g = append(*g, text)
	return nil
}

// String shows the texts joined; it is what cli calls for the default.
func (g *gateTexts) String() string {
	if g == nil {
		return ""
	}
	return strings.Join(*g, ",")
}
