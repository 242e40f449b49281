package workqueue

import (
	"context"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// View is an item as callers see it.
type View struct {
	Item lifecycle.Item
	// Directive is the message body. Only a claim's holds the lease id, which is
	// a capability.
	Directive []byte
	// CancelRequested tells the worker that nobody waits for its result.
	CancelRequested bool
}

// Get returns an item. The errors are [*problem.Error]s.
func (q *Queue) Get(ctx context.Context, workID string) (View, error) {
	one, err := q.load(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	return q.view(ctx, one)
}

// Events returns one page of an item's history with rev > after, oldest first,
// and the rev to go on after, 0 at the end. The errors are [*problem.Error]s.
func (q *Queue) Events(ctx context.Context, workID string, after int64, limit int) ([]lifecycle.Event, int64, error) {
	events, next, err := q.storage.history(ctx, workID, after, limit)
	if err == nil && (len(events) == 0 || q.caller.limited()) {
		_, err = q.load(ctx, workID)
	}
	if err != nil {
		return nil, 0, asProblem(err)
	}
	return events, next, nil
}

// load reads an item that the caller may see; any other is
// [lifecycle.ErrNotFound], as if it were not there.
func (q *Queue) load(ctx context.Context, workID string) (*stored, error) {
	one, err := q.storage.load(ctx, workID)
	if err != nil {
		return nil, err
	}
	if !q.caller.sees(one.item.TenantID, one.item.Service) {
		return nil, lifecycle.ErrNotFound
	}
	return one, nil
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
