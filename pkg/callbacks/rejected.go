package callbacks

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

const (
	// recordWindow is the time in which at most recordsOfJob refused callbacks of a job are
	// recorded, and those of at most recordedJobs jobs.
	recordWindow = time.Minute
	recordsOfJob = 16
	recordedJobs = 4096
	// recordTime bounds how long the answer to a refused callback waits for its record.
	recordTime = 2 * time.Second
)

// reject counts a callback that was refused with the error, and records it unless the
// job has no such step. Its answer does not depend on the record.
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
	if !s.admit(c.JobID) {
		s.cfg.Unrecorded()
		return
	}
	pair, report := sentBy(c.Event)
	one := ledger.Rejection{
		StepID: c.StepID, Kind: kind, AttemptNo: pair.AttemptNo, LeaseDigest: statemachine.LeaseDigest(pair.LeaseID),
		Cause: statemachine.Code(refused.Code), Caller: c.Caller, Report: report, RequestID: c.RequestID,
	}
	if result, ok := c.Event.(statemachine.Result); ok {
		one.Status = result.Status
	}
	about := statemachine.LogFields{
		JobID: c.JobID, TenantID: c.TenantID, StepID: c.StepID, AttemptNo: one.AttemptNo, LeaseDigest: one.LeaseDigest,
		CorrelationID: job.CorrelationID, Traceparent: job.Traceparent,
	}
	s.cfg.Logger.InfoContext(ctx, "callback refused",
		about.With("type", kind, "cause", one.Cause, "caller", one.Caller, "request_id", one.RequestID)...)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := s.cfg.Ledger.Reject(ctx, job, one); err != nil {
		s.cfg.Unrecorded()
		s.cfg.Logger.WarnContext(ctx, "refused callback not recorded", about.With("error", err)...)
	}
}

// admit reports whether a refused callback of the job is still within the bounds of this
// window, so that no worker that repeats itself makes the store write without end.
func (s *Service) admit(jobID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.since) >= recordWindow {
		s.since = now
		clear(s.recorded)
	}
	count := s.recorded[jobID]
	if count == recordsOfJob || count == 0 && len(s.recorded) == recordedJobs {
		return false
	}
	s.recorded[jobID]++
	return true
}
