package process

import (
	"flag"
	"fmt"
	"io"
	"strconv"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// newLoggers builds the role's logger and the one behind klog and logr, which
// is what client-go and the DRA libraries log to. Both write to w.
//
// They differ in what they let through: --log-level governs what a role says,
// and --v, the number that klog users know, how much more than that the
// libraries say. The libraries' V(n) arrives as zap level -n, and their warnings
// as info, since the interface between (logr) has none.
func newLoggers(w io.Writer, c Common) (role, libraries *zap.Logger, err error) {
	level, err := zapcore.ParseLevel(c.LogLevel)
	if err != nil {
		return nil, nil, fmt.Errorf("set log level: %w", err)
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.TimeKey = "time"
	cfg.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.EncodeDuration = zapcore.StringDurationEncoder
	cfg.EncodeLevel = encodeLevel
	encoder := zapcore.NewJSONEncoder(cfg)
	if c.LogFormat == "console" {
		cfg.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		encoder = zapcore.NewConsoleEncoder(cfg)
	}
	sink := zapcore.Lock(zapcore.AddSync(w))
	verbose := zap.LevelEnablerFunc(func(l zapcore.Level) bool {
		if l < zapcore.InfoLevel {
			return int(-l) <= c.Verbosity
		}
		return l >= level
	})
	role = zap.New(zapcore.NewCore(encoder, sink, level))
	libraries = zap.New(zapcore.NewCore(encoder, sink, verbose)).Named("k8s")
	return role, libraries, nil
}

// encodeLevel knows the levels below debug that verbose libraries use.
func encodeLevel(l zapcore.Level, out zapcore.PrimitiveArrayEncoder) {
	if l < zapcore.DebugLevel {
		l = zapcore.DebugLevel
	}
	zapcore.LowercaseLevelEncoder(l, out)
}

// bridge sends klog, and every logr logger found in a context by klog, to
// libraries. It is global, like klog itself, and called once per process.
func bridge(libraries *zap.Logger, verbosity int) error {
	// klog has a threshold of its own in front of the logger.
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return fmt.Errorf("set verbosity of klog: %w", err)
	}
	klog.SetLoggerWithOptions(zapr.NewLogger(libraries), klog.ContextualLogger(true))
	return nil
}
