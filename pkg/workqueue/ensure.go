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

// Ensure makes sure that a directive which the ledger says waits for a worker
// can be claimed, and reports whether that was not so: its item was lost, or the
// hint to it. A directive that has moved on meanwhile is left alone.
func (q *Queue) Ensure(ctx context.Context, m *ledger.Message) (missing bool, err error) {
	items, err := q.storage.items(ctx, m.JobID, m.StepIndex)
	if err != nil {
		return false, err
	}
	for _, one := range items {
		if one.item.AttemptNo == m.AttemptNo {
			return q.ensureHint(ctx, one)
		}
	}
	waits, err := q.waits(ctx, m)
	if err != nil || !waits {
		return false, err
	}
	return true, q.restore(ctx, m)
}

// ensureHint writes the hint to a queued item again where it is missing.
func (q *Queue) ensureHint(ctx context.Context, one *stored) (missing bool, err error) {
	if one.item.Status != lifecycle.StatusQueued {
		return false, nil
	}
	_, err = q.storage.store.Get(ctx, q.storage.hintKey(refOf(&one.item)))
	if err == nil || !errors.Is(err, tablestore.ErrNotFound) {
		return false, err
	}
	for _, stage := range q.storage.hint(&one.item) {
		if err := q.storage.commitEach(ctx, stage); err != nil {
			return false, err
		}
	}
	q.ready.add(refOf(&one.item))
	return true, nil
}

// waits asks the ledger whether that attempt still waits for a worker.
func (q *Queue) waits(ctx context.Context, m *ledger.Message) (bool, error) {
	agg, err := q.ledger.Job(ctx, m.JobID)
	if errors.Is(err, ledger.ErrJobNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ensure %s: %w", m.MessageID(), err)
	}
	step := &agg.Steps[m.StepIndex]
	return step.State == statemachine.StepAwaitingAck && step.AttemptNo == m.AttemptNo && step.LeaseExpiresAt.IsZero(), nil
}

// restore enqueues a directive whose item was lost. Its bytes may still be there,
// and stay as they are.
func (q *Queue) restore(ctx context.Context, m *ledger.Message) error {
	id := workID{JobID: m.JobID, StepIndex: m.StepIndex, FirstAttempt: m.AttemptNo}
	change, err := lifecycle.Enqueue(nil, itemName(id), ledger.ActorSystem, messageOf(m), now())
	if err != nil {
		return fmt.Errorf("ensure %s: %w", m.MessageID(), err)
	}
	s := q.storage
	directive := s.messageRow(id, m.AttemptNo, m.Directive)
	directive.Verb = tablestore.Put
	_, err = tablestore.Apply(ctx, s.store, tablestore.Change{Pre: s.hint(&change.Item), Commit: tablestore.Batch{
		{Verb: tablestore.Insert, Key: s.itemKey(id), Properties: encodeItem(&change.Item, nil)}, directive,
	}})
	if _, conflict := tablestore.IsConflict(err); conflict {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ensure %s: %w", m.MessageID(), err)
	}
	q.ready.add(refOf(&change.Item))
	return nil
}
