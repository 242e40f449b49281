package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// RerunFrom is the starting point of a rerun.
type RerunFrom string

// The starting points of a rerun.
const (
	// FromFailed keeps the results of the steps before the first that did not
	// succeed.
	FromFailed RerunFrom = "failed"
	// FromStart repeats every step.
	FromStart RerunFrom = "start"
)

// Rerun is a request to execute an ended job again, as a new one.
type Rerun struct {
	JobID     string
	From      RerunFrom
	Actor     string
	RequestID string
	Reason    string
}

// NotRerunnableError is returned for a job that cannot be rerun as requested.
type NotRerunnableError struct{ Reason string }

// Error says why.
func (e *NotRerunnableError) Error() string { return e.Reason }

// Rerun creates a new job from one that ended FAILED_FINAL or CANCELLED, with the steps,
// policies and payload that the old one was accepted with. There is one new job for each
// old job and starting point: a repeat is a replay. It returns [ErrJobNotFound], a
// [*NotRerunnableError], and the errors of [Ledger.Accept].
func (l *Ledger) Rerun(ctx context.Context, r Rerun) (Accepted, error) {
	agg, err := l.Job(ctx, r.JobID)
	if err != nil {
		return Accepted{}, err
	}
	old := &agg.Job
	if old.State != statemachine.JobFailedFinal && old.State != statemachine.JobCancelled {
		return Accepted{}, &NotRerunnableError{
			fmt.Sprintf("only a job that is FAILED_FINAL or CANCELLED is rerun, and this one is %s", old.State),
		}
	}
	first := 0 // the step to start at
	if r.From != FromStart {
		first = slices.IndexFunc(agg.Steps, func(step statemachine.Step) bool {
			return step.State != statemachine.StepSucceeded
		})
	}
	if first < 0 {
		return Accepted{}, &NotRerunnableError{"every step of this job has succeeded, so it can only be rerun from the start"}
	}
	payload, err := l.Payload(ctx, r.JobID)
	if err != nil {
		return Accepted{}, err
	}
	steps := make([]statemachine.Step, len(agg.Steps))
	for i := range steps {
		was := &agg.Steps[i]
		steps[i] = statemachine.Step{
			ID: was.ID, Type: was.Type, Service: was.Service, Input: was.Input, PayloadPointer: was.PayloadPointer,
			Policy: was.Policy, Routing: was.Routing, Product: statemachine.Product{OutputRef: old.OutputRef},
		}
		if i < first {
			steps[i].State = statemachine.StepSucceeded
			steps[i].InputRef, steps[i].Product = was.InputRef, was.Product
			steps[i].GaveOutput, steps[i].GaveResult = was.GaveOutput, was.GaveResult
		}
	}
	last, err := l.lastRerun(ctx, old)
	if err != nil {
		return Accepted{}, err
	}
	accepted, err := l.Accept(ctx, Command{
		Job: statemachine.Job{
			TenantID: old.TenantID, RequestType: old.RequestType, SchemaVersion: old.SchemaVersion,
			ProtocolID: old.ProtocolID, ProtocolVersion: old.ProtocolVersion, Mode: old.Mode, DocID: old.DocID,
			Tags:            old.Tags.Own(),
			IdempotencyHash: old.IdempotencyHash, InputRef: old.InputRef, OutputRef: old.OutputRef,
			WorkspaceRef: old.WorkspaceRef, CallbackURLs: old.CallbackURLs, CorrelationID: old.CorrelationID,
			Traceparent: old.Traceparent, RerunOf: old.ID, Supersedes: last,
		},
		Steps: steps, Payload: payload,
		Actor: r.Actor, RequestID: r.RequestID, Reason: r.Reason,
		Origin: string(r.From) + " " + r.JobID,
	})
	if err != nil {
		return Accepted{}, fmt.Errorf("rerun job %s: %w", r.JobID, err)
	}
	return accepted, nil
}

// lastRerun returns the id of the last job in the chain of reruns that begins with this
// one. A job with reruns from both starting points has them in one chain, so that of all
// of them the last one shows how the command ended.
func (l *Ledger) lastRerun(ctx context.Context, job *statemachine.Job) (string, error) {
	for {
		next, err := l.SupersededBy(ctx, job)
		if err != nil || next == "" {
			return supersedable(job), err
		}
		agg, err := l.Job(ctx, next)
		if err != nil {
			return "", err
		}
		job = &agg.Job
	}
}
