package main

import (
	"errors"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/metrics"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// programMetrics are those of the process and of the requests to its store, which package
// server does not know.
type programMetrics struct {
	metrics.Registry

	storeRequests *prometheus.CounterVec
	storeSeconds  *prometheus.HistogramVec
}

func newMetrics() *programMetrics {
	m := &programMetrics{Registry: metrics.Registry{Registry: prometheus.NewRegistry()}}
	m.storeRequests = m.Counter("lucius_store_requests_total", "Requests to the store, by operation and outcome.", "operation", "outcome")
	m.storeSeconds = m.Histogram("lucius_store_request_seconds", "Time from a request to the store to its answer.",
		metrics.Latencies, "operation")
	m.GaugeOf(prometheus.Labels{"version": moduleVersion(), "go": runtime.Version()},
		"lucius_build_info", "1, with the versions of the program and of Go as labels.", func() float64 { return 1 })
	m.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// createRequests creates the series of requests to the store, with the outcomes that only this
// store has.
func (m *programMetrics) createRequests(more ...string) {
	operations := []string{"get", "scan", "commit"}
	metrics.Create(m.storeRequests, operations, append(more, "succeeded", "refused", "unreachable", "unanswered"))
	metrics.Create(m.storeSeconds, operations)
}

// observeRequest counts one request to the store.
func (m *programMetrics) observeRequest(operation, outcome string, took time.Duration) {
	m.storeRequests.WithLabelValues(operation, outcome).Inc()
	m.storeSeconds.WithLabelValues(operation).Observe(took.Seconds())
}

// observeCall counts one call of a store that does not classify its requests itself.
func (m *programMetrics) observeCall(operation string, took time.Duration, err error) {
	outcome := "refused"
	switch {
	case err == nil:
		outcome = "succeeded"
	case errors.Is(err, tablestore.ErrUnknown):
		outcome = "unanswered"
	case errors.Is(err, tablestore.ErrUnavailable) && !errors.Is(err, tablestore.ErrLapsed):
		outcome = "unreachable"
	}
	m.observeRequest(operation, outcome, took)
}

// observeReloads returns the observer of attempts to reload files. It creates the series
// of both outcomes, so that the first attempt shows as an increase.
func observeReloads(attempts *prometheus.CounterVec) func(background.ReloadOutcome) {
	for _, outcome := range []background.ReloadOutcome{background.Reloaded, background.Refused} {
		attempts.WithLabelValues(outcome.String())
	}
	return func(outcome background.ReloadOutcome) { attempts.WithLabelValues(outcome.String()).Inc() }
}

// watchRefusals registers the gauge that is 1 while the watcher refuses its files.
func (m *programMetrics) watchRefusals(name, help string, labels prometheus.Labels, watcher *background.Watcher) {
	m.GaugeOf(labels, name, help, func() float64 {
		if watcher.Err() != nil {
			return 1
		}
		return 0
	})
}
