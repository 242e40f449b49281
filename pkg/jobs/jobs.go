// Package jobs reads, lists and controls jobs for callers: a job with its steps and
// its history, waiting for its end, cancel, pause, resume and rerun.
//
// Everything is read from the job's own rows, so an answer shows the same state that
// the next change is decided on.
//
// Source: Option B spec, 4 and 18.
package jobs

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Service reads and controls jobs. It is safe for concurrent use.
type Service struct {
	ledger *ledger.Ledger
	ended  *Ended
	around Surroundings

	maxLive, maxSearched int
}

// New returns a service on the ledger. ended wakes readers when a job ends in this
// process.
func New(l *ledger.Ledger, ended *Ended, around Surroundings) *Service {
	return &Service{ledger: l, ended: ended, around: around, maxLive: maxLive, maxSearched: maxSearched}
}

// Get returns the job. The errors are [*problem.Error]s.
func (s *Service) Get(ctx context.Context, jobID string) (*statemachine.Aggregate, error) {
	job, err := s.ledger.Job(ctx, jobID)
	return job, ledger.Problem(err)
}

// Payload returns the payload of the job's command, verbatim. [ledger.StepPayload]
// finds a step's part in it. The errors are [*problem.Error]s.
func (s *Service) Payload(ctx context.Context, jobID string) ([]byte, error) {
	payload, err := s.ledger.Payload(ctx, jobID)
	return payload, ledger.Problem(err)
}

// Ended wakes readers that wait for jobs that end in this process. The zero value
// is ready; it is safe for concurrent use.
type Ended struct {
	mu      sync.Mutex
	waiting map[string][]chan struct{}
}

