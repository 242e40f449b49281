// Package callbacks applies the reports of workers: ACK, heartbeat and RESULT.
//
//	POST /v1/callbacks/*  ──┐
//	                        ├──▶ Service.Apply ──▶ one event ──▶ ledger
//	reply topics          ──┘
//
// Both read the same bodies, and api.Callback translates each into its event.
//
// A callback carries its directive's pair of attempt number and lease id. The state
// machine compares it with the step's current pair: a callback that does not match
// changes nothing and is answered as stale; one that was applied before is answered
// as a duplicate. So a worker may send each callback as often as it likes.
//
// Source: Option B spec, section 11; Orchestrator flow canvas, Callbacks.
package callbacks

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Callback is a worker's report on one attempt of a step.
//
// Source: Option B spec, 11.2 and 11.3.
type Callback struct {
	JobID    string
	StepID   string
	TenantID string
	// Event is the report: a [statemachine.Ack], [statemachine.Heartbeat] or
	// [statemachine.Result]. Its pair of attempt number and lease id fences it.
	Event statemachine.Event
	// RequestID is the transport's request id, for the history.
	RequestID string
	// Caller names the sender as far as the transport knows it, for the history and for
	// the record of a callback that is refused.
	Caller string
	// EveryTenant reports whether the caller may answer for all tenants of the service. Optional:
	// without it, a throttled RESULT closes the service only for the job's tenant.
	EveryTenant func(service string) bool
}

// Config configures a [Service].
type Config struct {
	// Ledger keeps the jobs. Required.
	Ledger *ledger.Ledger
	// Closer is told what each throttled RESULT closes, once, after its commit. It must not block.
	// Optional.
	Closer func(ctx context.Context, c statemachine.Closure)
	// Rejected is told of each callback that is refused, by its type and the code of the
	// refusal. It must not block. Optional.
	Rejected func(kind, cause string)
	// Unrecorded is told of each refused callback that is not recorded: there are too many,
	// or the store failed. It must not block. Optional.
	Unrecorded func()
	// Logger logs refused callbacks that are recorded. Optional.
	Logger *slog.Logger
}

// Answer is the answer to a worker.
type Answer struct {
	Outcome         statemachine.Outcome // Applied or Duplicate
	JobState        statemachine.JobState
	StepState       statemachine.StepState
	LeaseExpiresAt  time.Time // of the caller's own attempt; zero if it holds no lease
	CancelRequested bool
	PauseRequested  bool
	// PostErr is the first error of the post-commit work; the change itself holds.
	PostErr error
}

// Service applies callbacks of every transport. It is safe for concurrent use.
type Service struct {
	cfg Config

	mu sync.Mutex // Guards since and recorded. Not held during a write.
	// since is the begin of the window of which recorded counts the records by job.
	//
	// invariant: at most recordedJobs jobs with at most recordsOfJob each
	since    time.Time
	recorded map[string]int
}

// New returns a service.
func New(cfg Config) *Service {
	if cfg.Closer == nil {
		cfg.Closer = func(context.Context, statemachine.Closure) {}
	}
	if cfg.Rejected == nil {
		cfg.Rejected = func(_, _ string) {}
	}
	if cfg.Unrecorded == nil {
		cfg.Unrecorded = func() {}
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Service{cfg: cfg, recorded: map[string]int{}}
}

// Apply applies a callback to its job, and records one that the job refuses. The errors
// are [*apierror.Error]s.
func (s *Service) Apply(ctx context.Context, c Callback) (Answer, error) {
	ctx = ledger.WithCaller(ctx, c.Caller)
	result, err := s.cfg.Ledger.Change(ctx, c.JobID, c.Event, ledger.By(ledger.ActorPlatform, c.RequestID), ledger.InTenant(c.TenantID))
	if err = ledger.Problem(err); err == nil {
		err = result.Problem()
	}
	if err != nil {
		s.reject(ctx, &c, &result.Job.Job, err)
		return Answer{}, err
	}
	if closure, closes := result.Closure(c.Caller, c.EveryTenant); closes {
		s.cfg.Closer(ctx, closure)
	}
	answer := Answer{
		Outcome: result.Outcome, JobState: result.Job.Job.State,
		CancelRequested: result.Job.Job.State == statemachine.JobCancelling,
		PauseRequested:  result.Job.Job.State == statemachine.JobPausing, PostErr: result.PostErr,
	}
	pair, _ := sentBy(c.Event)
	for i := range result.Job.Steps {
		if step := &result.Job.Steps[i]; step.ID == c.StepID {
			answer.StepState = step.State
			if pair == (statemachine.Pair{AttemptNo: step.AttemptNo, LeaseID: step.LeaseID}) {
				answer.LeaseExpiresAt = step.LeaseExpiresAt
			}
		}
	}
	return answer, nil
}

// sentBy returns the pair of attempt number and lease id of a report, and what it says
// about how it was sent.
func sentBy(event statemachine.Event) (statemachine.Pair, statemachine.Report) {
	switch e := event.(type) {
	case statemachine.Ack:
		return e.Pair, e.Report
	case statemachine.Heartbeat:
		return e.Pair, e.Report
	case statemachine.Result:
		return e.Pair, e.Report
	}
	return statemachine.Pair{}, statemachine.Report{}
}
