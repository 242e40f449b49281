package callbacks

import (
	"context"
	"encoding/json"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Ledger is what the callbacks need of the ledger.
type Ledger interface {
	Change(ctx context.Context, jobID string, event statemachine.Event, opts ...ledger.Option) (ledger.Result, error)
}

// Identity is what each callback carries: which attempt of which step it
// reports for. The pair of attempt number and lease id fences it.
//
// Source: Option B spec, 11.2.
type Identity struct {
	JobID    string
	StepID   string
	TenantID string
	Pair     statemachine.Pair
	// Actor is who called, for the history.
	Actor string
	// RequestID is the transport's, for the history.
	RequestID string
}

// Report is a RESULT's part beside its identity.
//
// Source: Option B spec, 11.3.
type Report struct {
	Status       statemachine.ResultStatus
	ErrorCode    string
	ErrorMessage string
	OutputRef    json.RawMessage
	ResultRef    json.RawMessage
	RetryAfter   time.Duration
}

// Answer is what a worker is told.
type Answer struct {
	Outcome         statemachine.Outcome // Applied or Duplicate
	JobState        statemachine.JobState
	StepState       statemachine.StepState
	LeaseExpiresAt  time.Time // zero where no lease runs
	CancelRequested bool
	// Job is the job after the callback.
	Job *statemachine.Aggregate
	// PostErr is the first error of what follows the change; the change holds.
	PostErr error
}

// Service is the one use case behind all ways in which workers report: HTTP
// callbacks, the pull queue's verbs, and reply topics. It is safe for
// concurrent use.
type Service struct{ ledger Ledger }

// New returns a service on the ledger.
func New(l Ledger) *Service { return &Service{ledger: l} }

// Ack handles an ACK. The errors are [*problem.Error]s.
func (s *Service) Ack(ctx context.Context, id Identity, opts ...ledger.Option) (Answer, error) {
	return s.bring(ctx, id, statemachine.Ack{StepID: id.StepID, Pair: id.Pair}, opts)
}

// Heartbeat handles a sign of life. The errors are [*problem.Error]s.
func (s *Service) Heartbeat(ctx context.Context, id Identity, opts ...ledger.Option) (Answer, error) {
	return s.bring(ctx, id, statemachine.Heartbeat{StepID: id.StepID, Pair: id.Pair}, opts)
}

// Result handles a RESULT. The errors are [*problem.Error]s.
func (s *Service) Result(ctx context.Context, id Identity, report Report, opts ...ledger.Option) (Answer, error) {
	return s.bring(ctx, id, statemachine.Result{
		StepID: id.StepID, Pair: id.Pair, Status: report.Status,
		ErrorCode: report.ErrorCode, ErrorMessage: report.ErrorMessage,
		OutputRef: report.OutputRef, ResultRef: report.ResultRef, RetryAfter: report.RetryAfter,
	}, opts)
}

// bring carries the event to the ledger and reads the answer off.
func (s *Service) bring(ctx context.Context, id Identity, event statemachine.Event, opts []ledger.Option,
) (Answer, error) {
	opts = append([]ledger.Option{ledger.By(id.Actor, id.RequestID), ledger.InTenant(id.TenantID)}, opts...)
	result, err := s.ledger.Change(ctx, id.JobID, event, opts...)
	if err != nil {
		return Answer{}, ledger.Problem(err)
	}
	if err := result.Problem(); err != nil {
		return Answer{}, err
	}
	answer := Answer{
		Outcome: result.Outcome, JobState: result.Job.Job.State,
		CancelRequested: result.Job.Job.State == statemachine.JobCancelling, Job: &result.Job,
		PostErr: result.PostErr,
	}
	for i := range result.Job.Steps {
		if step := &result.Job.Steps[i]; step.ID == id.StepID {
			answer.StepState, answer.LeaseExpiresAt = step.State, step.LeaseExpiresAt
		}
	}
	return answer, nil
}
