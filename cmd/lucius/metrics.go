package main

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/census"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// metrics are the counters that the parts of a server increment. Gauges are registered
// with the parts that they read.
type metrics struct {
	registry *prometheus.Registry

	transitions, stepFailures   *prometheus.CounterVec
	relayed, fired, purged      *prometheus.CounterVec
	bulkJobs, webhooks, replies *prometheus.CounterVec
	rejected                    *prometheus.CounterVec
	unrecorded                  prometheus.Counter
	sweepFailures               prometheus.Counter
	sweepLate                   prometheus.Gauge
	loopPasses                  *prometheus.SummaryVec
	loopFailures                *prometheus.CounterVec
	storeRequests               *prometheus.CounterVec
	storeSeconds                *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.transitions = m.counter("lucius_transitions_total",
		"Committed changes of jobs, steps and outbox rows, by event type.", "event")
	m.stepFailures = m.counter("lucius_step_failures_total",
		"Failed attempts of steps, by cause and by whether the step is retried.", "cause", "retried")
	m.relayed = m.counter("lucius_relay_rows_total", "Outbox rows that the relay handled, by outcome.", "outcome")
	m.fired = m.counter("lucius_sweeper_entries_total", "Due schedule entries, by their standing to their job.", "standing")
	m.purged = m.counter("lucius_retention_entries_total", "Ended jobs that were due for purging, by outcome.", "outcome")
	m.bulkJobs = m.counter("lucius_bulk_jobs_total", "Jobs of operations on many jobs, by kind and outcome.", "kind", "outcome")
	m.webhooks = m.counter("lucius_webhook_attempts_total", "Attempts to send a webhook, by outcome.", "outcome")
	m.replies = m.counter("lucius_bus_replies_total", "Deliveries from reply topics, by type and outcome.", "type", "outcome")
	m.rejected = m.counter("lucius_callbacks_rejected_total", "Callbacks that were refused, by type and cause.", "type", "cause")
	m.unrecorded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "lucius_callbacks_unrecorded_total", Help: "Refused callbacks that could not be recorded.",
	})
	m.loopFailures = m.counter("lucius_loop_failures_total", "Failed passes of the background loops.", "loop")
	m.storeRequests = m.counter("lucius_store_requests_total",
		"Requests to the storage account, by operation and outcome.", "operation", "outcome")
	m.storeSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "lucius_store_request_seconds", Help: "Time from a request to the storage account to its answer.",
		Buckets: []float64{.0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	}, []string{"operation"})
	m.sweepFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "lucius_sweeper_failures_total", Help: "Due schedule entries that could not be handled and stay.",
	})
	m.sweepLate = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lucius_sweeper_late_seconds", Help: "Delay of the oldest entry of the sweeper's last pass.",
	})
	m.loopPasses = prometheus.NewSummaryVec(prometheus.SummaryOpts{
		Name: "lucius_loop_pass_seconds", Help: "Duration of the passes of the background loops.",
	}, []string{"loop"})
	m.registry.MustRegister(m.unrecorded, m.sweepFailures, m.sweepLate, m.loopPasses, m.storeSeconds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// counter registers a counter with labels.
func (m *metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(counter)
	return counter
}

// gauge registers a gauge that is read at each scrape.
func (m *metrics) gauge(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
}

// count registers a counter that is read at each scrape.
func (m *metrics) count(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read))
}

// observeTransitions counts the transitions of a committed change.
//
// Source: Option B spec, 20.
func (m *metrics) observeTransitions(after *statemachine.Aggregate, history []statemachine.Transition) {
	for i := range history {
		t := &history[i]
		m.transitions.WithLabelValues(t.Type).Inc()
		retried := t.To == string(statemachine.StepFailedRetry)
		failed := retried || t.To == string(statemachine.StepFailedFinal)
		if t.Object != statemachine.ObjectStep || t.From == t.To || !failed {
			continue
		}
		for j := range after.Steps {
			if after.Steps[j].ID == t.ID {
				label := map[bool]string{true: "yes", false: "no"}[retried]
				m.stepFailures.WithLabelValues(causeOf(after.Steps[j].LastErrorCode), label).Inc()
			}
		}
	}
}

