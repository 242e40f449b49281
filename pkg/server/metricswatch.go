package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/schedules"
)

// watch registers the metrics that are read from the server's parts.
func (m *meters) watch(s *Server) {
	m.watchRelay(s.handoff, s.relay, s.bus.circuits)
	m.watchUpkeep(s)
	if s.bus.DeadLetters != nil {
		m.watchDeadLetters(s.bus.DeadLetters)
	}
	if s.submitted != nil { // A process that does not read the inbox knows nothing of it.
		m.watchInbox(s.submitted)
	}
	if s.bus.Replies != nil {
		m.Gauge("lucius_bus_reply_topics_down", "Reply topics that cannot be read.",
			func() float64 { return float64(len(s.bus.down())) })
	}
	protocols := s.cfg.Protocols
	m.Gauge("lucius_protocols_loaded_timestamp_seconds", "When the protocols in use were loaded, in Unix time.",
		func() float64 { return float64(protocols.Load().LoadedAt.UnixMilli()) / 1000 })
	m.MustRegister(newCountsCollector(s.uses.Counts, protocols))
	m.createSeries(protocols.Load())
}

// watchRelay registers the gauges of the relay.
func (m *meters) watchRelay(handoff *outbox.Handoff, relay *outbox.Relay, circuits *breaker.Set) {
	m.Gauge("lucius_relay_handoff_waiting", "Directives that wait in memory for the relay after their commit.",
		func() float64 { return float64(handoff.Waiting()) })
	m.Count("lucius_relay_handoff_dropped_total", "Directives that did not fit into memory, and were left to the dispatch schedule.",
		func() float64 { return float64(handoff.Dropped()) })
	m.Gauge("lucius_relay_window_in_flight", "Outbox rows that are being published.",
		func() float64 { return float64(relay.Window().Counters().InFlight) })
	m.Gauge("lucius_relay_window_dispatched", "Outbox rows that the relay has taken but not begun to publish.",
		func() float64 { return float64(relay.Window().Counters().Dispatched) })
	m.Gauge("lucius_relay_window_terminal", "Outbox rows whose outcome is not committed yet.",
		func() float64 { return float64(relay.Window().Counters().Terminal) })
	m.Count("lucius_relay_window_committed_total", "Outbox rows whose outcome was committed.",
		func() float64 { return float64(relay.Window().Counters().Committed) })
	m.Gauge("lucius_circuits_open", "Circuits that are not closed.",
		func() float64 { return float64(len(circuits.Open(time.Now()))) })
}

// watchDeadLetters registers the gauges of the reply topics' dead letters.
func (m *meters) watchDeadLetters(letters DeadLetters) {
	m.Gauge("lucius_bus_dead_letters", "Replies in the dead letters of the reply topics, at most 500 of each.",
		func() float64 { return float64(letters.Counted().Count) })
	m.Gauge("lucius_bus_dead_letters_oldest_seconds", "Time since the oldest of these replies was sent, or 0.", func() float64 {
		return secondsSince(letters.Counted().Oldest)
	})
}

// watchInbox registers the gauges of the commands that applications submit in transactions.
func (m *meters) watchInbox(submitted *inbox.Reader) {
	m.Gauge("lucius_inbox_waiting", "Commands of applications' transactions that wait to be accepted, at most 10,000.",
		func() float64 { return float64(submitted.Survey().Waiting) })
	m.Gauge("lucius_inbox_refused", "Commands of applications' transactions that were refused, at most 10,000.",
		func() float64 { return float64(submitted.Survey().Refused) })
	m.Gauge("lucius_inbox_oldest_seconds", "Time since the oldest waiting command of these was submitted, or 0.", func() float64 {
		return secondsSince(submitted.Survey().OldestWaiting)
	})
}

// watchUpkeep registers the metrics of the retention, the reconciler and the pauses.
func (m *meters) watchUpkeep(s *Server) {
	m.Gauge("lucius_retention_due", "Ended jobs that are due for purging, at most 10,000.",
		func() float64 { return float64(s.retention.Overdue().Jobs) })
	m.Gauge("lucius_retention_oldest_seconds", "Time since the first of these jobs was due, or 0.", func() float64 {
		return secondsSince(s.retention.Overdue().Oldest)
	})
	m.Gauge("lucius_pauses_active", "Scopes whose dispatch is paused or ramps up.",
		func() float64 { return float64(len(s.uses.Gate.Active())) })
	m.Gauge("lucius_jobs_stuck", "Live jobs that cannot make progress and could not be repaired.",
		func() float64 { return float64(len(s.uses.Reconciler.Report().Stuck)) })
	lines := func() background.LineCounts { return s.uses.Reconciler.Report().Lines }
	const name, help = "lucius_lines", "Lines in which jobs wait or that a failed job blocks."
	m.GaugeOf(prometheus.Labels{"state": "blocked"}, name, help, func() float64 { return float64(lines().Blocked) })
	m.GaugeOf(prometheus.Labels{"state": "moving"}, name, help, func() float64 { return float64(lines().Moving) })
	m.Gauge("lucius_line_blocked_seconds", "Time for which the line has been blocked that is blocked for the longest time, or 0.",
		func() float64 { return secondsSince(lines().BlockedSince) })
	for _, state := range []schedules.State{schedules.Active, schedules.Paused, schedules.Completed} {
		m.GaugeOf(prometheus.Labels{"state": string(state)}, "lucius_schedules", "Schedules, by state.",
			func() float64 { return float64(s.uses.Reconciler.Report().Schedules[string(state)]) })
	}
	m.Count("lucius_reconciler_repaired_total", "Defects that the reconciler and timers have repaired.",
		func() float64 {
			return float64(s.uses.Reconciler.Report().Repaired) + float64(s.uses.Ledger.Restored())
		})
	m.Gauge("lucius_outbox_oldest_pending_seconds", "Time that the oldest due outbox row has waited to be published.",
		func() float64 { return s.uses.Reconciler.Report().OldestPending.Seconds() })
}

// secondsSince returns the seconds since that time, and 0 for the zero time.
func secondsSince(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return time.Since(at).Seconds()
}
