package jobs

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Ledger is what the service needs of the ledger.
type Ledger interface {
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
	Payload(ctx context.Context, jobID string) ([]byte, error)
	History(ctx context.Context, jobID string, after int64, limit int) ([]ledger.HistoryEntry, int64, error)
	Change(ctx context.Context, jobID string, event statemachine.Event, opts ...ledger.Option) (ledger.Result, error)
	Rerun(ctx context.Context, rerun ledger.Rerun) (ledger.Accepted, error)
	Index(ctx context.Context, query ledger.IndexQuery) ([]ledger.IndexEntry, bool, error)
	Tenants(ctx context.Context, after string, limit int) ([]string, error)
}

// Service reads and steers jobs. It is safe for concurrent use.
type Service struct {
	ledger Ledger
	ended  *Ended
	limit  int
}

// New returns a service on the ledger. ended tells of jobs that end in this
// process; limit is the most jobs that a tenant may have in flight, 0 for no
// limit.
func New(l Ledger, ended *Ended, limit int) *Service {
	return &Service{ledger: l, ended: ended, limit: limit}
}

// View is a job with its steps, and each step's part of the payload.
type View struct {
	statemachine.Aggregate
	// Payloads are the steps' payloads by index, verbatim; nil where a step's
	// pointer finds nothing.
	Payloads [][]byte
}

// Get returns the job. The errors are [*problem.Error]s.
func (s *Service) Get(ctx context.Context, jobID string) (*View, error) {
	agg, err := s.ledger.Job(ctx, jobID)
	if err != nil {
		return nil, ledger.Problem(err)
	}
	return s.view(ctx, agg)
}

// view adds the payloads.
func (s *Service) view(ctx context.Context, agg *statemachine.Aggregate) (*View, error) {
	payload, err := s.ledger.Payload(ctx, agg.Job.ID)
	if err != nil {
		return nil, ledger.Problem(err)
	}
	view := &View{Aggregate: *agg, Payloads: make([][]byte, len(agg.Steps))}
	for i := range agg.Steps {
		if view.Payloads[i], err = ledger.StepPayload(payload, &agg.Steps[i]); err != nil {
			return nil, err
		}
	}
	return view, nil
}

// pollInterval is how often a waiting reader looks for an end that another
// process brought about.
const pollInterval = time.Second

// Wait returns the job when it is terminal, or after that time as it is then.
// It ends early when ended is closed, or with the context. The errors are
// [*problem.Error]s.
func (s *Service) Wait(ctx context.Context, jobID string, wait time.Duration, ended <-chan struct{}) (*View, error) {
	timeout, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	signal, stop := s.ended.watch(jobID)
	defer stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		agg, err := s.ledger.Job(ctx, jobID)
		if err != nil {
			return nil, ledger.Problem(err)
		}
		if agg.Job.State.Terminal() || timeout.Err() != nil {
			return s.view(ctx, agg)
		}
		select {
		case <-signal:
		case <-ticker.C:
		case <-timeout.Done():
		case <-ended:
			cancel()
		}
	}
}

// History returns one page of the job's history with rev > after, and the rev
// to go on after, 0 at the end. The errors are [*problem.Error]s.
func (s *Service) History(ctx context.Context, jobID string, after int64, limit int,
) ([]ledger.HistoryEntry, int64, error) {
	entries, next, err := s.ledger.History(ctx, jobID, after, limit)
	if err != nil {
		return nil, 0, ledger.Problem(err)
	}
	if len(entries) == 0 {
		if _, err := s.ledger.Job(ctx, jobID); err != nil {
			return nil, 0, ledger.Problem(err)
		}
	}
	return entries, next, nil
}

// Control is a request to steer a job.
type Control struct {
	JobID     string
	Reason    string
	Actor     string
	RequestID string
}

// Cancel asks to end the job without a result. It reports whether that changed
// anything; the errors are [*problem.Error]s, illegal_transition for a job that
// ended otherwise.
func (s *Service) Cancel(ctx context.Context, c Control) (*View, bool, error) {
	return s.steer(ctx, c, statemachine.Cancel{Reason: c.Reason})
}

// Pause asks to start nothing new. See [Service.Cancel] for what it returns.
func (s *Service) Pause(ctx context.Context, c Control) (*View, bool, error) {
	return s.steer(ctx, c, statemachine.Pause{Reason: c.Reason})
}

// Resume ends a pause. See [Service.Cancel] for what it returns.
func (s *Service) Resume(ctx context.Context, c Control) (*View, bool, error) {
	return s.steer(ctx, c, statemachine.Resume{Reason: c.Reason})
}

func (s *Service) steer(ctx context.Context, c Control, event statemachine.Event) (*View, bool, error) {
	result, err := s.ledger.Change(ctx, c.JobID, event, ledger.By(c.Actor, c.RequestID))
	if err != nil {
		return nil, false, ledger.Problem(err)
	}
	if err := result.Problem(); err != nil {
		return nil, false, err
	}
	view, err := s.view(ctx, &result.Job)
	return view, result.Outcome == statemachine.Applied, err
}
