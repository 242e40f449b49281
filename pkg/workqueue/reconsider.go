package workqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// reconsider judges a request again that would be refused: the item may have
// missed what the ledger decided, because its write was lost. It follows first.
// A request that the ledger has carried out is a repeat, also where the item
// never got to remember it. An owner's request for the rev of the item that was
// left behind goes on from where the item is then, while that carries the same
// attempt: nobody but its own reports has moved it.
func (q *Queue) reconsider(ctx context.Context, a admitted, operation lifecycle.Operation, refusal error) (admitted, error) {
	agg, err := q.ledger.Job(ctx, a.one.item.JobID)
	if errors.Is(err, ledger.ErrJobNotFound) {
		return a, refusal
	}
	if err != nil {
		return a, err
	}
	known, err := q.applied(ctx, agg, a.one, operation, a.request)
	if err != nil {
		return a, err
	}
	one, err := q.follow(ctx, a.one, agg)
	if err != nil {
		return a, err
	}
	after := admitted{one: one, request: a.request, repeat: known}
	if known {
		return after, nil
	}
	same := one.item.AttemptNo == a.one.item.AttemptNo // The owner may have the next one by now.
	if same && a.request.ExpectedRev == a.one.item.Rev && a.request.Actor == a.one.item.Owner {
		after.request.ExpectedRev = one.item.Rev
	}
	after.repeat, err = lifecycle.Check(one.item, operation, after.request)
	return after, err
}

// follow makes an item follow its step, as far as that is behind, and returns
// it as it is then.
func (q *Queue) follow(ctx context.Context, one *stored, agg *statemachine.Aggregate) (*stored, error) {
	step := &agg.Steps[one.id.StepIndex]
	for range maxTries {
		batches, err := q.storage.followItem(one, step)
		if err != nil || len(batches) == 0 {
			return one, err
		}
		if err := q.storage.commitEach(ctx, batches); err != nil {
			return one, err
		}
		if one, err = q.storage.load(ctx, one.item.WorkID); err != nil {
			return one, err
		}
	}
	return one, fmt.Errorf("follow job %s: lost %d races: %w", agg.Job.ID, maxTries, tablestore.ErrUnknown)
}

// lookBack is how many of a job's last changes are looked through for a
// request. Heartbeats are none.
const lookBack = 64

// applied reports whether the job's journal has the request among its last
// changes: as that operation, on an attempt that the item was for.
func (q *Queue) applied(ctx context.Context, agg *statemachine.Aggregate, one *stored, operation lifecycle.Operation,
	r lifecycle.Request,
) (bool, error) {
	after := max(0, agg.Job.Rev-lookBack)
	for {
		entries, next, err := q.ledger.History(ctx, agg.Job.ID, after, lookBack)
		if err != nil {
			return false, err
		}
		for i := range entries {
			e := &entries[i]
			if e.Actor == r.Actor && e.RequestID == r.ID && one.tells(e, operation) {
				return true, nil
			}
		}
		if next == 0 {
			return false, nil
		}
		after = next
	}
}

// tells reports whether the entry is what the operation on that item leaves in
// the journal.
func (one *stored) tells(e *ledger.HistoryEntry, operation lifecycle.Operation) bool {
	if e.AttemptNo < one.id.FirstAttempt {
		return false
	}
	to := statemachine.StepState(e.To)
	if operation == lifecycle.OpRequeueStalled {
		// The next attempt, or a row that waited to be sent and became due.
		ofStep := e.ID == one.item.StepID || strings.HasPrefix(e.ID, fmt.Sprintf("%s.%d.", one.item.JobID, one.id.StepIndex))
		return ofStep && (e.Type == statemachine.EventStepRetryNow || e.Type == statemachine.EventOutboxDue)
	}
	if e.Object != statemachine.ObjectStep || e.ID != one.item.StepID || e.AttemptNo > one.item.AttemptNo {
		return false
	}
	switch operation {
	case lifecycle.OpClaimNext:
		return e.Type == statemachine.EventStepClaimed || to == statemachine.StepInProgress
	case lifecycle.OpStart:
		return to == statemachine.StepInProgress
	case lifecycle.OpComplete:
		return to == statemachine.StepSucceeded
	case lifecycle.OpFail, lifecycle.OpStall:
		return to == statemachine.StepFailedRetry || to == statemachine.StepFailedFinal || to == statemachine.StepCancelled
	case lifecycle.OpEnqueue, lifecycle.OpHeartbeat, lifecycle.OpRequeueStalled:
	}
	return false
}

// isRefusal reports whether the item, by its rules, would not make the move.
func isRefusal(err error) bool {
	return errors.Is(err, lifecycle.ErrNotOwner) || errors.Is(err, lifecycle.ErrRevConflict) ||
		errors.Is(err, lifecycle.ErrIllegalTransition) || errors.Is(err, lifecycle.ErrInvalidRequest) ||
		errors.Is(err, lifecycle.ErrNotFound)
}
