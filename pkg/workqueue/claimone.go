package workqueue

import (
	"context"
	"errors"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// claimOne claims one item: the ledger decides, and the item follows in the
// same change. It returns nil for an item that cannot be had. Where the item
// was left behind by a claim of the same request, that claim is finished.
func (q *Queue) claimOne(ctx context.Context, r *ClaimRequest, item ref) (*View, error) {
	one, directive, err := q.claimable(ctx, item)
	if errors.Is(err, lifecycle.ErrNotFound) {
		return nil, nil
	}
	if one == nil || err != nil {
		return nil, err
	}
	m := q.claimer(r, one)
	opts := []ledger.Option{ledger.By(r.Owner, r.RequestID), ledger.With(m.post, m.again)}
	result, err := q.ledger.Change(ctx, one.item.JobID, claimEvent(r, one, m.at), opts...)
	switch {
	case isLostClaim(err):
		return nil, nil
	case err != nil:
		return nil, err
	case result.Outcome == statemachine.Applied && result.PostErr == nil:
		return m.held(r, directive), nil
	case result.Outcome != statemachine.Applied:
		known, err := q.applied(ctx, &result.Job, one, lifecycle.OpClaimNext, m.request)
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, q.drop(ctx, one, &result)
		}
	}
	if err := m.settle(ctx, &result.Job); err != nil {
		if errors.Is(err, lifecycle.ErrNotFound) {
			return nil, nil
		}
		return nil, err
	}
	return m.held(r, directive), nil
}

// held is the item that the claim got, nil where it went on to another attempt
// while the claim was being finished: that one is not the claimer's.
func (m *mover) held(r *ClaimRequest, directive []byte) *View {
	if !m.moved.HeldUnder(r.Owner, r.RequestID) {
		return nil
	}
	return &View{Item: m.moved, Directive: directive}
}

// claimer makes the item's part of a claim, with the memory of it.
func (q *Queue) claimer(r *ClaimRequest, one *stored) *mover {
	m := &mover{
		q: q, one: one, operation: lifecycle.OpClaimNext, move: lifecycle.Claim, at: now(),
		request: lifecycle.Request{Actor: r.Owner, ExpectedRev: one.item.Rev, ID: r.RequestID},
		memory:  func(moved *lifecycle.Item) tablestore.Batch { return q.storage.memory(r, moved) },
	}
	if r.Start {
		m.move = lifecycle.ClaimAndStart
	}
	return m
}

// claimEvent is what a claim is to the ledger: the delivery, which starts the
// ACK deadline, or with the start the ACK.
func claimEvent(r *ClaimRequest, one *stored, at time.Time) statemachine.Event {
	pair := statemachine.Pair{AttemptNo: one.item.AttemptNo, LeaseID: one.item.LeaseID}
	if r.Start {
		return statemachine.Ack{StepID: one.item.StepID, Pair: pair}
	}
	event := statemachine.Claimed{StepID: one.item.StepID, Pair: pair}
	if r.Lease > 0 {
		event.By = at.Add(r.Lease)
	}
	return event
}

// isLostClaim reports whether somebody else has the item, or nobody any more.
func isLostClaim(err error) bool {
	return isRefusal(err) || errors.Is(err, ledger.ErrJobNotFound)
}

// claimable reads an item and its directive, nil where it is not queued.
func (q *Queue) claimable(ctx context.Context, item ref) (*stored, []byte, error) {
	one, err := q.storage.load(ctx, item.workID)
	if errors.Is(err, lifecycle.ErrNotFound) || err == nil && one.item.Status != lifecycle.StatusQueued {
		return nil, nil, q.storage.dropHint(ctx, item)
	}
	if err != nil {
		return nil, nil, err
	}
	directive, err := q.storage.message(ctx, one.id, one.item.AttemptNo)
	return one, directive, err
}

// drop removes an item whose attempt the ledger does not know any more. One
// that is in somebody's hands, after a crash between ledger and item, is left
// until its deadline.
func (q *Queue) drop(ctx context.Context, one *stored, result *ledger.Result) error {
	if result.Code != statemachine.CodeStaleAttempt {
		return nil
	}
	batches, err := q.storage.remove(one)
	if err != nil {
		return err
	}
	return q.storage.commitEach(ctx, batches)
}
