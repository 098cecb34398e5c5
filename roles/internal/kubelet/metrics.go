package kubelet

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Operations, as the label "operation" has them.
const (
	opPrepare   = "prepare"
	opUnprepare = "unprepare"
)

// Types of error, as the label "error_type" has them.
const (
	errTypePrepare   = "prepare_devices"
	errTypeUnprepare = "unprepare_devices"
	errTypeLock      = "lock_acquire"
	errTypePublish   = "publish_resources"
)

// buckets go from a prepare that only writes files to one that waits as long
// as kubelet does (45 s). The bounds from 0.05 to 12.8 are the ones dashboards
// know; finer ones below and longer ones above are added.
var buckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2}

// metrics are the figures of one plugin. Their names are those that
// dashboards for the NVIDIA DRA driver use.
type metrics struct {
	driver          string
	requests        *prometheus.CounterVec
	duration        *prometheus.HistogramVec
	inflight        *prometheus.GaugeVec
	prepareErrors   *prometheus.CounterVec
	unprepareErrors *prometheus.CounterVec
}

// newMetrics registers the figures. prepared counts the prepared devices by
// type when asked.
func newMetrics(r prometheus.Registerer, driver, node string, prepared func() map[string]int) (*metrics, error) {
	m := &metrics{
		driver: driver,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nvidia_dra_requests_total",
			Help: "Claims for which kubelet asked to prepare or unprepare them, whatever came of it.",
		}, []string{"driver", "operation"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nvidia_dra_request_duration_seconds",
			Help:    "Time to prepare or unprepare one claim, whether it succeeded or not.",
			Buckets: buckets,
		}, []string{"driver", "operation"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nvidia_dra_requests_inflight",
			Help: "Claims being prepared or unprepared now, including those that wait for a lock.",
		}, []string{"driver", "operation"}),
		prepareErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nvidia_dra_node_prepare_errors_total",
			Help: "Claims that could not be prepared, by what went wrong.",
		}, []string{"driver", "error_type"}),
		unprepareErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nvidia_dra_node_unprepare_errors_total",
			Help: "Claims that could not be unprepared, by what went wrong.",
		}, []string{"driver", "error_type"}),
	}
	for _, op := range []string{opPrepare, opUnprepare} {
		m.requests.WithLabelValues(driver, op)
		m.duration.WithLabelValues(driver, op)
		m.inflight.WithLabelValues(driver, op)
	}
	for _, e := range []string{errTypePrepare, errTypeLock, errTypePublish} {
		m.prepareErrors.WithLabelValues(driver, e)
	}
	for _, e := range []string{errTypeUnprepare, errTypeLock, errTypePublish} {
		m.unprepareErrors.WithLabelValues(driver, e)
	}
	for _, c := range []prometheus.Collector{
		m.requests, m.duration, m.inflight, m.prepareErrors, m.unprepareErrors,
		preparedDevices{node: node, driver: driver, count: prepared},
	} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// begin counts a claim in; the function it returns counts it out again, and
// is called even if the claim's preparation panicked.
func (m *metrics) begin(op string) (end func()) {
	start := time.Now()
	gauge := m.inflight.WithLabelValues(m.driver, op)
	gauge.Inc()
	return func() {
		gauge.Dec()
		m.requests.WithLabelValues(m.driver, op).Inc()
		m.duration.WithLabelValues(m.driver, op).Observe(time.Since(start).Seconds())
	}
}

// preparedDevices counts when it is asked, so that the figure is what the
// records say and cannot drift.
type preparedDevices struct {
	node, driver string
	count        func() map[string]int
}

var preparedDesc = prometheus.NewDesc("nvidia_dra_prepared_devices",
	"Devices prepared on this node now, by type.", []string{"node", "driver", "device_type"}, nil)

// Describe implements prometheus.Collector.
func (preparedDevices) Describe(ch chan<- *prometheus.Desc) { ch <- preparedDesc }

// Collect implements prometheus.Collector.
func (p preparedDevices) Collect(ch chan<- prometheus.Metric) {
	for deviceType, n := range p.count() {
		ch <- prometheus.MustNewConstMetric(preparedDesc, prometheus.GaugeValue, float64(n), p.node, p.driver, deviceType)
	}
}
