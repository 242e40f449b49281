package main

import (
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// metrics are the counters and histograms that the parts of a server feed. What is read
// at each scrape is registered with the parts that it reads, see metricswatch.go. The
// series of fixed labels exist from the start, so that their first increase shows.
type metrics struct {
	registry *prometheus.Registry
	jobMetrics

	relayed, fired, purged      *prometheus.CounterVec
	bulkJobs, webhooks, replies *prometheus.CounterVec
	rejected                    *prometheus.CounterVec
	unrecorded                  prometheus.Counter
	sweepFailures               prometheus.Counter
	sweepLate                   prometheus.Gauge
	loopPasses                  *prometheus.SummaryVec
	loopFailures                *prometheus.CounterVec
	published, replySeconds     *prometheus.HistogramVec
	storeRequests               *prometheus.CounterVec
	storeSeconds                *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.jobMetrics = newJobMetrics(m)
	m.relayed = m.counter("lucius_relay_rows_total", "Outbox rows that the relay handled, by outcome.", "outcome")
	create(m.relayed, names(outbox.Marked, outbox.Settled, outbox.Rejected, outbox.Uncertain, outbox.Outage, outbox.Overload,
		outbox.Gated, outbox.Held, outbox.Skipped, outbox.Unmarked))
	m.fired = m.counter("lucius_sweeper_entries_total", "Due schedule entries, by their standing to their job.", "standing")
	for standing := ledger.Acted; standing <= ledger.Orphaned; standing++ {
		create(m.fired, []string{standing.String()})
	}
	m.purged = m.counter("lucius_retention_entries_total", "Ended jobs that were due for purging, by outcome.", "outcome")
	for outcome := ledger.PurgeDone; outcome <= ledger.PurgeNever; outcome++ {
		create(m.purged, []string{outcome.String()})
	}
	m.bulkJobs = m.counter("lucius_bulk_jobs_total", "Jobs of operations on many jobs, by kind and outcome.", "kind", "outcome")
	create(m.bulkJobs, names(upkeep.KindRetry, upkeep.KindCancel, upkeep.KindPause, upkeep.KindResume),
		names(upkeep.ItemApplied, upkeep.ItemRepeated, upkeep.ItemSkipped, upkeep.ItemFailed))
	m.webhooks = m.counter("lucius_webhook_attempts_total", "Attempts to send a webhook, by outcome.", "outcome")
	create(m.webhooks, names(webhook.Delivered, webhook.Gone, webhook.RetryAfter, webhook.Failed, webhook.Refused,
		webhook.Interrupted, webhook.Deferred))
	m.replies = m.counter("lucius_bus_replies_total", "Deliveries from reply topics, by type and outcome.", "type", "outcome")
	replyTypes := names(servicebus.ReplyAck, servicebus.ReplyResult, servicebus.ReplyHeartbeat)
	create(m.replies, append(replyTypes, string(servicebus.ReplyUnknown)), names(servicebus.ReplyApplied,
		servicebus.ReplyDuplicate, servicebus.ReplyRefused, servicebus.ReplyDeadLettered, servicebus.ReplyAbandoned,
		servicebus.ReplyLockLost, servicebus.ReplyUnsettled))
	m.replySeconds = m.histogram("lucius_bus_reply_duration_seconds",
		"Time from the receipt of a reply until it was applied and settled, by type.", latencies, "type")
	create(m.replySeconds, append(replyTypes, string(servicebus.ReplyUnknown)))
	m.rejected = m.counter("lucius_callbacks_rejected_total", "Callbacks that were refused, by type and cause.", "type", "cause")
	create(m.rejected, replyTypes, names(problem.JobNotFound, problem.StepNotFound, problem.StaleAttempt,
		problem.ContradictoryResult, problem.IllegalTransition))
	m.unrecorded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "lucius_callbacks_unrecorded_total", Help: "Refused callbacks that could not be recorded.",
	})
	m.loopFailures = m.counter("lucius_loop_failures_total", "Failed passes of the background loops.", "loop")
	m.published = m.histogram("lucius_publish_duration_seconds",
		"Time until the bus answered to a published directive, by answer; with the pull queue nothing is sent.",
		latencies, "answer")
	create(m.published, names(outbox.Marked, outbox.Rejected, outbox.Uncertain, outbox.Outage))
	m.storeRequests = m.counter("lucius_store_requests_total", "Requests to the store, by operation and outcome.", "operation", "outcome")
	m.storeSeconds = m.histogram("lucius_store_request_seconds", "Time from a request to the store to its answer.", latencies, "operation")
	m.sweepFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "lucius_sweeper_failures_total", Help: "Due schedule entries that could not be handled and stay.",
	})
	m.sweepLate = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lucius_sweeper_late_seconds", Help: "Delay of the oldest entry of the sweeper's last pass.",
	})
	m.loopPasses = prometheus.NewSummaryVec(prometheus.SummaryOpts{
		Name: "lucius_loop_pass_seconds", Help: "Duration of the passes of the background loops.",
	}, []string{"loop"})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lucius_build_info", Help: "1, with the versions of the program and of Go as labels.",
		ConstLabels: prometheus.Labels{"version": moduleVersion(), "go": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(m.unrecorded, m.sweepFailures, m.sweepLate, m.loopPasses, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// latencies are the buckets for answers of a store or bus, local or remote.
var latencies = []float64{.0001, .00025, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// counter registers a counter with labels.
func (m *metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(counter)
	return counter
}

// histogram registers a histogram with labels.
func (m *metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	histogram := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(histogram)
	return histogram
}

// gauge registers a gauge that is read at each scrape.
func (m *metrics) gauge(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
}

// count registers a counter that is read at each scrape.
func (m *metrics) count(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read))
}

// create creates the series of each combination of the labels' values.
func create[M any](vec interface{ WithLabelValues(values ...string) M }, labels ...[]string) {
	combinations := [][]string{nil}
	for _, values := range labels {
		var longer [][]string
		for _, before := range combinations {
			for _, value := range values {
				longer = append(longer, append(slices.Clone(before), value))
			}
		}
		combinations = longer
	}
	for _, values := range combinations {
		vec.WithLabelValues(values...)
	}
}

// names returns the values as strings.
func names[S ~string](values ...S) []string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = string(value)
	}
	return texts
}