// Tell wakes the readers that wait for the job. It does not block.
func (e *Ended) Tell(job *statemachine.Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, signal := range e.waiting[job.ID] {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
}

// watch returns a channel that gets a value when the job ends, and a function
// that ends the watch.
func (e *Ended) watch(jobID string) (signal chan struct{}, stop func()) {
	signal = make(chan struct{}, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == nil {
		e.waiting = map[string][]chan struct{}{}
	}
	e.waiting[jobID] = append(e.waiting[jobID], signal)
	return signal, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.waiting[jobID] = slices.DeleteFunc(e.waiting[jobID], func(other chan struct{}) bool { return other == signal })
		if len(e.waiting[jobID]) == 0 {
			delete(e.waiting, jobID)
		}
	}
}

// pollInterval is how often a waiting reader reads the job, which another process may
// have ended.
const pollInterval = time.Second

// Wait returns the job when it is terminal, or its current state after that time. It
// ends early when ended is closed or the context is done. The errors are
// [*problem.Error]s.
func (s *Service) Wait(ctx context.Context, jobID string, wait time.Duration, ended <-chan struct{},
) (*statemachine.Aggregate, error) {
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
			return agg, nil
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
// to continue after, 0 at the end. Callbacks that were refused follow the change that
// made the rev at which they were recorded. The errors are [*problem.Error]s.
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
	entries, err = s.withRejected(ctx, jobID, entries, after, next)
	return entries, next, err
}

// withRejected adds the callbacks that were refused after the rev, up to another one
// unless that is 0, to entries of the history.
func (s *Service) withRejected(ctx context.Context, jobID string, entries []ledger.HistoryEntry, after, upTo int64,
) ([]ledger.HistoryEntry, error) {
	rejected, err := s.ledger.Rejected(ctx, jobID)
	if err != nil {
		return nil, ledger.Problem(err)
	}
	if more := rejected.History(after, upTo); len(more) > 0 {
		entries = append(entries, more...)
		slices.SortStableFunc(entries, func(a, b ledger.HistoryEntry) int {
			return cmp.Or(cmp.Compare(a.Rev, b.Rev), cmp.Compare(a.Index, b.Index))
		})
	}
	return entries, nil
}

// Rejected returns the job's callbacks that were refused. The errors are
// [*problem.Error]s.
func (s *Service) Rejected(ctx context.Context, jobID string) (ledger.Rejections, error) {
	rejected, err := s.ledger.Rejected(ctx, jobID)
	if err == nil && len(rejected.Kept) == 0 {
		_, err = s.ledger.Job(ctx, jobID)
	}
	return rejected, ledger.Problem(err)
}

// followPage is about how many entries one look at a job returns. The follower keeps
// them in memory until they are sent, however slowly.
const followPage = 20

// Follow returns the job's history after entry index of revision rev, and whether the
// history is complete: the job has ended. Entries of one revision come together. The
// errors are [*problem.Error]s, invalid_envelope if the history has no such entry; a
// revision of 0 stands for its start.
func (s *Service) Follow(ctx context.Context, jobID string, rev int64, index int) ([]ledger.HistoryEntry, bool, error) {
	// Read the job first: its history is then at least as new.
	agg, err := s.ledger.Job(ctx, jobID)
	if err != nil {
		return nil, false, ledger.Problem(err)
	}
	entries, next, err := s.ledger.History(ctx, jobID, max(rev-1, 0), followPage)
	if err != nil {
		return nil, false, ledger.Problem(err)
	}
	if entries, err = s.withRejected(ctx, jobID, entries, max(rev-1, 0), next); err != nil {
		return nil, false, err
	}
	known := rev == 0
	for len(entries) > 0 && (entries[0].Rev < rev || entries[0].Rev == rev && entries[0].Index <= index) {
		// A refused callback may have been moved to a later revision since.
		known = known || entries[0].Rev == rev && (entries[0].Index == index || index >= ledger.FirstRejected)
		entries = entries[1:]
	}
	if !known {
		return nil, false, &problem.Error{Code: problem.InvalidEnvelope, Errors: []problem.Violation{{
			Message: "header Last-Event-ID is the id of no event of this job: leave it out to begin with the first one",
		}}}
	}
	return entries, agg.Job.State.Terminal() && next == 0, nil
}

// Control is a request to cancel, pause, resume or rerun a job.
type Control struct {
	JobID     string
	Reason    string
	Actor     string
	RequestID string
}

// Cancel ends the job without a result. It reports whether that changed the job; the
// errors are [*problem.Error]s, illegal_transition for a job that ended otherwise.
func (s *Service) Cancel(ctx context.Context, c Control) (*statemachine.Aggregate, bool, error) {
	return s.control(ctx, c, statemachine.Cancel{Reason: c.Reason})
}

// Pause stops new dispatch of the job. It returns the same as [Service.Cancel].
func (s *Service) Pause(ctx context.Context, c Control) (*statemachine.Aggregate, bool, error) {
	return s.control(ctx, c, statemachine.Pause{Reason: c.Reason})
}

// Resume ends a pause. It returns the same as [Service.Cancel].
func (s *Service) Resume(ctx context.Context, c Control) (*statemachine.Aggregate, bool, error) {
	return s.control(ctx, c, statemachine.Resume{Reason: c.Reason})
}

func (s *Service) control(ctx context.Context, c Control, event statemachine.Event) (*statemachine.Aggregate, bool, error) {
	result, err := s.ledger.Change(ctx, c.JobID, event, ledger.By(c.Actor, c.RequestID))
	if err != nil {
		return nil, false, ledger.Problem(err)
	}
	if err := result.Problem(); err != nil {
		return nil, false, err
	}
	return &result.Job, result.Outcome == statemachine.Applied, nil
}

// Rerun creates a new job from one that ended FAILED_FINAL or CANCELLED, starting at
// the failed step unless from says otherwise. There is one for each job and starting
// point, so a double click gives the same job. The errors are [*problem.Error]s,
// illegal_transition for any other job.
func (s *Service) Rerun(ctx context.Context, c Control, from ledger.RerunFrom) (ledger.Accepted, error) {
	accepted, err := s.ledger.Rerun(ctx, ledger.Rerun{
		JobID: c.JobID, From: cmp.Or(from, ledger.FromFailed), Actor: c.Actor, RequestID: c.RequestID, Reason: c.Reason,
	})
	return accepted, ledger.Problem(err)
}
