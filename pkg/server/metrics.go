package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/metrics"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// meters holds the counters and histograms that the parts of a server update. For metrics
// that are read at each scrape, see metricswatch.go. Series with known labels exist from the
// start, so that their first increase is visible.
type meters struct {
	metrics.Registry
	jobMetrics

	relayed, fired, purged *prometheus.CounterVec
	submitted              *prometheus.CounterVec
	bulkJobs, webhooks     *prometheus.CounterVec
	rejected               *prometheus.CounterVec
	looks                  *prometheus.CounterVec
	occurrences            *prometheus.CounterVec
	occurrencesLate        prometheus.Observer
	limits                 map[admission.Figure]*prometheus.CounterVec
	running                *prometheus.GaugeVec
	unrecorded             prometheus.Counter
	sweepFailures          prometheus.Counter
	sweepLate              prometheus.Gauge
	loopPasses             *prometheus.SummaryVec
	loopFailures           *prometheus.CounterVec
	published              *prometheus.HistogramVec
}

func newMeters(registry *prometheus.Registry) *meters {
	m := &meters{Registry: metrics.Registry{Registry: registry}}
	m.jobMetrics = newJobMetrics(m.Registry)
	m.relayed = m.Counter("lucius_relay_rows_total", "Outbox rows that the relay handled, by outcome.", "outcome")
	metrics.Create(m.relayed, metrics.Names(outbox.Marked, outbox.Settled, outbox.Rejected, outbox.Uncertain, outbox.Outage,
		outbox.Overload, outbox.Gated, outbox.Held, outbox.Skipped, outbox.Unmarked))
	m.submitted = m.Counter("lucius_inbox_commands_total",
		"Commands of applications' transactions that were decided, by outcome; one that waits is decided again.", "outcome")
	metrics.Create(m.submitted, metrics.Names(inbox.Accepts, inbox.Refuses, inbox.Waits))
	m.fired = m.Counter("lucius_sweeper_entries_total", "Due schedule entries that the sweeper handled, by outcome.", "outcome")
	for outcome := ledger.Acted; outcome <= ledger.Orphaned; outcome++ {
		metrics.Create(m.fired, []string{outcome.String()})
	}
	m.purged = m.Counter("lucius_retention_entries_total", "Ended jobs that were due for purging, by outcome.", "outcome")
	for outcome := ledger.PurgeDone; outcome <= ledger.PurgeElsewhere; outcome++ {
		metrics.Create(m.purged, []string{outcome.String()})
	}
	m.bulkJobs = m.Counter("lucius_bulk_jobs_total", "Jobs of operations on many jobs, by kind and outcome.", "kind", "outcome")
	metrics.Create(m.bulkJobs, metrics.Names(background.KindRetry, background.KindCancel, background.KindPause, background.KindResume),
		metrics.Names(background.ItemApplied, background.ItemRepeated, background.ItemSkipped, background.ItemFailed))
	m.webhooks = m.Counter("lucius_webhook_attempts_total", "Attempts to send a webhook, by outcome.", "outcome")
	metrics.Create(m.webhooks, metrics.Names(webhook.Delivered, webhook.Gone, webhook.RetryAfter, webhook.Failed, webhook.Refused,
		webhook.Interrupted, webhook.Deferred))
	m.rejected = m.Counter("lucius_callbacks_rejected_total", "Callbacks that were refused, by type and cause.", "type", "cause")
	metrics.Create(m.rejected, []string{"ACK", "RESULT", "HEARTBEAT"}, metrics.Names(apierror.JobNotFound, apierror.StepNotFound,
		apierror.StaleAttempt, apierror.ContradictoryResult, apierror.IllegalTransition))
	m.looks = m.Counter("lucius_line_looks_total", "Looks at lines, by result.", "result")
	metrics.Create(m.looks, metrics.Names(ledger.LookTurn, ledger.LookIdle, ledger.LookFailed))
	m.unrecorded = m.Counter("lucius_callbacks_unrecorded_total", "Refused callbacks that could not be recorded.").WithLabelValues()
	m.occurrences = m.Counter("lucius_schedule_fires_total", "Occurrences of schedules, by what became of them.", "outcome")
	metrics.Create(m.occurrences, metrics.Names(schedules.Fired, schedules.Skipped, schedules.Refused, schedules.Missed))
	m.occurrencesLate = m.Histogram("lucius_schedule_late_seconds",
		"Time from an occurrence of a schedule, its jitter included, until its job was accepted.",
		[]float64{0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600}).WithLabelValues()
	m.limits = map[admission.Figure]*prometheus.CounterVec{
		admission.Granted:   m.Counter("lucius_limit_granted_total", "Tokens that this process leased, by limit.", "limit"),
		admission.Spent:     m.Counter("lucius_limit_spent_total", "Starts under a limit.", "limit"),
		admission.Lapsed:    m.Counter("lucius_limit_lapsed_total", "Leased tokens that were not used in time, by limit.", "limit"),
		admission.Conflicts: m.Counter("lucius_limit_lease_conflicts_total", "Leases that lost a race, by limit.", "limit"),
		admission.Reclaimed: m.Counter("lucius_limit_reclaimed_total",
			"Run slots that this process freed because a crash had left them, by limit.", "limit"),
		admission.Closed: m.Counter("lucius_limit_closed_seconds_total",
			"Seconds for which a service, or a tenant of it, was closed.", "limit"),
	}
	m.running = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "lucius_limit_running", Help: "Attempts that run under a limit of what runs at once, by this process's view.",
	}, []string{"limit"})
	m.loopFailures = m.Counter("lucius_loop_failures_total", "Failed passes of the background loops.", "loop")
	m.published = m.Histogram("lucius_publish_duration_seconds",
		"Time until the bus answered a published directive, by answer. The pull queue publishes nothing.",
		metrics.Latencies, "answer")
	metrics.Create(m.published, metrics.Names(outbox.Marked, outbox.Rejected, outbox.Uncertain, outbox.Outage))
	m.sweepFailures = m.Counter("lucius_sweeper_failures_total",
		"Due schedule entries that could not be handled and stay.").WithLabelValues()
	m.sweepLate = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lucius_sweeper_late_seconds", Help: "Delay of the oldest entry of the sweeper's last pass, or 0.",
	})
	m.loopPasses = prometheus.NewSummaryVec(prometheus.SummaryOpts{
		Name: "lucius_loop_pass_seconds", Help: "Duration of the passes of the background loops.",
	}, []string{"loop"})
	m.MustRegister(m.running, m.sweepLate, m.loopPasses)
	return m
}

