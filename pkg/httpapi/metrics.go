package httpapi

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the server's own metrics. Their labels are bounded: routes are
// templates, and all methods unknown to HTTP share one label.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight prometheus.Gauge
	unknown  *prometheus.CounterVec
}

// newMetrics creates and registers the metrics.
func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lucius_http_requests_total",
			Help: "Requests answered, by route, method and status code; 499 means that the client went away.",
		}, []string{"route", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "lucius_http_request_duration_seconds",
			Help:    "Time from a request's header to the end of its answer, including waits.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route", "method"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lucius_http_requests_in_flight",
			Help: "Requests that are being served, including those that wait.",
		}),
		unknown: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lucius_http_unknown_fields_total",
			Help: "Bodies with a field that is not in the contract and was ignored.",
		}, []string{"route"}),
	}
	for _, collector := range []prometheus.Collector{m.requests, m.seconds, m.inFlight, m.unknown} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("httpapi: register metrics: %w", err)
		}
	}
	return m, nil
}

// observe counts one request.
func (m *metrics) observe(state *requestState, took time.Duration) {
	method := methodLabel(state.method)
	m.requests.WithLabelValues(state.route, method, strconv.Itoa(state.status)).Inc()
	m.seconds.WithLabelValues(state.route, method).Observe(took.Seconds())
}

// methodLabel keeps clients from creating labels.
func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	default:
		return "other"
	}
}
