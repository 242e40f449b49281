package lifecycle

import (
	"fmt"
	"time"
)

// Stall takes the item from an owner who is no longer trusted. It needs no
// owner, but the rev: a heartbeat that came in meanwhile wins.
//
// Source: Job lifecycle plan 02, Allowed transitions, Stall.
func Stall(item Item, request Request, now time.Time) (Change, error) {
	return apply(item, OpStall, request, now, func(*Item) error { return nil })
}

// Requeue offers a stalled item again, with the directive of the next attempt.
// The directive must be newer than the one that the item carries, so that no
// two workers ever hold one pair; else it is an [ErrInvalidRequest]. Attempt,
// rev and what is remembered go on.
//
// Source: Job lifecycle plan 02, Allowed transitions, Requeue.
func Requeue(item Item, request Request, next Directive, now time.Time) (Change, error) {
	if err := next.validate(); err != nil {
		return Change{}, err
	}
	return apply(item, OpRequeueStalled, request, now, func(i *Item) error {
		if err := next.follows(i); err != nil {
			return err
		}
		i.carry(next)
		return nil
	})
}

// follows checks that nothing of the item's directive is used again.
func (d Directive) follows(item *Item) error {
	switch {
	case d.AttemptNo <= item.AttemptNo:
		reason := fmt.Sprintf("must be above %d", item.AttemptNo)
		return &RequestError{Field: "attempt_no", Reason: reason}
	case d.MessageID == item.MessageID:
		return &RequestError{Field: "message_id", Reason: "must not be the one that the item carries"}
	case d.LeaseID == item.LeaseID:
		return &RequestError{Field: "lease_id", Reason: "must not be the one that the item carries"}
	}
	return nil
}

// Remove drops the item from its queue: as retention and not as a transition,
// but with an event, the last of its history. Item in the change is the item as
// it was, for the caller to delete. It takes an item in any status but running,
// which is a worker's business and ends or is stalled first
// ([ErrIllegalTransition]). There is nothing left to remember a request in, so
// a repeat finds no item.
func Remove(item Item, request Request, now time.Time) (Change, error) {
	if err := request.validate(""); err != nil {
		return Change{}, err
	}
	if err := item.expect(request.ExpectedRev); err != nil {
		return Change{}, err
	}
	if !item.Status.removable() {
		return Change{}, item.refuse("removal")
	}
	removed := item
	removed.Rev++
	gone := Transition{From: item.Status, To: StatusNone, Event: EventRemoved}
	return Change{Item: item, Events: []Event{removed.event(gone, request, now)}}, nil
}

// removable reports whether an item in this status may be removed.
func (s Status) removable() bool { return s != StatusRunning && s != StatusNone }
