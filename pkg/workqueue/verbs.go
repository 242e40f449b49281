package workqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Failure is a worker's report that it could not do the work.
type Failure struct {
	// Retryable says that another attempt may succeed.
	Retryable bool
	Code      string
	Message   string
	// RetryAfter replaces the back-off where it is not 0.
	RetryAfter time.Duration
}

// verb is what somebody does with an item, in its two halves.
type verb struct {
	operation lifecycle.Operation
	// bring tells the ledger.
	bring func(ctx context.Context, one *stored, id callbacks.Identity, at time.Time, opts []ledger.Option) (callbacks.Answer, error)
	// move moves the item.
	move move
}

// Start says that the owner has begun: the ACK. The errors are
// [*problem.Error]s.
func (q *Queue) Start(ctx context.Context, workID string, r lifecycle.Request) (View, error) {
	return q.report(ctx, workID, r, verb{
		operation: lifecycle.OpStart,
		bring: func(ctx context.Context, _ *stored, id callbacks.Identity, _ time.Time, opts []ledger.Option,
		) (callbacks.Answer, error) {
			return q.callbacks.Ack(ctx, id, opts...)
		},
		move: lifecycle.Start,
	})
}

// Heartbeat extends the lease of a running item, or the ACK deadline of a
// claimed one by as much as the claim gave. The errors are [*problem.Error]s.
func (q *Queue) Heartbeat(ctx context.Context, workID string, r lifecycle.Request) (View, error) {
	return q.report(ctx, workID, r, verb{operation: lifecycle.OpHeartbeat, bring: q.beat, move: lifecycle.Heartbeat})
}

// beat brings a sign of life to the ledger: of a claimed item, the extension of
// its claim.
func (q *Queue) beat(ctx context.Context, one *stored, id callbacks.Identity, at time.Time, opts []ledger.Option,
) (callbacks.Answer, error) {
	if one.item.Status != lifecycle.StatusClaimed {
		return q.callbacks.Heartbeat(ctx, id, opts...)
	}
	// An item of a version that did not keep the length has what was left of it.
	length := cmp.Or(one.item.ClaimLease, one.item.LeaseExpiresAt.Sub(one.item.UpdatedAt))
	event := statemachine.ClaimExtended{StepID: id.StepID, Pair: id.Pair, By: at.Add(length)}
	return q.change(ctx, id, event, opts)
}

// Complete ends a running item: RESULT SUCCEEDED. The errors are
// [*problem.Error]s.
func (q *Queue) Complete(ctx context.Context, workID string, r lifecycle.Request, outputRef, resultRef json.RawMessage,
) (View, error) {
	report := callbacks.Report{Status: statemachine.ResultSucceeded, OutputRef: outputRef, ResultRef: resultRef}
	return q.report(ctx, workID, r, verb{
		operation: lifecycle.OpComplete,
		bring:     q.result(report),
		move: func(item lifecycle.Item, r lifecycle.Request, _, at time.Time) (lifecycle.Change, error) {
			return lifecycle.Complete(item, r, resultObject(outputRef, resultRef), at)
		},
	})
}

// Fail ends a running item: RESULT FAILED_RETRY or FAILED_FINAL. The item is
// failed for good; the step's next attempt is an item of its own. The errors
// are [*problem.Error]s.
func (q *Queue) Fail(ctx context.Context, workID string, r lifecycle.Request, f Failure) (View, error) {
	report := callbacks.Report{
		Status: statemachine.ResultFailedFinal, ErrorCode: f.Code, ErrorMessage: f.Message, RetryAfter: f.RetryAfter,
	}
	if f.Retryable {
		report.Status = statemachine.ResultFailedRetry
	}
	failure := lifecycle.Failure{Code: report.Status.ErrorCode(f.Code), Message: f.Message}
	return q.report(ctx, workID, r, verb{
		operation: lifecycle.OpFail,
		bring:     q.result(report),
		move: func(item lifecycle.Item, r lifecycle.Request, _, at time.Time) (lifecycle.Change, error) {
			return lifecycle.Fail(item, r, failure, at)
		},
	})
}

// result is the bring of a RESULT.
func (q *Queue) result(report callbacks.Report,
) func(context.Context, *stored, callbacks.Identity, time.Time, []ledger.Option) (callbacks.Answer, error) {
	return func(ctx context.Context, _ *stored, id callbacks.Identity, _ time.Time, opts []ledger.Option,
	) (callbacks.Answer, error) {
		return q.callbacks.Result(ctx, id, report, opts...)
	}
}

// Stall is an operator who takes an item from its worker. It spends no budget.
// The errors are [*problem.Error]s.
func (q *Queue) Stall(ctx context.Context, workID string, r lifecycle.Request) (View, error) {
	return q.report(ctx, workID, r, verb{
		operation: lifecycle.OpStall,
		bring: func(ctx context.Context, _ *stored, id callbacks.Identity, _ time.Time, opts []ledger.Option,
		) (callbacks.Answer, error) {
			return q.change(ctx, id, statemachine.Stall{StepID: id.StepID, AttemptNo: id.Pair.AttemptNo}, opts)
		},
		move: func(item lifecycle.Item, r lifecycle.Request, _, at time.Time) (lifecycle.Change, error) {
			return lifecycle.Stall(item, r, at)
		},
	})
}

// change brings an event to the ledger that is the queue's own: no callback
// has it.
func (q *Queue) change(ctx context.Context, id callbacks.Identity, event statemachine.Event, opts []ledger.Option,
) (callbacks.Answer, error) {
	result, err := q.ledger.Change(ctx, id.JobID, event, append(opts, ledger.By(id.Actor, id.RequestID))...)
	if err != nil {
		return callbacks.Answer{}, err
	}
	return callbacks.Answer{
		Outcome: result.Outcome, Job: &result.Job, PostErr: result.PostErr,
		CancelRequested: result.Job.Job.State == statemachine.JobCancelling,
	}, result.Problem()
}