// observeLoop returns the observer of a loop's passes.
func (m *meters) observeLoop(loop string) func(took time.Duration, err error) {
	passes, failures := m.loopPasses.WithLabelValues(loop), m.loopFailures.WithLabelValues(loop)
	return func(took time.Duration, err error) {
		passes.Observe(took.Seconds())
		if err != nil {
			failures.Inc()
		}
	}
}

// observeSweep counts one pass of the sweeper.
func (m *meters) observeSweep(pass background.SweeperPass) {
	m.observeDates(pass)
	m.sweepLate.Set(pass.Late.Seconds())
}

// observeDates counts one pass of the sweeper of dates.
func (m *meters) observeDates(pass background.SweeperPass) {
	for outcome, n := range pass.Outcomes {
		m.fired.WithLabelValues(outcome.String()).Add(float64(n))
	}
	m.sweepFailures.Add(float64(pass.Failed))
}

// observeOccurrence counts an occurrence of a schedule, or many missed ones.
func (m *meters) observeOccurrence(fire *schedules.Fire, late time.Duration) {
	m.occurrences.WithLabelValues(string(fire.Outcome)).Add(float64(max(1, fire.Count)))
	if fire.Outcome == schedules.Fired {
		m.occurrencesLate.Observe(late.Seconds())
	}
}

// observeLimit counts a change of a limit's figures. The first one makes all of them exist, so
// that their rates can be computed from the beginning. Those of a deleted limit end: tenants come and go.
func (m *meters) observeLimit(scope admission.Scope, figure admission.Figure, n float64) {
	if figure == admission.Running {
		m.running.WithLabelValues(scope.ID()).Set(n)
		return
	}
	if figure == admission.Deleted {
		m.running.DeleteLabelValues(scope.ID())
		for _, counter := range m.limits {
			counter.DeleteLabelValues(scope.ID())
		}
		return
	}
	for _, counter := range m.limits {
		counter.WithLabelValues(scope.ID())
	}
	m.limits[figure].WithLabelValues(scope.ID()).Add(n)
}
