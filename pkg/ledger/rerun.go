package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// RerunFrom says where a rerun starts.
type RerunFrom string

// The starting points of a rerun.
const (
	// FromFailed keeps the results of the steps before the first that did not
	// succeed.
	FromFailed RerunFrom = "failed"
	// FromStart does every step again.
	FromStart RerunFrom = "start"
)

// Rerun is a request to do an ended job again, as a new one.
type Rerun struct {
	JobID string
	From  RerunFrom
	// Limit is the most jobs that the tenant may have in flight; 0 is no limit.
	Limit     int
	Actor     string
	RequestID string
	Reason    string
}

// NotRerunnableError is returned for a job that has nothing to be done again.
type NotRerunnableError struct{ Reason string }

// Error says why.
func (e *NotRerunnableError) Error() string { return e.Reason }

// Rerun makes a new job of one that ended FAILED_FINAL or CANCELLED, with the
// steps, policies and payload that the old one was accepted with. There is one
// for each job and starting point: a repeat answers with the same, as a replay.
// It returns [ErrJobNotFound], a [*NotRerunnableError], and the errors of
// [Ledger.Accept].
func (l *Ledger) Rerun(ctx context.Context, r Rerun) (Accepted, error) {
	old, err := l.Job(ctx, r.JobID)
	if err != nil {
		return Accepted{}, err
	}
	first, err := r.first(old)
	if err != nil {
		return Accepted{}, err
	}
	payload, err := l.Payload(ctx, r.JobID)
	if err != nil {
		return Accepted{}, err
	}
	accepted, err := l.Accept(ctx, Command{
		Job: again(&old.Job), Steps: stepsAgain(old, first), Payload: payload, Limit: r.Limit,
		Actor: r.Actor, RequestID: r.RequestID, Reason: r.Reason,
		Claim: string(r.From) + " " + r.JobID,
	})
	if err != nil {
		return Accepted{}, fmt.Errorf("rerun job %s: %w", r.JobID, err)
	}
	return accepted, nil
}

// first is the step to start at.
func (r *Rerun) first(old *statemachine.Aggregate) (int, error) {
	if state := old.Job.State; state != statemachine.JobFailedFinal && state != statemachine.JobCancelled {
		return 0, &NotRerunnableError{fmt.Sprintf("only a job that is FAILED_FINAL or CANCELLED is rerun, and this one is %s", state)}
	}
	if r.From == FromStart {
		return 0, nil
	}
	first := slices.IndexFunc(old.Steps, func(step statemachine.Step) bool {
		return step.State != statemachine.StepSucceeded
	})
	if first < 0 {
		return 0, &NotRerunnableError{"every step of this job has succeeded, so it can only be rerun from the start"}
	}
	return first, nil
}

// again is what of a job never changes.
func again(old *statemachine.Job) statemachine.Job {
	return statemachine.Job{
		TenantID: old.TenantID, RequestType: old.RequestType, SchemaVersion: old.SchemaVersion,
		ProtocolID: old.ProtocolID, ProtocolVersion: old.ProtocolVersion, Mode: old.Mode, DocID: old.DocID,
		IdempotencyHash: old.IdempotencyHash, InputRef: old.InputRef, OutputRef: old.OutputRef,
		WorkspaceRef: old.WorkspaceRef, CallbackURLs: old.CallbackURLs, CorrelationID: old.CorrelationID,
		Traceparent: old.Traceparent, RerunOf: old.ID,
	}
}

// stepsAgain are the steps as new ones, those before first with their results.
func stepsAgain(old *statemachine.Aggregate, first int) []statemachine.Step {
	steps := make([]statemachine.Step, len(old.Steps))
	for i := range old.Steps {
		was := &old.Steps[i]
		steps[i] = statemachine.Step{
			ID: was.ID, Type: was.Type, Service: was.Service, Input: was.Input, PayloadPointer: was.PayloadPointer,
			Policy: was.Policy, Routing: was.Routing, OutputRef: old.Job.OutputRef,
		}
		if i < first {
			steps[i].State = statemachine.StepSucceeded
			steps[i].InputRef, steps[i].OutputRef, steps[i].ResultRef = was.InputRef, was.OutputRef, was.ResultRef
		}
	}
	return steps
}
