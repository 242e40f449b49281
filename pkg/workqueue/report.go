package workqueue

import (
	"context"
	"errors"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// report carries a verb out: the item is asked first whether it may be moved,
// the ledger is told, and the item follows in the same change. Where the two
// were torn apart before, the item catches up first, and the request is judged
// by what it shows then.
func (q *Queue) report(ctx context.Context, workID string, r lifecycle.Request, v verb) (View, error) {
	release, err := q.turns.take(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	defer release()
	a, err := q.admit(ctx, workID, v.operation, r)
	if err != nil {
		return View{}, asProblem(err)
	}
	if a.repeat {
		return q.view(ctx, a.one)
	}
	m, answer, err := q.tell(ctx, a, &v)
	if errors.Is(err, errBehind) {
		if a, err = q.reconsider(ctx, a, v.operation, err); err == nil && !a.repeat {
			m, answer, err = q.tell(ctx, a, &v)
		}
	}
	if err == nil && a.repeat {
		return q.view(ctx, a.one)
	}
	if err != nil {
		return q.refuse(ctx, a, &v, err)
	}
	if err := q.settle(ctx, a, m, &answer); err != nil {
		return View{}, asProblem(err)
	}
	view, err := q.view(ctx, &stored{item: m.moved, id: m.one.id})
	view.CancelRequested = answer.CancelRequested
	return view, err
}

// admitted is a request as it stands to its item.
type admitted struct {
	one     *stored
	request lifecycle.Request
	repeat  bool // it was carried out before
}

// admit reads the item and asks it whether the request may move it.
func (q *Queue) admit(ctx context.Context, workID string, operation lifecycle.Operation, r lifecycle.Request,
) (admitted, error) {
	one, err := q.load(ctx, workID)
	if err != nil {
		return admitted{}, err
	}
	a := admitted{one: one, request: r}
	a.repeat, err = lifecycle.Check(one.item, operation, r)
	if err == nil || errors.Is(err, lifecycle.ErrInvalidRequest) {
		return a, err
	}
	return q.reconsider(ctx, a, operation, err)
}

// tell brings the verb to the ledger, with the item's move behind it.
func (q *Queue) tell(ctx context.Context, a admitted, v *verb) (*mover, callbacks.Answer, error) {
	one := a.one
	m := &mover{q: q, one: one, operation: v.operation, request: a.request, move: v.move, at: now()}
	id := callbacks.Identity{
		JobID: one.item.JobID, StepID: one.item.StepID, TenantID: one.item.TenantID,
		Pair:  statemachine.Pair{AttemptNo: one.item.AttemptNo, LeaseID: one.item.LeaseID},
		Actor: a.request.Actor, RequestID: a.request.ID,
	}
	answer, err := v.bring(ctx, one, id, m.at, []ledger.Option{ledger.With(m.post, m.again)})
	return m, answer, err
}

// refuse answers a verb that the ledger refused, or that never came to it. An
// item that the ledger knows better of follows it, and a request that was
// carried out before is answered as it was then.
func (q *Queue) refuse(ctx context.Context, a admitted, v *verb, refusal error) (View, error) {
	var known *problem.Error
	if !errors.As(refusal, &known) || known.Code.Status() != 409 {
		return View{}, asProblem(refusal)
	}
	after, err := q.reconsider(ctx, a, v.operation, refusal)
	switch {
	case err == nil && after.repeat:
		return q.view(ctx, after.one)
	case err != nil && !isRefusal(err) && !errors.Is(err, refusal):
		return View{}, asProblem(err)
	}
	return View{}, asProblem(refusal)
}

// settle sees to it that the item shows what the ledger has decided, where it
// may not yet. A report that the ledger had heard of before is this request's,
// or it is somebody else's and refused by what the item shows then.
func (q *Queue) settle(ctx context.Context, a admitted, m *mover, answer *callbacks.Answer) error {
	if answer.Outcome == statemachine.Duplicate {
		known, err := q.applied(ctx, answer.Job, a.one, m.operation, a.request)
		if err != nil {
			return err
		}
		if !known {
			one, err := q.follow(ctx, a.one, answer.Job)
			if err != nil {
				return err
			}
			if _, err := lifecycle.Check(one.item, m.operation, a.request); err != nil {
				return err
			}
		}
	}
	if answer.Outcome == statemachine.Duplicate || answer.PostErr != nil {
		return m.settle(ctx, answer.Job)
	}
	return nil
}
