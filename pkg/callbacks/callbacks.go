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
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// actor is the actor of callbacks in the history.
const actor = "platform"

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
}

// Answer is the answer to a worker.
type Answer struct {
	Outcome         statemachine.Outcome // Applied or Duplicate
	JobState        statemachine.JobState
	StepState       statemachine.StepState
	LeaseExpiresAt  time.Time // of the caller's own attempt; zero if it holds no lease
	CancelRequested bool
	// PostErr is the first error of the post-commit work; the change itself holds.
	PostErr error
}

// Service applies callbacks of every transport. It is safe for concurrent use.
type Service struct{ ledger *ledger.Ledger }

// New returns a service on the ledger.
func New(l *ledger.Ledger) *Service { return &Service{ledger: l} }

// Apply applies a callback to its job. The errors are [*problem.Error]s.
func (s *Service) Apply(ctx context.Context, c Callback) (Answer, error) {
	result, err := s.ledger.Change(ctx, c.JobID, c.Event, ledger.By(actor, c.RequestID), ledger.InTenant(c.TenantID))
	if err != nil {
		return Answer{}, ledger.Problem(err)
	}
	if err := result.Problem(); err != nil {
		return Answer{}, err
	}
	answer := Answer{
		Outcome: result.Outcome, JobState: result.Job.Job.State,
		CancelRequested: result.Job.Job.State == statemachine.JobCancelling, PostErr: result.PostErr,
	}
	for i := range result.Job.Steps {
		if step := &result.Job.Steps[i]; step.ID == c.StepID {
			answer.StepState = step.State
			if pairOf(c.Event) == (statemachine.Pair{AttemptNo: step.AttemptNo, LeaseID: step.LeaseID}) {
				answer.LeaseExpiresAt = step.LeaseExpiresAt
			}
		}
	}
	return answer, nil
}

// pairOf returns the pair of attempt number and lease id of a report.
func pairOf(event statemachine.Event) statemachine.Pair {
	switch e := event.(type) {
	case statemachine.Ack:
		return e.Pair
	case statemachine.Heartbeat:
		return e.Pair
	case statemachine.Result:
		return e.Pair
	}
	return statemachine.Pair{}
}