// observeLoop returns the observer of a loop's passes.
func (m *metrics) observeLoop(loop string) func(took time.Duration, err error) {
	passes, failures := m.loopPasses.WithLabelValues(loop), m.loopFailures.WithLabelValues(loop)
	return func(took time.Duration, err error) {
		passes.Observe(took.Seconds())
		if err != nil {
			failures.Inc()
		}
	}
}

// observeSweep counts one pass of the sweeper.
func (m *metrics) observeSweep(pass upkeep.SweeperPass) {
	for standing, n := range pass.Standings {
		m.fired.WithLabelValues(standing.String()).Add(float64(n))
	}
	m.sweepFailures.Add(float64(pass.Failed))
	m.sweepLate.Set(pass.Late.Seconds())
}

// observeAccount counts one request to the storage account.
func (m *metrics) observeAccount(sample aztablestore.Sample) {
	m.storeRequests.WithLabelValues(sample.Operation, string(sample.Outcome)).Inc()
	if sample.Outcome != aztablestore.Held {
		m.storeSeconds.WithLabelValues(sample.Operation).Observe(sample.Took.Seconds())
	}
}

// observeLocal counts one request to the local store, with the account's outcomes.
func (m *metrics) observeLocal(operation string, took time.Duration, err error) {
	outcome := aztablestore.Refused
	switch {
	case err == nil:
		outcome = aztablestore.Succeeded
	case errors.Is(err, tablestore.ErrUnknown):
		outcome = aztablestore.Unanswered
	case errors.Is(err, tablestore.ErrUnavailable):
		outcome = aztablestore.Unreachable
	}
	m.observeAccount(aztablestore.Sample{Operation: operation, Outcome: outcome, Took: took})
}

// observeReloads returns the observer of attempts to reload files. It creates the series
// of both outcomes, so that the first attempt shows as an increase.
func observeReloads(attempts *prometheus.CounterVec) func(upkeep.ReloadOutcome) {
	for _, outcome := range []upkeep.ReloadOutcome{upkeep.Reloaded, upkeep.Refused} {
		attempts.WithLabelValues(outcome.String())
	}
	return func(outcome upkeep.ReloadOutcome) { attempts.WithLabelValues(outcome.String()).Inc() }
}

// watchRefusals registers the gauge that is 1 while the watcher refuses its files.
func (m *metrics) watchRefusals(name, help string, labels prometheus.Labels, watcher *upkeep.Watcher) {
	options := prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}
	m.registry.MustRegister(prometheus.NewGaugeFunc(options, func() float64 {
		if watcher.Err() != nil {
			return 1
		}
		return 0
	}))
}
