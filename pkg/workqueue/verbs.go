package workqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// View is an item as callers see it.
type View struct {
	Item statemachine.Item
	// Directive is the message body. Only a claim's has the lease id, which is a
	// capability.
	Directive []byte
	// CancelRequested tells the worker that its result is no longer needed, and
	// PauseRequested that no further step starts.
	CancelRequested bool
	PauseRequested  bool
}

// Failure is a worker's report that it could not do the work.
type Failure struct {
	// Retryable says that another attempt may succeed.
	Retryable bool
	Code      string
	Message   string
	// RetryAfter overrides the backoff if it is not 0.
	RetryAfter time.Duration
	// Throttled says that a retryable failure is due to a rate limit of the service. Optional.
	Throttled statemachine.Throttle
	// EveryTenant reports whether the caller may answer for all tenants of the service. Optional:
	// without it, a throttled failure closes the service only for the item's tenant.
	EveryTenant func(service string) bool
}

// pairOf returns the fence of the attempt that the item carries.
func pairOf(item *statemachine.Item) statemachine.Pair {
	return statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID}
}

// Start records that the owner has started: the ACK.
func (q *Queue) Start(ctx context.Context, workID string, r statemachine.ItemRequest) (View, error) {
	return q.do(ctx, workID, statemachine.OpStart, r, func(item *statemachine.Item, _ time.Time) statemachine.Event {
		return statemachine.Ack{StepID: item.StepID, Pair: pairOf(item)}
	})
}

// Heartbeat extends the lease of a running item, or the ACK deadline of a claimed
// one. progress is kept for readers unless it is nil.
func (q *Queue) Heartbeat(ctx context.Context, workID string, r statemachine.ItemRequest, progress *statemachine.Progress) (View, error) {
	return q.do(ctx, workID, statemachine.OpHeartbeat, r, func(item *statemachine.Item, _ time.Time) statemachine.Event {
		if item.Status == statemachine.StatusClaimed {
			return statemachine.ClaimExtended{StepID: item.StepID, Pair: pairOf(item), Progress: progress}
		}
		return statemachine.Heartbeat{StepID: item.StepID, Pair: pairOf(item), Progress: progress}
	})
}

// Complete ends a running item: RESULT SUCCEEDED.
func (q *Queue) Complete(ctx context.Context, workID string, r statemachine.ItemRequest, product statemachine.Product) (View, error) {
	return q.do(ctx, workID, statemachine.OpComplete, r, succeeded(product))
}

// CompleteFor is Complete for a caller that sees only those items. It returns only the
// item's rev.
func (q *Queue) CompleteFor(ctx context.Context, workID string, r statemachine.ItemRequest, product statemachine.Product,
	sees func(tenantID, service string) bool,
) (rev int64, err error) {
	result, err := q.apply(ctx, workID, ledger.Verb{
		Operation: statemachine.OpComplete, Request: r, Event: succeeded(product), Sees: sees,
	})
	return result.Item.Rev, err
}

func succeeded(product statemachine.Product) func(*statemachine.Item, time.Time) statemachine.Event {
	return func(item *statemachine.Item, _ time.Time) statemachine.Event {
		return statemachine.Result{
			StepID: item.StepID, Pair: pairOf(item), Status: statemachine.ResultSucceeded, Product: product,
		}
	}
}

// Fail ends a running item: RESULT FAILED_RETRY or FAILED_FINAL. The item is final;
// the step's next attempt is another item.
func (q *Queue) Fail(ctx context.Context, workID string, r statemachine.ItemRequest, f Failure) (View, error) {
	status := statemachine.ResultFailedFinal
	if f.Retryable {
		status = statemachine.ResultFailedRetry
	}
	result, err := q.apply(ctx, workID, ledger.Verb{
		Operation: statemachine.OpFail, Request: r, Sees: q.caller.sees,
		Event: func(item *statemachine.Item, _ time.Time) statemachine.Event {
			return statemachine.Result{
				StepID: item.StepID, Pair: pairOf(item), Status: status, ErrorCode: f.Code, ErrorMessage: f.Message,
				RetryAfter: f.RetryAfter, Throttled: f.Throttled,
			}
		},
	})
	if err != nil {
		return View{}, err
	}
	if closure, closes := result.Closure(ledger.CallerOf(ctx), f.EveryTenant); closes {
		q.closer(ctx, closure)
	}
	return q.answer(ctx, &result)
}

// Stall takes an item from its worker for an operator. It spends no budget.
func (q *Queue) Stall(ctx context.Context, workID string, r statemachine.ItemRequest) (View, error) {
	return q.do(ctx, workID, statemachine.OpStall, r, func(item *statemachine.Item, _ time.Time) statemachine.Event {
		return statemachine.Stall{StepID: item.StepID, AttemptNo: item.AttemptNo, Reason: r.Reason}
	})
}

