package search_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// process is a process with counts, on a store that others may share.
type process struct {
	*search.Counts
	t      testing.TB
	name   string
	store  tablestore.Store
	ledger *ledgertest.Ledger
	queue  *workqueue.Queue
	serial int
	held   bool // new directives wait, as under a pause
	paused []statemachine.Scope
	// late, unless nil, collects the calls of Observe instead of making them.
	late *[]func()
	// timed, unless nil, collects the calls of Waited and Took.
	timed *[]string
}

// start starts a process.
func start(t testing.TB, store tablestore.Store, name string) *process {
	t.Helper()
	p := &process{t: t, name: name, store: store}
	mirror := workqueue.NewMirror(0)
	p.ledger = ledgertest.Open(t, ledger.Config{
		Store: store, Shards: 2, Ready: mirror.Ready, Taker: mirror.Taker, Held: func(statemachine.Target) bool { return p.held },
		Unsure: func() { p.Unsure() },
		Observe: func(_ context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition) {
			if p.late == nil {
				p.Observe(before, after, history)
				return
			}
			was, is := *before, *after
			*p.late = append(*p.late, func() { p.Observe(&was, &is, history) })
		},
	})
	p.queue = workqueue.New(workqueue.Config{Ledger: p.ledger.Ledger, Store: store, Mirror: mirror})
	p.Counts = search.NewCounts(search.CountsConfig{
		Store: store, Table: p.ledger.Tables().Queue, Replica: name, Exclusive: p.ledger.Exclusive(), Queue: p.queue,
		Paused: func() []statemachine.Scope { return p.paused },
		Waited: func(of ledger.WorkKind, waited time.Duration) {
			if p.timed != nil {
				*p.timed = append(*p.timed, fmt.Sprint(of.Service, " waited ", waited))
			}
		},
		Took: func(of ledger.WorkKind, to statemachine.StepState, took time.Duration) {
			if p.timed != nil {
				*p.timed = append(*p.timed, fmt.Sprint(of.Service, " ", to, " after ", took))
			}
		},
	})
	musttest.NoError(t, p.Open(t.Context()))
	return p
}

// alone starts a process on an empty exclusive store. Its counts are exact.
func alone(t testing.TB) *process {
	t.Helper()
	p := start(t, ledgertest.Atomic(), "")
	p.walk(nil)
	p.walk(nil) // After this walk there is no recount to feed.
	return p
}

// submit accepts a job with a step of each of the services.
func (p *process) submit(services ...string) string {
	p.serial++
	steps := make([]statemachine.Step, len(services))
	for i, service := range services {
		steps[i] = ledgertest.Step(fmt.Sprint("step-", i), "T", service)
		steps[i].Index, steps[i].Policy.Lease = i, time.Hour
	}
	cmd := ledgertest.Command("tenant", fmt.Sprint(p.name, p.serial), steps...)
	cmd.Job.ProtocolID = protocols[p.serial%len(protocols)]
	return p.ledger.Submit(cmd)
}

// claim claims at most most items of the service.
func (p *process) claim(service string, most int, start bool) []statemachine.Item {
	p.t.Helper()
	p.serial++
	views, err := p.queue.Claim(p.t.Context(), workqueue.ClaimRequest{
		Owner: "worker", RequestID: fmt.Sprint(p.name, p.serial), Max: most, Services: []string{service}, Start: start,
	})
	musttest.NoError(p.t, err)
	items := make([]statemachine.Item, len(views))
	for i := range views {
		items[i] = views[i].Item
	}
	return items
}

func (p *process) by(item statemachine.Item) statemachine.ItemRequest {
	p.serial++
	return statemachine.ItemRequest{Actor: "worker", ExpectedRev: item.Rev, ID: fmt.Sprint(p.name, p.serial)}
}

func (p *process) complete(item statemachine.Item) {
	p.t.Helper()
	_, err := p.queue.Complete(p.t.Context(), item.WorkID, p.by(item), statemachine.Product{})
	musttest.NoError(p.t, err)
}

func (p *process) fail(item statemachine.Item, retryable bool) {
	p.t.Helper()
	p.failWith(item, retryable, "bad")
}

func (p *process) failWith(item statemachine.Item, retryable bool, code string) {
	p.t.Helper()
	_, err := p.queue.Fail(p.t.Context(), item.WorkID, p.by(item), workqueue.Failure{Retryable: retryable, Code: code})
	musttest.NoError(p.t, err)
}