// causeOf returns the error code if it is one of Lucius' own. Workers choose theirs
// freely, so as a label they would be unbounded.
func causeOf(code string) string {
	switch code {
	case statemachine.ErrorAckTimeout, statemachine.ErrorLeaseExpired, statemachine.ErrorStepTimeout,
		statemachine.ErrorPublishRejected, statemachine.ErrorDispatchExhausted, statemachine.ErrorCancelled:
		return code
	}
	return "reported"
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

// observeStore counts one request to the storage account.
func (m *metrics) observeStore(sample aztablestore.Sample) {
	m.storeRequests.WithLabelValues(sample.Operation, string(sample.Outcome)).Inc()
	if sample.Outcome != aztablestore.Held {
		m.storeSeconds.WithLabelValues(sample.Operation).Observe(sample.Took.Seconds())
	}
}

// watchStore registers the gauges of a store that is a service of its own.
func (m *metrics) watchStore(store tablestore.Store) {
	if remote, ok := store.(*aztablestore.Store); ok {
		m.gauge("lucius_store_outage_seconds", "Time for which the storage account has been out of service, else 0.",
			func() float64 { return remote.Outage().Seconds() })
		m.gauge("lucius_clock_skew_seconds", "Time by which this host's clock is ahead of the storage account's, negative if behind.",
			func() float64 { return remote.Skew().Seconds() })
	}
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

// watchRelay registers the gauges of the relay.
func (m *metrics) watchRelay(inbox *outbox.Inbox, relay *outbox.Relay, circuits *breaker.Set) {
	m.gauge("lucius_relay_inbox_waiting", "Directives between a commit and the relay.",
		func() float64 { return float64(inbox.Waiting()) })
	m.gauge("lucius_relay_inbox_dropped", "Directives that the inbox left to the dispatch schedule.",
		func() float64 { return float64(inbox.Dropped()) })
	m.gauge("lucius_relay_window_in_flight", "Outbox rows that are being published.",
		func() float64 { return float64(relay.Window().Counters().InFlight) })
	m.gauge("lucius_relay_window_dispatched", "Outbox rows that the relay took and does not publish yet.",
		func() float64 { return float64(relay.Window().Counters().Dispatched) })
	m.gauge("lucius_relay_window_terminal", "Outbox rows whose outcome is not committed yet.",
		func() float64 { return float64(relay.Window().Counters().Terminal) })
	m.gauge("lucius_relay_window_committed", "Outbox rows whose outcome was committed since the start.",
		func() float64 { return float64(relay.Window().Counters().Committed) })
	m.gauge("lucius_circuits_open", "Circuits that are not closed.",
		func() float64 { return float64(len(circuits.Open(time.Now()))) })
}

// watchDisk registers the gauges and counters of the data directory.
func (m *metrics) watchDisk(store *pebblestore.Store) {
	m.count("lucius_store_commits_total", "Commits written to the data directory.", func() float64 {
		commits, _ := store.Counts()
		return float64(commits)
	})
	m.count("lucius_store_reads_total", "Reads of rows and of ranges of rows from the data directory.", func() float64 {
		_, reads := store.Counts()
		return float64(reads)
	})
	m.gauge("lucius_store_bytes", "Size of the data directory.", func() float64 { return float64(store.Info().Bytes) })
	m.gauge("lucius_store_free_bytes", "Free space of the data directory's disk.", func() float64 {
		free, _ := store.Space()
		return float64(free)
	})
	m.gauge("lucius_store_reserve_bytes", "Free space below which the store takes no writes.", func() float64 {
		_, reserve := store.Space()
		return float64(reserve)
	})
}

// watchDeadLetters registers the gauges of the reply topics' dead letters.
func (m *metrics) watchDeadLetters(letters *servicebus.DeadLetters) {
	m.gauge("lucius_bus_dead_letters", "Replies in the dead letters of the reply topics, at most 500 of each.",
		func() float64 { return float64(letters.Survey().Count) })
	m.gauge("lucius_bus_dead_letters_oldest_seconds", "Time since the oldest of these replies was sent, or 0.", func() float64 {
		if oldest := letters.Survey().Oldest; !oldest.IsZero() {
			return time.Since(oldest).Seconds()
		}
		return 0
	})
}

// watchJobs registers the gauges of the jobs in the store.
func (m *metrics) watchJobs(c *core, reconciler *upkeep.Reconciler) {
	m.gauge("lucius_pauses_active", "Scopes whose dispatch is paused or ramps up.",
		func() float64 { return float64(len(c.gate.Active())) })
	m.gauge("lucius_jobs_stuck", "Live jobs without a way forward that could not be repaired.",
		func() float64 { return float64(len(reconciler.Report().Stuck)) })
	m.gauge("lucius_reconciler_repaired", "Defects that the reconciler and timers have repaired since the start.",
		func() float64 { return float64(reconciler.Report().Repaired) + float64(c.ledger.Restored()) })
	m.gauge("lucius_outbox_oldest_pending_seconds", "Time that the oldest due outbox row has waited to be published.",
		func() float64 { return reconciler.Report().OldestPending.Seconds() })
	m.registry.MustRegister(&counted{
		census: c.census,
		jobs:   prometheus.NewDesc("lucius_jobs", "Live jobs, by state.", []string{"state"}, nil),
		items: prometheus.NewDesc("lucius_work_items", "Steps that are dispatched or under way, by what they wait for.",
			[]string{"service", "step_type", "state"}, nil),
		oldest: prometheus.NewDesc("lucius_work_oldest_seconds",
			"Time that the oldest directive of a service has waited for a worker, or 0.",
			[]string{"service", "step_type"}, nil),
	})
}

// counted collects what the census knows. Its labels are bounded as the census is: 100
// kinds of work, and one for all others.
type counted struct {
	census              *census.Census
	jobs, items, oldest *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *counted) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.jobs
	descs <- c.items
	descs <- c.oldest
}

// Collect implements [prometheus.Collector].
func (c *counted) Collect(metrics chan<- prometheus.Metric) {
	report := c.census.Report()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for state, n := range report.Jobs {
		gauge(c.jobs, float64(n), strings.ToLower(string(state)))
	}
	for i := range report.Services {
		s := &report.Services[i]
		for state, n := range map[string]int{
			"dispatching": s.Dispatching, "queued": s.Queued, "claimed": s.Claimed, "running": s.Running, "backoff": s.Backoff,
		} {
			gauge(c.items, float64(n), s.Service, s.StepType, state)
		}
		waits := 0.0
		if !s.Oldest.IsZero() {
			waits = time.Since(s.Oldest).Seconds()
		}
		gauge(c.oldest, waits, s.Service, s.StepType)
	}
}
