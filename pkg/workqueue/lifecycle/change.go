package lifecycle

import (
	"fmt"
	"time"
)

// Change is what a move makes of an item. The caller writes Item and Events in
// one atomic step, on the condition that the item in its storage is still the
// one that it passed in.
type Change struct {
	// Item is the item after the move.
	Item Item
	// Events are what the move adds to the item's history, in the order of their
	// revs.
	Events []Event
	// Repeat says that the request had been accepted before: Item is the item as
	// it was passed in, Events is empty, and there is nothing to write.
	Repeat bool
}

// Event is one entry of an item's history.
//
// Source: Job lifecycle plan 02, Event semantics.
type Event struct {
	WorkID string
	// Rev is the item's revision that the move made; no two events of an item
	// share one.
	Rev  int64
	Type EventType
	From Status
	To   Status
	At   time.Time
	// Actor is who made the move.
	Actor string
	// RequestID is the request that asked for it; empty for an enqueue.
	RequestID string
	// Attempt is the item's after the move.
	Attempt int
}

// Check answers a request without making its move: whether it repeats one that
// was accepted before, or else the refusal that the move would meet. What the
// move itself carries, such as a result, is not looked at. Errors are those of
// the package comment.
func Check(item Item, operation Operation, request Request) (repeat bool, err error) {
	_, repeat, err = admit(&item, operation, request)
	return repeat, err
}

// admit answers for the request whether the operation may move the item, and
// how; repeat says that it has done so before. The order of the questions is
// that of the package comment.
func admit(item *Item, operation Operation, request Request) (move Transition, repeat bool, err error) {
	if err := request.validate(operation); err != nil {
		return Transition{}, false, err
	}
	if repeat, err = request.repeats(item, operation); repeat || err != nil {
		return Transition{}, repeat, err
	}
	if operation.ownerOnly() && item.Owner != "" && item.Owner != request.Actor {
		return Transition{}, false, fmt.Errorf("%w: %s of work item %s by %q", ErrNotOwner, operation, item.WorkID, request.Actor)
	}
	if err := item.expect(request.ExpectedRev); err != nil {
		return Transition{}, false, err
	}
	move, ok := Lookup(operation, item.Status)
	if !ok {
		return Transition{}, false, item.refuse(string(operation))
	}
	return move, false, nil
}

func (i *Item) expect(rev int64) error {
	if i.Rev != rev {
		return fmt.Errorf("%w: work item %s is at rev %d, not at %d", ErrRevConflict, i.WorkID, i.Rev, rev)
	}
	return nil
}

func (i *Item) refuse(what string) error {
	return fmt.Errorf("%w: %s of work item %s, which is %s", ErrIllegalTransition, what, i.WorkID, i.Status)
}

// apply makes the operation's move for the request. What the operation itself
// changes is edit's business; it sees the item in its new status, and an error
// of it refuses the move.
func apply(item Item, operation Operation, request Request, now time.Time, edit func(*Item) error) (Change, error) {
	move, repeat, err := admit(&item, operation, request)
	if err != nil {
		return Change{}, err
	}
	if repeat {
		return Change{Item: item, Repeat: true}, nil
	}
	before := item.LeaseExpiresAt
	item.enter(move, now)
	if err := edit(&item); err != nil {
		return Change{}, err
	}
	item.remember(Remembered{
		Actor: request.Actor, RequestID: request.ID, Operation: operation,
		ExpiresAt: memoryEnd(before, item.LeaseExpiresAt, now),
	}, now)
	return Change{Item: item, Events: []Event{item.event(move, request, now)}}, nil
}

// enter moves the item along the transition, with all that holds for each move:
// one more rev, one more attempt exactly on entering claimed by a claim, and no
// owner or lease where the new status has none.
func (i *Item) enter(move Transition, now time.Time) {
	i.Status = move.To
	i.Rev++
	i.UpdatedAt = now
	if move.Operation == OpClaimNext {
		i.Attempt++
	}
	if !move.To.Held() {
		i.Owner, i.LeaseExpiresAt = "", time.Time{}
	}
	if move.To != StatusClaimed {
		i.ClaimLease = 0
	}
}

// event is the entry for the move that the item has just made.
func (i *Item) event(move Transition, request Request, now time.Time) Event {
	return Event{
		WorkID: i.WorkID, Rev: i.Rev, Type: move.Event, From: move.From, To: move.To,
		At: now, Actor: request.Actor, RequestID: request.ID, Attempt: i.Attempt,
	}
}
