package server

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/metrics"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// jobMetrics counts and times jobs and their steps.
type jobMetrics struct {
	transitions, stepFailures, picks      *prometheus.CounterVec
	stepSeconds, queueSeconds, jobSeconds *prometheus.HistogramVec
	beginLate                             prometheus.Observer
	expired                               prometheus.Counter

	kinds        *bounded[ledger.WorkKind]
	requestTypes *bounded[string]
}

// The buckets of the histograms, in seconds.
var (
	stepBuckets = []float64{.01, .05, .1, .5, 1, 5, 15, 60, 300, 900, 3600}
	jobBuckets  = []float64{.1, .5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}
)

func newJobMetrics(m metrics.Registry) jobMetrics {
	j := jobMetrics{
		transitions: m.Counter("lucius_transitions_total",
			"Committed changes of jobs, steps and outbox rows, by event type.", "event"),
		stepFailures: m.Counter("lucius_step_failures_total",
			"Failed attempts of steps, by service, cause and whether the step is retried.", "service", "cause", "retried"),
		picks: m.Counter("lucius_picks_total",
			"Directives of the pull queue that were picked for a claim, by service, step type and class.", "service", "step_type", "class"),
		stepSeconds: m.Histogram("lucius_step_duration_seconds",
			"Time from the start of an attempt to its RESULT, by the state to which that moved the step.",
			stepBuckets, "service", "step_type", "outcome"),
		queueSeconds: m.Histogram("lucius_queue_wait_seconds",
			"Time from the publish of a directive to its claim, or to its ACK.", stepBuckets, "service", "step_type"),
		jobSeconds: m.Histogram("lucius_job_duration_seconds",
			"Time from the acceptance of a job, or from its not_before, to its end, by its state.", jobBuckets, "request_type", "outcome"),
		beginLate: m.Histogram("lucius_begin_late_seconds",
			"Time from the not_before of a job that waited for it to its begin.", jobBuckets).WithLabelValues(),
		expired: m.Counter("lucius_expired_total",
			"Jobs that ended because no worker had started them by their not_after.").WithLabelValues(),
		kinds:        &bounded[ledger.WorkKind]{other: search.Other},
		requestTypes: &bounded[string]{other: search.Other.Service},
	}
	metrics.Create(j.transitions, statemachine.EventTypes())
	return j
}

// maxValues bounds the kinds of work, and the request types, that have series of their own:
// protocol files could name any number.
const maxValues = 200

// bounded bounds the values of a label.
type bounded[K comparable] struct {
	mu    sync.Mutex // Guards known: no value beyond the bound gets in.
	known map[K]bool
	other K
}

// label returns the value, or other if there are too many.
func (b *bounded[K]) label(value K) K {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[value] {
		return value
	}
	if len(b.known) >= maxValues {
		return b.other
	}
	if b.known == nil {
		b.known = map[K]bool{}
	}
	b.known[value] = true
	return value
}

// outcomes returns states as values of the label outcome.
func outcomes[S ~string](states ...S) []string {
	texts := metrics.Names(states...)
	for i := range texts {
		texts[i] = strings.ToLower(texts[i])
	}
	return texts
}

// classes are the values of the label class.
var classes = []string{statemachine.ClassNormal.String(), statemachine.ClassBulk.String()}

// kindsOf returns the kinds of work of the protocols.
func kindsOf(protocols *commands.Protocols) (kinds []ledger.WorkKind) {
	for _, p := range protocols.Protocols() {
		for i := range p.Steps {
			kinds = append(kinds, ledger.WorkKind{Service: p.Steps[i].Service, StepType: p.Steps[i].Type})
		}
	}
	return kinds
}

// createSeries creates the series for the protocols' kinds of work and request types.
func (j *jobMetrics) createSeries(protocols *commands.Protocols) {
	for _, kind := range kindsOf(protocols) {
		j.createKind(kind)
	}
	for _, p := range protocols.Protocols() {
		for _, requestType := range p.RequestTypes {
			j.createRequestType(requestType)
		}
	}
}

func (j *jobMetrics) createKind(of ledger.WorkKind) {
	of = j.kinds.label(of)
	metrics.Create(j.stepSeconds, []string{of.Service}, []string{of.StepType},
		outcomes(statemachine.StepSucceeded, statemachine.StepFailedRetry, statemachine.StepFailedFinal))
	metrics.Create(j.queueSeconds, []string{of.Service}, []string{of.StepType})
	metrics.Create(j.picks, []string{of.Service}, []string{of.StepType}, classes)
	metrics.Create(j.stepFailures, []string{of.Service}, causes, []string{"yes", "no"})
}

func (j *jobMetrics) createRequestType(requestType string) {
	metrics.Create(j.jobSeconds, []string{j.requestTypes.label(requestType)},
		outcomes(statemachine.JobSucceeded, statemachine.JobFailedFinal, statemachine.JobCancelled))
}

// picked counts a directive that was picked for a claim.
func (j *jobMetrics) picked(of ledger.WorkClass) {
	kind := j.kinds.label(of.WorkKind)
	j.picks.WithLabelValues(kind.Service, kind.StepType, of.Class.String()).Inc()
}

// waited records how long an attempt waited for a worker.
func (j *jobMetrics) waited(of ledger.WorkKind, waited time.Duration) {
	of = j.kinds.label(of)
	j.queueSeconds.WithLabelValues(of.Service, of.StepType).Observe(waited.Seconds())
}