// Requeue offers a stalled item again at once for an operator: it dispatches the
// step's next attempt, which comes back as the same item, in the operator's name. It
// spends no budget. The item that it returns is queued, or still stalled while
// dispatch is paused.
func (q *Queue) Requeue(ctx context.Context, workID string, r statemachine.ItemRequest) (View, error) {
	return q.do(ctx, workID, statemachine.OpRequeueStalled, r, func(item *statemachine.Item, _ time.Time) statemachine.Event {
		return statemachine.Retry{StepID: item.StepID, Reason: r.Reason}
	})
}

// do applies a verb, and returns the item after it.
func (q *Queue) do(ctx context.Context, workID string, operation statemachine.ItemOperation, r statemachine.ItemRequest,
	event func(*statemachine.Item, time.Time) statemachine.Event,
) (View, error) {
	result, err := q.apply(ctx, workID, ledger.Verb{Operation: operation, Request: r, Event: event, Sees: q.caller.sees})
	if err != nil {
		return View{}, err
	}
	return q.answer(ctx, &result)
}

// answer returns the item after a verb.
func (q *Queue) answer(ctx context.Context, result *ledger.Result) (View, error) {
	directive, err := q.ledger.WorkDirective(ctx, result)
	if err != nil {
		return View{}, asProblem(err)
	}
	view, err := view(&result.Item, directive)
	view.CancelRequested = result.Job.Job.State == statemachine.JobCancelling
	view.PauseRequested = result.Job.Job.State == statemachine.JobPausing
	return view, err
}

// apply applies a verb. The error is a problem for the client.
func (q *Queue) apply(ctx context.Context, workID string, v ledger.Verb) (ledger.Result, error) {
	result, err := q.ledger.Work(ctx, workID, v)
	if err == nil {
		err = result.Problem()
	}
	if err != nil {
		return ledger.Result{}, asProblem(err)
	}
	return result, nil
}

// Get returns an item.
func (q *Queue) Get(ctx context.Context, workID string) (View, error) {
	item, err := q.find(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	directive, err := q.ledger.ItemDirective(ctx, &item)
	if err != nil {
		return View{}, asProblem(err)
	}
	return view(&item, directive)
}

// find reads an item that the caller may see; any other is [statemachine.ErrNoItem].
func (q *Queue) find(ctx context.Context, workID string) (statemachine.Item, error) {
	item, err := q.ledger.Item(ctx, workID)
	if err == nil && !q.caller.sees(item.TenantID, item.Service) {
		err = statemachine.ErrNoItem
	}
	return item, err
}

// view returns an item with its directive, without the lease id.
func view(item *statemachine.Item, directive []byte) (View, error) {
	redacted, err := withoutLease(directive)
	if err != nil {
		return View{}, err
	}
	return View{Item: *item, Directive: redacted}, nil
}

// withoutLease removes the lease id, a capability, from a directive that is shown to
// a reader who must not act on it. All other bytes are unchanged.
func withoutLease(directive []byte) ([]byte, error) {
	if object := jsontext.Value(directive); object.Kind() != '{' || !object.IsValid() {
		return nil, errors.New("read a directive: it is not a JSON object")
	}
	fields := jsontext.NewDecoder(bytes.NewBuffer(directive))
	_, err := fields.ReadToken()
	for err == nil && fields.PeekKind() == '"' {
		from := fields.InputOffset()
		var name jsontext.Token
		if name, err = fields.ReadToken(); err != nil {
			break
		}
		lease := name.String() == "lease_id"
		if err = fields.SkipValue(); lease && err == nil {
			rest := directive[fields.InputOffset():]
			if directive[from-1] == '{' {
				rest = bytes.TrimPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(","))
			}
			return slices.Concat(directive[:from], rest), nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read a directive: %w", err)
	}
	return directive, nil
}

// Events returns one page of an item's history with rev > after, oldest first, and
// the rev after which the next page begins, 0 at the end.
func (q *Queue) Events(ctx context.Context, workID string, after int64, limit int) ([]statemachine.ItemEvent, int64, error) {
	events, err := q.ledger.ItemHistory(ctx, workID)
	if limited := len(q.caller.Tenants)+len(q.caller.Services) > 0; err == nil && (len(events) == 0 || limited) {
		_, err = q.find(ctx, workID)
	}
	if err != nil {
		return nil, 0, asProblem(err)
	}
	for len(events) > 0 && events[0].Rev <= after {
		events = events[1:]
	}
	if limit > 0 && len(events) > limit {
		return events[:limit], events[limit-1].Rev, nil
	}
	return events, 0, nil
}
