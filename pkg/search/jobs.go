// Package search finds jobs, counts them, and reads them for callers. It returns a job with its
// steps and its history, and waits for its end.
//
// Jobs are read from their own rows, so an answer shows the state on which the next change
// is decided.
//
// Source: Option B spec, 4 and 18.
package search

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Service reads jobs. It is safe for concurrent use.
type Service struct {
	ledger *ledger.Ledger
	ended  *Ended
	around Surroundings

	maxLive, maxSearched, maxTenants int
}

// New returns a service on the ledger. ended wakes calls of [Service.Wait] when a job ends
// in this process.
func New(l *ledger.Ledger, ended *Ended, around Surroundings) *Service {
	around.Logger = cmp.Or(around.Logger, slog.New(slog.DiscardHandler))
	return &Service{ledger: l, ended: ended, around: around, maxLive: maxLive, maxSearched: maxSearched, maxTenants: maxTenants}
}

func (s *Service) finder() *Finder { return &Finder{Source: s.ledger, Live: s.around.Live} }

// Ended wakes readers that wait for a job when it ends in this process. Its zero value is
// ready for use. It is safe for concurrent use.
type Ended struct {
	mu      sync.Mutex                 // Guards waiting.
	waiting map[string][]chan struct{} // by job
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

// watch returns a channel that receives a value when the job ends, and a function
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

// Wait returns the job as soon as it is terminal, or in its current state after the time
// wait or when ended is closed. The errors are [*apierror.Error]s.
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

// History returns one page of the job's history with rev > after, and the rev to continue
// after, 0 at the end. It lists each rejected callback after the change to the rev at which
// the callback was recorded. The errors are [*apierror.Error]s.
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

// withRejected adds the callbacks that were rejected after rev after, and up to rev upTo
// unless that is 0, to entries of the history.
func (s *Service) withRejected(ctx context.Context, jobID string, entries []ledger.HistoryEntry, after, upTo int64,
) ([]ledger.HistoryEntry, error) {
	rejected, err := s.ledger.Rejected(ctx, jobID)
	if err != nil {
		return nil, ledger.Problem(err)
	}
	return rejected.Merge(entries, after, upTo), nil
}

// Rejected returns the job's callbacks that were rejected. The errors are
// [*apierror.Error]s.
func (s *Service) Rejected(ctx context.Context, jobID string) (ledger.Rejections, error) {
	rejected, err := s.ledger.Rejected(ctx, jobID)
	if err == nil && len(rejected) == 0 {
		_, err = s.ledger.Job(ctx, jobID)
	}
	return rejected, ledger.Problem(err)
}

// followPage is about how many entries Follow returns. Its caller keeps them in memory until
// a client, which may be slow, has read them.
const followPage = 20

// Follow returns part of the job's history after entry index of revision rev, or from its
// start if rev is 0. It reports true if the job has ended and no further entries follow.
// Entries of one revision come together. The errors are [*apierror.Error]s, invalid_envelope
// if the history has no such entry.
func (s *Service) Follow(ctx context.Context, jobID string, rev int64, index int) ([]ledger.HistoryEntry, bool, error) {
	// Read the job first, so that its history is at least as new.
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
		// A rejected callback may have been deleted since.
		known = known || entries[0].Rev == rev && (entries[0].Index == index || index >= ledger.FirstRejected)
		entries = entries[1:]
	}
	if !known {
		return nil, false, &apierror.Error{Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{{
			Message: "header Last-Event-ID does not name an event of this job: omit it to start with the first event",
		}}}
	}
	return entries, agg.Job.State.Terminal() && next == 0, nil
}

// Related is a job of a lineage; without an aggregate if it was purged.
type Related struct {
	JobID     string
	Aggregate *statemachine.Aggregate
	// Caller and Reason are those of its acceptance.
	Caller, Reason string
}

// maxLineage bounds the jobs of a lineage.
const maxLineage = 100

// Lineage returns the chain of reruns that the job is in, oldest first, and whether there are more
// jobs. The errors are [*apierror.Error]s.
func (s *Service) Lineage(ctx context.Context, jobID string) ([]Related, bool, error) {
	chain, truncated, err := s.ledger.Lineage(ctx, jobID, maxLineage)
	if err != nil {
		return nil, false, ledger.Problem(err)
	}
	related := make([]Related, len(chain))
	for i, one := range chain {
		related[i] = Related{JobID: one.Job.ID}
		if one.Job.State == "" {
			continue
		}
		related[i].Aggregate = one
		first, _, err := s.ledger.History(ctx, one.Job.ID, 0, 1)
		if err != nil {
			return nil, false, ledger.Problem(err)
		}
		if len(first) > 0 {
			related[i].Caller, related[i].Reason = first[0].Caller, first[0].Detail
		}
	}
	return related, truncated, nil
}
