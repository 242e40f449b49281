package workqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// errBehind is returned for an item that does not show what its step is: its
// last write was lost, or is another process's and on its way.
var errBehind = fmt.Errorf("%w: the item has still to follow its step", lifecycle.ErrRevConflict)

// move is an item's move at a time, under a lease that the ledger has given.
type move func(item lifecycle.Item, r lifecycle.Request, lease, at time.Time) (lifecycle.Change, error)

// mover makes the item's part of a ledger's change.
type mover struct {
	q         *Queue
	one       *stored
	operation lifecycle.Operation
	request   lifecycle.Request
	move      move
	at        time.Time
	// memory is the write that makes the move findable again, nil where nothing
	// does. It is right however often, and harmless where the move never comes.
	memory func(moved *lifecycle.Item) tablestore.Batch

	tries int
	moved lifecycle.Item
	// rest is what the move writes beside the item's own rows.
	rest []tablestore.Batch
}

// post is the item's writes behind the change. The item is looked at anew in a
// later try of the ledger's loop, and where the step as the ledger has it says
// that the item has moved, or should have: then nothing is changed.
func (m *mover) post(ctx context.Context, before, after *statemachine.Aggregate) ([]tablestore.Batch, error) {
	m.tries++
	if was := &before.Steps[m.one.id.StepIndex]; m.tries > 1 || !m.one.shows(was) || !m.one.leasedAs(was) {
		one, err := m.q.storage.load(ctx, m.one.item.WorkID)
		if err != nil {
			return nil, err
		}
		m.one = one
	}
	change, err := m.move(m.one.item, m.request, after.Steps[m.one.id.StepIndex].LeaseExpiresAt, m.at)
	if err != nil {
		return nil, err
	}
	m.moved = change.Item
	if change.Repeat {
		return nil, nil
	}
	if !m.one.shows(&before.Steps[m.one.id.StepIndex]) {
		return nil, errBehind
	}
	batches, err := m.writes(change, &after.Steps[m.one.id.StepIndex])
	if err != nil {
		return nil, err
	}
	if after.Job.State.Terminal() && after.Job.AttemptsTotal > 1 {
		others, err := m.q.storage.followEnd(ctx, after, m.one.item.WorkID)
		if err != nil {
			return nil, err
		}
		batches = append(batches, others...)
	}
	return m.remember(ctx, &change.Item, batches)
}

// remember adds the memory to the writes. Where the store can not apply them
// all at once, it is known written before the ledger is told: behind a crash in
// between, whoever asked for the move finds what there is of it.
func (m *mover) remember(ctx context.Context, moved *lifecycle.Item, batches []tablestore.Batch) ([]tablestore.Batch, error) {
	if m.memory == nil {
		return batches, nil
	}
	memory := m.memory(moved)
	if _, atomic := m.q.storage.store.(tablestore.AtomicStore); atomic {
		return append(batches, memory), nil
	}
	if _, err := m.q.storage.store.Commit(ctx, memory); err != nil {
		return nil, fmt.Errorf("remember the claim of work item %s: %w", moved.WorkID, err)
	}
	return batches, nil
}

// writes are the batches of the move: the item's own rows first. An item that is
// taken from its worker while its step ends is of no more use, and goes.
func (m *mover) writes(change lifecycle.Change, step *statemachine.Step) ([]tablestore.Batch, error) {
	batches := m.q.storage.writes(m.one, change)
	if change.Item.Status == lifecycle.StatusStalled && step.State.Terminal() {
		removed, err := lifecycle.Remove(change.Item, systemRequest(&change.Item), m.at)
		if err != nil {
			return nil, err
		}
		removed.Events = append(change.Events, removed.Events...)
		batches = m.q.storage.removal(m.one, removed)
	}
	m.rest = batches[1:]
	return batches, nil
}

// again is called where the ledger has decided and the item's writes then lost
// a race.
func (m *mover) again(ctx context.Context, _, after *statemachine.Aggregate) ([]tablestore.Batch, error) {
	return nil, m.settle(ctx, after)
}

// settle makes the item show what the ledger has decided, from whatever the
// item is by now: by the move where that is still possible, else by following
// its step. Nobody is refused any more, but for a heartbeat that lost a race:
// it leaves nothing to follow.
func (m *mover) settle(ctx context.Context, agg *statemachine.Aggregate) error {
	for range maxTries {
		done, err := m.settleOnce(ctx, agg)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("move work item %s: lost %d races: %w", m.one.item.WorkID, maxTries, tablestore.ErrUnknown)
}

func (m *mover) settleOnce(ctx context.Context, agg *statemachine.Aggregate) (done bool, err error) {
	one, err := m.q.storage.load(ctx, m.one.item.WorkID)
	if err != nil {
		return false, err
	}
	step := &agg.Steps[one.id.StepIndex]
	superseded := one.item.AttemptNo != m.one.item.AttemptNo
	m.one = one
	request := m.request
	if m.operation != lifecycle.OpHeartbeat {
		request.ExpectedRev = one.item.Rev
	}
	change, err := m.move(one.item, request, step.LeaseExpiresAt, m.at)
	switch {
	case err == nil && change.Repeat:
		m.moved = one.item
		m.finish(ctx)
		return true, nil
	case err != nil && m.operation == lifecycle.OpHeartbeat:
		return false, err
	case err != nil || superseded:
		followed, err := m.q.follow(ctx, one, agg)
		if err == nil {
			m.one, m.moved = followed, followed.item
		}
		return true, err
	}
	batches, err := m.writes(change, step)
	if err != nil {
		return false, err
	}
	_, err = m.q.storage.store.Commit(ctx, batches[0])
	if _, conflict := tablestore.IsConflict(err); conflict {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("move work item %s: %w", one.item.WorkID, err)
	}
	m.moved = change.Item
	m.finish(ctx)
	return true, nil
}

// finish writes what goes beside the item's own rows. What fails is found
// later: a hint to what is not queued is dropped by whoever meets it.
func (m *mover) finish(ctx context.Context) {
	if err := m.q.storage.commitEach(ctx, m.rest); err != nil {
		m.q.logger.WarnContext(ctx, "left behind after a move", "workId", m.one.item.WorkID, "error", err)
	}
}

// shows reports whether the item shows what its step is. One that is stalled or
// has ended waits for nothing that its step could tell.
func (one *stored) shows(step *statemachine.Step) bool {
	if step.AttemptNo != one.item.AttemptNo {
		return false
	}
	switch one.item.Status {
	case lifecycle.StatusQueued:
		return step.State == statemachine.StepDispatching ||
			step.State == statemachine.StepAwaitingAck && step.LeaseExpiresAt.IsZero()
	case lifecycle.StatusClaimed:
		return step.State == statemachine.StepAwaitingAck && !step.LeaseExpiresAt.IsZero()
	case lifecycle.StatusRunning:
		return step.State == statemachine.StepInProgress
	case lifecycle.StatusNone, lifecycle.StatusStalled, lifecycle.StatusSucceeded, lifecycle.StatusFailed:
	}
	return true
}

// leasedAs reports whether the item has its step's lease. Another one is a
// heartbeat under way, or one that did not come by way of the queue.
func (one *stored) leasedAs(step *statemachine.Step) bool {
	return !one.item.Status.Held() || one.item.LeaseExpiresAt.Equal(step.LeaseExpiresAt)
}
