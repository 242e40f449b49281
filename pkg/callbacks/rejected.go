package callbacks

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// maxJobs is how many jobs have rejections in memory.
	maxJobs = 4096
	// recordTime bounds how long the answer to a refused callback waits for its record.
	recordTime = 2 * time.Second
)

// reject counts a callback that was refused with the error, and records it unless the
// job has no such step. Its answer does not depend on the record.
//
// The first of a job is written before it is answered. Those that come within about a
// second after it are collected and written together by [Service.RunOnce], so that a
// worker that repeats itself in a loop costs its job one write a second.
func (s *Service) reject(ctx context.Context, c *Callback, job *statemachine.Job, err error) {
	refused, ok := errors.AsType[*apierror.Error](err)
	if !ok {
		return
	}
	kind := strings.ToUpper(c.Event.Name())
	switch refused.Code {
	case apierror.JobNotFound, apierror.StepNotFound:
		s.cfg.Rejected(kind, string(refused.Code))
		return
	case apierror.StaleAttempt, apierror.ContradictoryResult, apierror.IllegalTransition:
		s.cfg.Rejected(kind, string(refused.Code))
	default:
		return
	}
	pair, report := sentBy(c.Event)
	now := tablestore.Now()
	one := ledger.Rejection{
		StepID: c.StepID, Kind: kind, AttemptNo: pair.AttemptNo, LeaseDigest: statemachine.LeaseDigest(pair.LeaseID),
		Cause: statemachine.Code(refused.Code), Caller: c.Caller, Report: report, RequestID: c.RequestID,
		First: now, Last: now, Count: 1,
	}
	if result, ok := c.Event.(statemachine.Result); ok {
		one.Status = result.Status
	}
	if !s.collect(c.JobID, &one) {
		return
	}
	about := statemachine.LogFields{
		JobID: c.JobID, TenantID: c.TenantID, StepID: c.StepID, AttemptNo: one.AttemptNo, LeaseDigest: one.LeaseDigest,
		CorrelationID: job.CorrelationID, Traceparent: job.Traceparent,
	}
	s.cfg.Logger.InfoContext(ctx, "callback refused",
		about.With("type", kind, "cause", one.Cause, "caller", one.Caller, "request_id", one.RequestID)...)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	_ = s.record(ctx, c.JobID, &ledger.Rejections{Kept: []ledger.Rejection{one}}) // A failure is counted.
}

// collect reports whether the rejection must be written now, because it is the job's first
// for a while. Any other is left to the next pass.
func (s *Service) collect(jobID string, one *ledger.Rejection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, known := s.jobs[jobID]
	switch {
	case known:
		waiting.Add(*one)
	case len(s.jobs) < maxJobs:
		s.jobs[jobID] = &ledger.Rejections{}
		return true
	default:
		s.cfg.Unrecorded(one.Count)
	}
	return false
}

// record records rejections, and counts those that it could not record.
func (s *Service) record(ctx context.Context, jobID string, rejected *ledger.Rejections) error {
	err := s.cfg.Ledger.Reject(ctx, jobID, rejected)
	if err == nil {
		return nil
	}
	s.cfg.Unrecorded(rejected.Total())
	return err
}

// RunOnce records the callbacks that were collected since the last pass. After a failure it
// continues, and returns the first error at the end.
func (s *Service) RunOnce(ctx context.Context) error {
	s.mu.Lock()
	// The next refused callback of an idle job is written at once.
	maps.DeleteFunc(s.jobs, func(_ string, waiting *ledger.Rejections) bool { return len(waiting.Kept) == 0 })
	jobIDs := slices.Sorted(maps.Keys(s.jobs))
	s.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(s.cfg.Parallel)
	for _, jobID := range jobIDs {
		if ctx.Err() != nil {
			break // The rest waits for the next pass.
		}
		group.Go(func() error {
			s.mu.Lock()
			collected := s.jobs[jobID]
			s.jobs[jobID] = &ledger.Rejections{}
			s.mu.Unlock()
			return s.record(ctx, jobID, collected)
		})
	}
	return cmp.Or(group.Wait(), ctx.Err())
}

// Flush records what was collected, for the end of the process. It counts and logs the
// callbacks that it has no time left to record.
func (s *Service) Flush(ctx context.Context) {
	err := s.RunOnce(ctx)
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var left int64
	for _, waiting := range s.jobs {
		left += waiting.Total()
	}
	s.cfg.Unrecorded(left)
	s.cfg.Logger.WarnContext(ctx, "refused callbacks not recorded before the end", slog.Int64("not_tried", left), slog.Any("error", err))
}
