package workqueue

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
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

// bring brings a report to the ledger, with the item's move behind it.
type bring func(ctx context.Context, id callbacks.Identity, opts ...ledger.Option) (callbacks.Answer, error)

// Start says that the owner has begun: the ACK. The errors are
// [*problem.Error]s.
func (q *Queue) Start(ctx context.Context, workID string, r lifecycle.Request) (View, error) {
	move := func(item lifecycle.Item, r lifecycle.Request, lease time.Time) (lifecycle.Change, error) {
		return lifecycle.Start(item, r, lease, now())
	}
	return q.report(ctx, workID, r, q.callbacks.Ack, move)
}

// Heartbeat extends the lease of a running item, or the ACK deadline of a
// claimed one by as much as the claim gave. The errors are [*problem.Error]s.
func (q *Queue) Heartbeat(ctx context.Context, workID string, r lifecycle.Request) (View, error) {
	move := func(item lifecycle.Item, r lifecycle.Request, lease time.Time) (lifecycle.Change, error) {
		return lifecycle.Heartbeat(item, r, lease, now())
	}
	one, err := q.storage.load(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	if one.item.Status != lifecycle.StatusClaimed {
		return q.report(ctx, workID, r, q.callbacks.Heartbeat, move)
	}
	by := now().Add(one.item.LeaseExpiresAt.Sub(one.item.UpdatedAt))
	extend := func(ctx context.Context, id callbacks.Identity, opts ...ledger.Option) (callbacks.Answer, error) {
		return q.extend(ctx, id, by, opts)
	}
	return q.report(ctx, workID, r, extend, move)
}

// extend brings the extension of a claim to the ledger.
func (q *Queue) extend(ctx context.Context, id callbacks.Identity, by time.Time, opts []ledger.Option) (callbacks.Answer, error) {
	event := statemachine.ClaimExtended{StepID: id.StepID, Pair: id.Pair, By: by}
	result, err := q.ledger.Change(ctx, id.JobID, event, append(opts, ledger.By(id.Actor, id.RequestID))...)
	if err != nil {
		return callbacks.Answer{}, err
	}
	return callbacks.Answer{
		Outcome: result.Outcome, Job: &result.Job, PostErr: result.PostErr,
		CancelRequested: result.Job.Job.State == statemachine.JobCancelling,
	}, result.Problem()
}

// Complete ends a running item: RESULT SUCCEEDED. The errors are
// [*problem.Error]s.
func (q *Queue) Complete(ctx context.Context, workID string, r lifecycle.Request, outputRef, resultRef json.RawMessage,
) (View, error) {
	report := callbacks.Report{Status: statemachine.ResultSucceeded, OutputRef: outputRef, ResultRef: resultRef}
	move := func(item lifecycle.Item, r lifecycle.Request, _ time.Time) (lifecycle.Change, error) {
		return lifecycle.Complete(item, r, resultObject(outputRef, resultRef), now())
	}
	return q.report(ctx, workID, r, q.result(report), move)
}

// Fail ends a running item: RESULT FAILED_RETRY or FAILED_FINAL. The item is
// failed for good; the step's next attempt is an item of its own. The errors
// are [*problem.Error]s.
func (q *Queue) Fail(ctx context.Context, workID string, r lifecycle.Request, f Failure) (View, error) {
	report := callbacks.Report{
		Status: statemachine.ResultFailedFinal, ErrorCode: f.Code, ErrorMessage: f.Message, RetryAfter: f.RetryAfter,
	}
	failure := lifecycle.Failure{Code: "failed_final", Message: f.Message}
	if f.Retryable {
		report.Status, failure.Code = statemachine.ResultFailedRetry, "failed_retry"
	}
	if f.Code != "" {
		failure.Code = f.Code
	}
	move := func(item lifecycle.Item, r lifecycle.Request, _ time.Time) (lifecycle.Change, error) {
		return lifecycle.Fail(item, r, failure, now())
	}
	return q.report(ctx, workID, r, q.result(report), move)
}

// result is the bring of a RESULT.
func (q *Queue) result(report callbacks.Report) bring {
	return func(ctx context.Context, id callbacks.Identity, opts ...ledger.Option) (callbacks.Answer, error) {
		return q.callbacks.Result(ctx, id, report, opts...)
	}
}

// report carries a worker's verb out: the item is asked first whether it may
// be moved, the ledger is told, and the item follows in the same change.
func (q *Queue) report(ctx context.Context, workID string, r lifecycle.Request, bring bring, move move) (View, error) {
	one, err := q.storage.load(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	checked, err := move(one.item, r, now().Add(time.Hour))
	if err != nil {
		return View{}, asProblem(err)
	}
	if checked.Repeat {
		return q.view(ctx, one)
	}
	m := &mover{q: q, one: one, request: r, move: move}
	identity := callbacks.Identity{
		JobID: one.item.JobID, StepID: one.item.StepID, TenantID: one.item.TenantID,
		Pair:  statemachine.Pair{AttemptNo: one.item.AttemptNo, LeaseID: one.item.LeaseID},
		Actor: r.Actor, RequestID: r.ID,
	}
	answer, err := bring(ctx, identity, ledger.With(m.post, m.again))
	if err != nil {
		return View{}, asProblem(q.refused(ctx, one, err))
	}
	if answer.Outcome == statemachine.Duplicate {
		// The ledger heard of it another way, so nothing has moved the item yet.
		if err := m.alone(ctx, answer.Job); err != nil {
			return View{}, asProblem(err)
		}
	}
	if answer.PostErr != nil {
		m.done = false // What was to be moved may not have been.
	}
	view, err := q.reread(ctx, workID, m)
	view.CancelRequested = answer.CancelRequested
	return view, err
}

// refused lets the item follow a ledger that knows better, and returns the
// refusal.
func (q *Queue) refused(ctx context.Context, one *stored, refusal error) error {
	var known *problem.Error
	if !errors.As(refusal, &known) || known.Code.Status() != 409 {
		return refusal
	}
	agg, err := q.ledger.Job(ctx, one.item.JobID)
	if err != nil {
		return errors.Join(refusal, err)
	}
	batches, err := q.storage.followStep(ctx, agg.Job.ID, &agg.Steps[one.id.StepIndex])
	if err != nil {
		return errors.Join(refusal, err)
	}
	if err := q.storage.commitEach(ctx, batches); err != nil {
		return errors.Join(refusal, err)
	}
	return refusal
}

// reread returns the item as it is after the move.
func (q *Queue) reread(ctx context.Context, workID string, m *mover) (View, error) {
	if !m.done {
		return q.Get(ctx, workID)
	}
	return q.view(ctx, &stored{item: m.moved, id: m.one.id})
}

// Get returns an item. The errors are [*problem.Error]s.
func (q *Queue) Get(ctx context.Context, workID string) (View, error) {
	one, err := q.storage.load(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	return q.view(ctx, one)
}

// view adds the directive, without the lease id.
func (q *Queue) view(ctx context.Context, one *stored) (View, error) {
	directive, err := q.storage.message(ctx, one.id, one.item.AttemptNo)
	if err != nil {
		return View{}, asProblem(err)
	}
	redacted, err := statemachine.WithoutLease(directive)
	if err != nil {
		return View{}, err
	}
	return View{Item: one.item, Directive: redacted}, nil
}

// Events returns one page of an item's history with rev > after, oldest first,
// and the rev to go on after, 0 at the end. The errors are [*problem.Error]s.
func (q *Queue) Events(ctx context.Context, workID string, after int64, limit int) ([]lifecycle.Event, int64, error) {
	events, next, err := q.storage.history(ctx, workID, after, limit)
	if err == nil && len(events) == 0 {
		_, err = q.storage.load(ctx, workID)
	}
	return events, next, asProblem(err)
}

// Stall is an operator who takes an item from its worker. It spends no budget.
// The errors are [*problem.Error]s.
func (q *Queue) Stall(ctx context.Context, workID string, r lifecycle.Request) (View, error) {
	stall := func(ctx context.Context, id callbacks.Identity, opts ...ledger.Option) (callbacks.Answer, error) {
		event := statemachine.Stall{StepID: id.StepID, AttemptNo: id.Pair.AttemptNo}
		result, err := q.ledger.Change(ctx, id.JobID, event, append(opts, ledger.By(id.Actor, id.RequestID))...)
		if err != nil {
			return callbacks.Answer{}, err
		}
		return callbacks.Answer{Outcome: result.Outcome, Job: &result.Job, PostErr: result.PostErr}, result.Problem()
	}
	return q.report(ctx, workID, r, stall, func(item lifecycle.Item, r lifecycle.Request, _ time.Time) (lifecycle.Change, error) {
		return lifecycle.Stall(item, r, now())
	})
}

// Requeue is an operator who offers a stalled item again now: the step's next
// attempt is dispatched, and comes back as the same item. It spends no budget.
// The errors are [*problem.Error]s.
func (q *Queue) Requeue(ctx context.Context, workID string, r lifecycle.Request) (View, error) {
	one, err := q.storage.load(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	if one.item.Rev != r.ExpectedRev {
		return View{}, asProblem(lifecycle.ErrRevConflict)
	}
	if one.item.Status != lifecycle.StatusStalled {
		return View{}, asProblem(lifecycle.ErrIllegalTransition)
	}
	event := statemachine.Retry{StepID: one.item.StepID}
	result, err := q.ledger.Change(ctx, one.item.JobID, event, ledger.By(r.Actor, r.ID))
	if err == nil {
		err = result.Problem()
	}
	if err != nil {
		return View{}, asProblem(err)
	}
	return q.view(ctx, one)
}

// move is an item's move under a lease that the ledger has given.
type move func(item lifecycle.Item, r lifecycle.Request, lease time.Time) (lifecycle.Change, error)

// mover makes the item's part of a ledger's change.
type mover struct {
	q       *Queue
	one     *stored
	request lifecycle.Request
	move    move
	tries   int
	moved   lifecycle.Item
	done    bool
}

// post is the item's writes behind the change. A later try of the ledger's
// loop looks at the item anew.
func (m *mover) post(ctx context.Context, _, after *statemachine.Aggregate) ([]tablestore.Batch, error) {
	if m.tries++; m.tries > 1 {
		one, err := m.q.storage.load(ctx, m.one.item.WorkID)
		if err != nil {
			return nil, err
		}
		m.one = one
	}
	lease := after.Steps[m.one.id.StepIndex].LeaseExpiresAt
	change, err := m.move(m.one.item, m.request, lease)
	if err != nil {
		return nil, err
	}
	m.moved, m.done = change.Item, true
	if change.Repeat {
		return nil, nil
	}
	return m.q.storage.writes(m.one, change), nil
}

// again is the item's writes after it lost a race that the ledger had decided
// already: the move is made from whatever the item is now, and where that is
// not possible the item follows its step.
func (m *mover) again(ctx context.Context, _, after *statemachine.Aggregate) ([]tablestore.Batch, error) {
	one, err := m.q.storage.load(ctx, m.one.item.WorkID)
	if err != nil {
		return nil, err
	}
	m.one = one
	step := &after.Steps[one.id.StepIndex]
	request := m.request
	request.ExpectedRev = one.item.Rev
	change, err := m.move(one.item, request, step.LeaseExpiresAt)
	if err != nil {
		m.done = false
		return m.q.storage.followStep(ctx, after.Job.ID, step)
	}
	m.moved, m.done = change.Item, true
	if change.Repeat {
		return nil, nil
	}
	return m.q.storage.writes(one, change), nil
}

// alone moves the item where the ledger needed no change. A step that has
// moved on takes the item along.
func (m *mover) alone(ctx context.Context, agg *statemachine.Aggregate) error {
	step := &agg.Steps[m.one.id.StepIndex]
	change, err := m.move(m.one.item, m.request, step.LeaseExpiresAt)
	var batches []tablestore.Batch
	switch {
	case err == nil && !change.Repeat:
		batches = m.q.storage.writes(m.one, change)
	case err != nil:
		if batches, err = m.q.storage.followStep(ctx, agg.Job.ID, step); err != nil {
			return err
		}
	}
	return m.q.storage.commitEach(ctx, batches)
}