// throttled ends an item whose service takes no work for a minute.
func (p *process) throttled(item statemachine.Item) {
	p.t.Helper()
	_, err := p.queue.Fail(p.t.Context(), item.WorkID, p.by(item), workqueue.Failure{
		Retryable: true, Code: "throttled", RetryAfter: time.Minute, Throttled: statemachine.ThrottleService,
	})
	musttest.NoError(p.t, err)
}

// live returns the live jobs.
func (p *process) live() []*statemachine.Aggregate {
	var all []*statemachine.Aggregate
	for _, id := range p.ledger.LiveJobs() {
		if agg := p.ledger.Read(id); !agg.Job.State.Terminal() {
			all = append(all, agg)
		}
	}
	return all
}

// walk walks the live jobs, as the reconciler does, and calls between after each.
func (p *process) walk(between func()) {
	p.t.Helper()
	p.Begin()
	for _, job := range p.live() {
		p.Walked(job)
		if between != nil {
			between()
		}
	}
	p.End()
}

// protocols are the protocols of the jobs, in turn.
var protocols = []string{"ingest", "review"}

// stands holds gauges, as a report or as the rows have them.
type stands struct {
	Jobs map[statemachine.JobState]int
	// Steps by service, and by protocol and service.
	Dispatching, Queued, Claimed, Running, Backoff map[string]int
	// Unix times, or 0. They are set only for an exclusive store.
	OldestJob, OldestRunning, NextRetry int64
}

func newStands() *stands {
	return &stands{
		Jobs: map[statemachine.JobState]int{}, Dispatching: map[string]int{}, Queued: map[string]int{},
		Claimed: map[string]int{}, Running: map[string]int{}, Backoff: map[string]int{},
	}
}

// truth returns the gauges by the rows of the live jobs.
func (p *process) truth() *stands {
	p.t.Helper()
	out := newStands()
	for _, job := range p.live() {
		out.Jobs[job.Job.State]++
		i, _ := job.Active()
		step := &job.Steps[i]
		count := func(counts map[string]int) {
			counts[step.Service]++
			counts[job.Job.ProtocolID+" "+step.Service]++
		}
		out.OldestJob = earlier(out.OldestJob, job.Job.CreatedAt)
		_, queued := job.Queued()
		stopping := job.Job.State == statemachine.JobPausing || job.Job.State == statemachine.JobCancelling
		switch {
		case stopping && step.State == statemachine.StepAwaitingAck:
			count(out.Running)
		case queued:
			count(out.Queued)
		case step.State == statemachine.StepDispatching:
			count(out.Dispatching)
		case step.State == statemachine.StepAwaitingAck:
			count(out.Claimed)
		case step.State == statemachine.StepInProgress:
			count(out.Running)
			out.OldestRunning = earlier(out.OldestRunning, step.StartedAt)
		case step.State == statemachine.StepFailedRetry && job.Job.State != statemachine.JobPaused:
			count(out.Backoff)
			out.NextRetry = earlier(out.NextRetry, step.NextAttemptAt)
		}
	}
	if !p.ledger.Exclusive() {
		out.OldestJob, out.OldestRunning, out.NextRetry = 0, 0, 0
	}
	return out
}

// earlier returns the earlier of two times, of which the first is 0 for none.
func earlier(unix int64, at time.Time) int64 {
	if unix == 0 {
		return at.Unix()
	}
	return min(unix, at.Unix())
}

// reported returns the gauges by the report, without zeros.
func (p *process) reported() *stands {
	out := newStands()
	report := p.Report()
	for state, n := range report.Jobs {
		if n != 0 {
			out.Jobs[state] = n
		}
	}
	if p.ledger.Exclusive() {
		for into, at := range map[*int64]time.Time{
			&out.OldestJob: report.OldestJob, &out.OldestRunning: report.OldestRunning, &out.NextRetry: report.NextRetry,
		} {
			if !at.IsZero() {
				*into = at.Unix()
			}
		}
	}
	for _, protocol := range append([]string{""}, protocols...) {
		services := p.ReportOf(protocol).Services
		for i := range services {
			of := &services[i]
			for n, counts := range map[*int]map[string]int{
				&of.Dispatching: out.Dispatching, &of.Queued: out.Queued, &of.Claimed: out.Claimed,
				&of.Running: out.Running, &of.Backoff: out.Backoff,
			} {
				if *n != 0 {
					counts[strings.TrimSpace(protocol+" "+of.Service)] = *n
				}
			}
		}
	}
	return out
}

// service returns the report's counts of the service.
func (p *process) service(name string) search.ServiceCounts {
	for _, service := range p.Report().Services {
		if service.Service == name {
			return service
		}
	}
	return search.ServiceCounts{}
}
