package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// metrics are the loops' counters; gauges are read when somebody asks.
type metrics struct {
	relay   *prometheus.CounterVec
	entries *prometheus.CounterVec
	unswept prometheus.Counter
	late    prometheus.Gauge
	purges  *prometheus.CounterVec
	reruns  *prometheus.CounterVec
	hooks   *prometheus.CounterVec
	replies *prometheus.CounterVec
	changes *prometheus.CounterVec
	failed  *prometheus.CounterVec
	passes  *prometheus.SummaryVec
	broken  *prometheus.CounterVec
}

func newMetrics(registry *prometheus.Registry) *metrics {
	m := &metrics{
		relay: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lucius_relay_rows_total", Help: "Outbox rows taken up, by what became of them.",
		}, []string{"outcome"}),
		entries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lucius_sweeper_entries_total", Help: "Due schedule entries, by how they stood to their job.",
		}, []string{"standing"}),
		unswept: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lucius_sweeper_failures_total", Help: "Due schedule entries that could not be handled and stay.",
		}),
		late: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lucius_sweeper_late_seconds", Help: "How far behind the oldest entry of the last pass was.",
		}),
		purges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lucius_retention_entries_total", Help: "Ended jobs whose time had come, by what became of them.",
		}, []string{"outcome"}),
		reruns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lucius_retry_jobs_total", Help: "Jobs of retry operations, by what became of them.",
		}, []string{"outcome"}),
		hooks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lucius_webhook_attempts_total", Help: "Attempts to send a webhook, by what became of them.",
		}, []string{"outcome"}),
		replies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lucius_bus_replies_total", Help: "Deliveries from reply topics, by type and by what became of them.",
		}, []string{"type", "outcome"}),
	}
	m.changes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lucius_transitions_total", Help: "Committed changes of jobs, steps and outbox rows, by event type.",
	}, []string{"event"})
	m.failed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lucius_step_failures_total", Help: "Attempts of steps that failed, by cause and by whether another follows.",
	}, []string{"cause", "retried"})
	m.passes = prometheus.NewSummaryVec(prometheus.SummaryOpts{
		Name: "lucius_loop_pass_seconds", Help: "How long passes of the background loops took.",
	}, []string{"loop"})
	m.broken = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lucius_loop_failures_total", Help: "Passes of the background loops that failed.",
	}, []string{"loop"})
	registry.MustRegister(m.passes, m.broken, m.relay, m.entries, m.unswept, m.late, m.purges, m.reruns, m.hooks, m.replies,
		m.changes, m.failed, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// passed returns what observes the passes of one loop.
func (m *metrics) passed(loop string) func(took time.Duration, err error) {
	passes, failures := m.passes.WithLabelValues(loop), m.broken.WithLabelValues(loop)
	return func(took time.Duration, err error) {
		passes.Observe(took.Seconds())
		if err != nil {
			failures.Inc()
		}
	}
}

// relayed counts one outcome of the relay.
func (m *metrics) relayed(outcome outbox.Outcome) { m.relay.WithLabelValues(string(outcome)).Inc() }

// swept counts one pass of the sweeper.
func (m *metrics) swept(pass upkeep.SweeperPass) {
	for standing, n := range pass.Standings {
		m.entries.WithLabelValues(standing.String()).Add(float64(n))
	}
	m.unswept.Add(float64(pass.Failed))
	m.late.Set(pass.Late.Seconds())
}

// purged counts one outcome of the retention.
func (m *metrics) purged(outcome ledger.Purged) { m.purges.WithLabelValues(outcome.String()).Inc() }

// reran counts one job of a retry operation.
func (m *metrics) reran(outcome upkeep.ItemOutcome) { m.reruns.WithLabelValues(string(outcome)).Inc() }

// announced counts one attempt to send a webhook.
func (m *metrics) announced(result webhook.Result) {
	m.hooks.WithLabelValues(string(result.Outcome)).Inc()
}

// replied counts one delivery of a reply.
func (m *metrics) replied(d servicebus.Delivery) {
	m.replies.WithLabelValues(string(d.Type), string(d.Outcome)).Inc()
}

// watch registers the gauges of the system's parts.
func (m *metrics) watch(registry *prometheus.Registry, s *system) {
	gauge := func(name, help string, read func() float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
	}
	gauge("lucius_relay_inbox_waiting", "Directives between a commit and the relay.",
		func() float64 { return float64(s.inbox.Waiting()) })
	gauge("lucius_relay_inbox_dropped", "Directives that the hot path left to the safety net.",
		func() float64 { return float64(s.inbox.Dropped()) })
	gauge("lucius_relay_window_in_flight", "Outbox rows that are being published.",
		func() float64 { return float64(s.relay.Counters().InFlight) })
	gauge("lucius_relay_window_dispatched", "Outbox rows taken up and not yet being published.",
		func() float64 { return float64(s.relay.Counters().Dispatched) })
	gauge("lucius_relay_window_terminal", "Outbox rows whose outcome is not settled yet.",
		func() float64 { return float64(s.relay.Counters().Terminal) })
	gauge("lucius_relay_window_committed", "Outbox rows settled since the start.",
		func() float64 { return float64(s.relay.Counters().Committed) })
	gauge("lucius_circuits_open", "Circuits that are not closed.",
		func() float64 { return float64(len(s.breakers.Open(time.Now()))) })
	gauge("lucius_pauses_active", "Scopes whose dispatch is paused or ramps up.",
		func() float64 { return float64(len(s.gate.Active())) })
	gauge("lucius_jobs_stuck", "Live jobs without a way forward that could not be repaired.",
		func() float64 { return float64(len(s.reconciler.Report().Stuck)) })
	gauge("lucius_reconciler_repaired", "Defects that the reconciler and timers have repaired since the start.",
		func() float64 { return float64(s.reconciler.Report().Repaired) + float64(s.ledger.Restored()) })
	gauge("lucius_outbox_oldest_pending_seconds", "How long the oldest due row has waited to be published.",
		func() float64 { return s.reconciler.Report().OldestPending.Seconds() })
	gauge("lucius_queue_ready", "Work items that wait for a worker.", func() float64 {
		total := 0
		for _, n := range s.readyItems() {
			total += n
		}
		return float64(total)
	})
}

// readyItems are the items that wait for a worker, by kind: exact if no other process
// shares the store, else those that the reconciler saw in its last round.
func (s *system) readyItems() map[ledger.WorkKind]int {
	if s.ledger.Exclusive() {
		return s.mirror.Counts()
	}
	return s.reconciler.Report().Ready
}