// took records how long an attempt ran.
func (j *jobMetrics) took(of ledger.WorkKind, to statemachine.StepState, took time.Duration) {
	of = j.kinds.label(of)
	j.stepSeconds.WithLabelValues(of.Service, of.StepType, strings.ToLower(string(to))).Observe(took.Seconds())
}

// observeTransitions counts the transitions of a committed change.
//
// Source: Option B spec, 20.
func (j *jobMetrics) observeTransitions(before, after *statemachine.Aggregate, history []statemachine.Transition) {
	if job := &after.Job; before.Job.Parked && job.State == statemachine.JobDispatching && !job.NotBefore.IsZero() {
		j.beginLate.Observe(max(0, job.UpdatedAt.Sub(job.NotBefore).Seconds()))
	}
	for i := range history {
		t := &history[i]
		j.transitions.WithLabelValues(t.Type).Inc()
		switch to := statemachine.JobState(t.To); {
		case t.Object == statemachine.ObjectStep && t.From != t.To:
			j.observeFailure(after, t)
		case t.Object == statemachine.ObjectJob && t.From != t.To && to.Terminal():
			job := &after.Job
			if job.ErrorCode == statemachine.ErrorExpired {
				j.expired.Inc()
			}
			j.jobSeconds.WithLabelValues(j.requestTypes.label(job.RequestType), strings.ToLower(string(to))).
				Observe(max(0, job.UpdatedAt.Sub(later(job.CreatedAt, job.NotBefore)).Seconds()))
		}
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// observeFailure counts the transition of a step if its attempt failed. The transition of a
// withdrawn attempt has no error code.
func (j *jobMetrics) observeFailure(after *statemachine.Aggregate, t *statemachine.Transition) {
	retried := t.To == string(statemachine.StepFailedRetry)
	if t.Detail == "" || !retried && t.To != string(statemachine.StepFailedFinal) {
		return
	}
	for i := range after.Steps {
		if step := &after.Steps[i]; step.ID == t.ID {
			of := j.kinds.label(ledger.WorkKind{Service: step.Service, StepType: step.Type})
			label := map[bool]string{true: "yes", false: "no"}[retried]
			j.stepFailures.WithLabelValues(of.Service, causeOf(step.LastErrorCode), label).Inc()
		}
	}
}

// causes are the values of the label cause. All error codes of workers, who may choose any,
// share the last one.
var causes = []string{
	statemachine.ErrorAckTimeout, statemachine.ErrorLeaseExpired, statemachine.ErrorStepTimeout,
	statemachine.ErrorPublishRejected, statemachine.ErrorDispatchExhausted, statemachine.ErrorCancelled, statemachine.ErrorExpired,
	causeReported,
}

const causeReported = "reported"

// causeOf returns the error code if Lucius itself sets it, otherwise the value for workers'
// codes.
func causeOf(code string) string {
	if slices.Contains(causes, code) {
		return code
	}
	return causeReported
}

// newCountsCollector returns a collector of the counts, which includes zeros for
// the kinds of work of the protocols.
func newCountsCollector(counts *search.Counts, protocols *commands.ProtocolHolder) *countsCollector {
	return &countsCollector{
		counts: counts, protocols: protocols,
		jobs:   prometheus.NewDesc("lucius_jobs", "Live jobs, by state.", []string{"state"}, nil),
		parked: prometheus.NewDesc("lucius_parked_jobs", "Live jobs that wait for their not_before.", nil, nil),
		inLine: prometheus.NewDesc("lucius_line_waiting_jobs", "Live jobs that wait for their turn in their line.", nil, nil),
		items: prometheus.NewDesc("lucius_work_items", "Active steps of live jobs, by state.",
			[]string{"service", "step_type", "state"}, nil),
		oldest: prometheus.NewDesc("lucius_work_oldest_seconds",
			"Time that the oldest directive of a service has waited for a worker, or 0.",
			[]string{"service", "step_type"}, nil),
	}
}

// countsCollector collects the counts, which bound the labels to 100 kinds of work, and one
// for all others.
type countsCollector struct {
	counts                              *search.Counts
	protocols                           *commands.ProtocolHolder
	jobs, parked, inLine, items, oldest *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *countsCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.jobs
	to <- c.parked
	to <- c.inLine
	to <- c.items
	to <- c.oldest
}

// Collect implements [prometheus.Collector].
func (c *countsCollector) Collect(to chan<- prometheus.Metric) {
	report := c.counts.Report(kindsOf(c.protocols.Load())...)
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for state, n := range report.Jobs {
		gauge(c.jobs, float64(n), strings.ToLower(string(state)))
	}
	gauge(c.parked, float64(report.Parked))
	gauge(c.inLine, float64(report.InLine))
	for i := range report.Services {
		s := &report.Services[i]
		for state, n := range map[string]int{
			"dispatching": s.Dispatching, "queued": s.Queued, "claimed": s.Claimed, "running": s.Running, "backoff": s.Backoff,
			"held": s.Held,
		} {
			gauge(c.items, float64(n), s.Service, s.StepType, state)
		}
		gauge(c.oldest, secondsSince(s.Oldest), s.Service, s.StepType)
	}
}
