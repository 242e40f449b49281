package workqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// mark is an operator's request on a stalled item: the directive that comes to
// it next is its answer, whoever publishes that.
type mark struct{ actor, id string }

func decodeMark(p tablestore.Properties) mark {
	return mark{actor: p.Get("requeue_actor").String(), id: p.Get("requeue_id").String()}
}

// marked is the write of an item as it is, with the mark. It is no move.
func (s *Storage) marked(one *stored, m mark) tablestore.Batch {
	properties := encodeItem(&one.item, one.row.Properties)
	return tablestore.Batch{{
		Verb: tablestore.Replace, Key: s.itemKey(one.id), ETag: one.row.ETag,
		Properties: append(properties,
			tablestore.Property{Name: "requeue_actor", Value: tablestore.String(m.actor)},
			tablestore.Property{Name: "requeue_id", Value: tablestore.String(m.id)},
		),
	}}
}

// Requeue is an operator who offers a stalled item again now: the step's next
// attempt is dispatched, and comes back as the same item, in the operator's
// name. It spends no budget. The item that it returns is queued, or still
// stalled where the directive is the relay's to publish. The errors are
// [*problem.Error]s.
func (q *Queue) Requeue(ctx context.Context, workID string, r lifecycle.Request) (View, error) {
	release, err := q.turns.take(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	defer release()
	a, err := q.admit(ctx, workID, lifecycle.OpRequeueStalled, r)
	if err != nil {
		return View{}, asProblem(err)
	}
	if a.repeat {
		return q.view(ctx, a.one)
	}
	if err := q.redispatch(ctx, a); err != nil {
		return View{}, asProblem(err)
	}
	one, err := q.load(ctx, workID)
	if err != nil {
		return View{}, asProblem(err)
	}
	return q.view(ctx, one)
}

// redispatch asks the ledger for the step's next attempt, once for a request,
// and marks the item. A directive that is made by it is enqueued at once; one
// that was there before is the relay's.
func (q *Queue) redispatch(ctx context.Context, a admitted) error {
	agg, err := q.ledger.Job(ctx, a.one.item.JobID)
	if err != nil {
		return err
	}
	known, err := q.applied(ctx, agg, a.one, lifecycle.OpRequeueStalled, a.request)
	if err != nil {
		return err
	}
	m := &marker{q: q, one: a.one, request: a.request}
	if known {
		return m.settle(ctx)
	}
	event := statemachine.Retry{StepID: a.one.item.StepID}
	result, err := q.ledger.Change(ctx, a.one.item.JobID, event, ledger.By(a.request.Actor, a.request.ID),
		ledger.InTenant(a.one.item.TenantID), ledger.With(m.post, m.again))
	if errors.Is(err, errRepeated) {
		return nil
	}
	if err == nil {
		err = result.Problem()
	}
	if err != nil {
		return err
	}
	if result.PostErr != nil {
		if err := m.settle(ctx); err != nil {
			return err
		}
	}
	if result.Message == nil {
		return nil
	}
	if err := q.enqueue(ctx, result.Message); err != nil {
		q.logger.WarnContext(ctx, "requeue left to the relay", "workId", a.one.item.WorkID, "error", err)
	}
	return nil
}

// errRepeated ends a change of the ledger for a request that was carried out while
// it was being decided: the same one, sent twice.
var errRepeated = errors.New("the request was carried out before")

// marker marks an item within a ledger's change.
type marker struct {
	q       *Queue
	one     *stored
	request lifecycle.Request
}

// post is the mark's write. The item is looked at anew: a step that waits to be
// dispatched does not tell whether the item has its directive by now.
func (m *marker) post(ctx context.Context, _, _ *statemachine.Aggregate) ([]tablestore.Batch, error) {
	one, err := m.q.storage.load(ctx, m.one.item.WorkID)
	if err != nil {
		return nil, err
	}
	repeat, err := lifecycle.Check(one.item, lifecycle.OpRequeueStalled, m.request)
	if err != nil {
		return nil, err
	}
	if repeat {
		return nil, errRepeated
	}
	m.one = one
	return []tablestore.Batch{m.q.storage.marked(one, mark{m.request.Actor, m.request.ID})}, nil
}

func (m *marker) again(ctx context.Context, _, _ *statemachine.Aggregate) ([]tablestore.Batch, error) {
	return nil, m.settle(ctx)
}

// settle marks the item where the ledger has decided and the mark was lost. One
// that has its directive by now needs none.
func (m *marker) settle(ctx context.Context) error {
	for range maxTries {
		one, err := m.q.storage.load(ctx, m.one.item.WorkID)
		if err != nil || one.item.Status != lifecycle.StatusStalled {
			return err
		}
		_, err = m.q.storage.store.Commit(ctx, m.q.storage.marked(one, mark{m.request.Actor, m.request.ID}))
		if _, conflict := tablestore.IsConflict(err); conflict {
			continue
		}
		if err != nil {
			return fmt.Errorf("mark work item %s: %w", one.item.WorkID, err)
		}
		return nil
	}
	return fmt.Errorf("mark work item %s: lost %d races: %w", m.one.item.WorkID, maxTries, tablestore.ErrUnknown)
}
