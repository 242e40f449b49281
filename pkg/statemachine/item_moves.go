package statemachine

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// ItemChange is the effect of a move on an item. The caller writes Item and Events in
// one atomic step, provided that the stored item is still the one it passed in.
type ItemChange struct {
	// Item is the item after the move.
	Item Item
	// Events are what the move appends to the item's history, in the order of their
	// revs.
	Events []ItemEvent
	// Repeat says that the request was accepted before: Item is the item as it was
	// passed in, Events is empty, and there is nothing to write.
	Repeat bool
}

// ItemEvent is one entry of an item's history.
//
// Source: Job lifecycle plan 02, Event semantics.
type ItemEvent struct {
	WorkID string `json:"w"`
	// Rev is the item's revision that the move made, unique among the item's events.
	Rev   int64         `json:"v"`
	Type  ItemEventType `json:"t"`
	From  ItemStatus    `json:"f,omitempty"`
	To    ItemStatus    `json:"to,omitempty"`
	At    time.Time     `json:"-"` // of the change that made the move
	Actor string        `json:"a"`
	// RequestID is the request that asked for the move; empty for an enqueue. Reason is why
	// it did, if it says so.
	RequestID string `json:"r,omitempty"`
	Reason    string `json:"y,omitempty"`
	// Attempt is the item's after the move.
	Attempt int `json:"n"`
	// Caller names who sent the request that led to the move, if the queue knows it.
	Caller string `json:"-"`
}

// CheckItem evaluates a request without making its move: whether it repeats one that
// was accepted before, or else how the move would be refused. It does not look at
// what the move itself carries, such as a result.
func CheckItem(item Item, operation ItemOperation, request ItemRequest) (repeat bool, err error) {
	_, repeat, err = admitRequest(&item, operation, request)
	return repeat, err
}

// admitRequest returns the transition that the request may make, or repeat if it made it
// before. It checks in the order of the package comment.
func admitRequest(item *Item, operation ItemOperation, request ItemRequest) (move ItemTransition, repeat bool, err error) {
	if err := request.validate(operation); err != nil {
		return ItemTransition{}, false, err
	}
	if known := item.remembered(request.Actor, request.ID); known != nil {
		if known.Operation != operation {
			err = &ItemRequestError{Field: "request_id", Reason: "was already used for " + string(known.Operation)}
		}
		return ItemTransition{}, err == nil, err
	}
	if operation.OwnerOnly() && item.Owner != "" && !item.heldBy(request) {
		return ItemTransition{}, false, fmt.Errorf("%w: %s of work item %s by %q", ErrNotOwner, operation, item.WorkID, request.Actor)
	}
	if err := item.expect(request.ExpectedRev); err != nil {
		return ItemTransition{}, false, err
	}
	move, ok := LookupItemTransition(operation, item.Status)
	if !ok {
		return ItemTransition{}, false, item.refuse(string(operation))
	}
	return move, false, nil
}

func (i *Item) expect(rev int64) error {
	if i.Rev != rev {
		return &RevError{WorkID: i.WorkID, Rev: i.Rev, Expected: rev}
	}
	return nil
}

func (i *Item) refuse(what string) error {
	return fmt.Errorf("%w: %s of work item %s, which is %s", ErrIllegalTransition, what, i.WorkID, i.Status)
}

// applyToItem makes the operation's move for the request. edit makes the changes specific to the
// operation; it gets the item in its new status, and its error refuses the move.
func applyToItem(item Item, operation ItemOperation, request ItemRequest, now time.Time, edit func(*Item) error) (ItemChange, error) {
	move, repeat, err := admitRequest(&item, operation, request)
	if err != nil {
		return ItemChange{}, err
	}
	if repeat {
		return ItemChange{Item: item, Repeat: true}, nil
	}
	known := Remembered{
		Actor: request.Actor, RequestID: request.ID, Operation: operation, ExpiresAt: now.Add(MinMemory),
	}
	if item.LeaseExpiresAt.After(known.ExpiresAt) {
		known.ExpiresAt = item.LeaseExpiresAt
	}
	item.enter(move, now)
	if err := edit(&item); err != nil {
		return ItemChange{}, err
	}
	if item.LeaseExpiresAt.After(known.ExpiresAt) {
		known.ExpiresAt = item.LeaseExpiresAt
	}
	known.Rev, known.Attempt = item.Rev, item.Attempt
	item.remember(known, now)
	return ItemChange{Item: item, Events: []ItemEvent{item.event(move, request, now)}}, nil
}

// enter moves the item along the transition and applies the rules of every move: one
// more rev, one more attempt by a claim, and no owner or lease if the new status has
// none.
func (i *Item) enter(move ItemTransition, now time.Time) {
	i.Status = move.To
	i.Rev++
	i.UpdatedAt = now
	if move.Operation == OpClaimNext {
		i.Attempt++
	}
	if !move.To.Held() {
		i.Owner, i.LeaseExpiresAt = "", time.Time{}
	}
}

// remember adds a request and drops those that may be forgotten, in a new slice.
func (i *Item) remember(added Remembered, now time.Time) {
	kept := make([]Remembered, 0, len(i.Requests)+1)
	for _, known := range i.Requests {
		// Heartbeats extend the lease past the ExpiresAt of the moves before them, so the
		// moves of the current attempt are kept until it ends.
		current := known.Attempt == i.Attempt && known.Operation != OpHeartbeat
		if current || known.ExpiresAt.After(now) {
			kept = append(kept, known)
		}
	}
	if len(kept) >= MaxRemembered {
		oldest := max(0, slices.IndexFunc(kept, func(known Remembered) bool { return known.Operation == OpHeartbeat }))
		kept = slices.Delete(kept, oldest, oldest+1)
	}
	i.Requests = append(kept, added)
}

// event returns the history entry of the move that the item has just made.
func (i *Item) event(move ItemTransition, request ItemRequest, now time.Time) ItemEvent {
	return ItemEvent{
		WorkID: i.WorkID, Rev: i.Rev, Type: move.Event, From: move.From, To: move.To,
		At: now, Actor: request.Actor, RequestID: request.ID, Reason: request.Reason, Attempt: i.Attempt,
	}
}

// EnqueueItem makes an item of the message, queued under workID at rev 1 and attempt 0.
// existing is the item that the queue already has for the message, or nil: an
// existing item that covers the message makes the enqueue a repeat, whatever its
// status. It returns [ErrIllegalTransition] for an existing item that does not cover
// the message, because only a requeue gives an item another one, and
// [ErrInvalidRequest] for a message that lacks a field.
func EnqueueItem(existing *Item, workID, producer string, message ItemMessage, now time.Time) (ItemChange, error) {
	switch {
	case workID == "":
		return ItemChange{}, &ItemRequestError{Field: "work_id", Reason: "is required"}
	case producer == "":
		return ItemChange{}, &ItemRequestError{Field: "actor", Reason: "is required"}
	case message.DedupeKey == "":
		return ItemChange{}, &ItemRequestError{Field: "dedupe_key", Reason: "is required"}
	}
	if err := message.ItemDirective.validate(); err != nil {
		return ItemChange{}, err
	}
	if existing != nil {
		if !existing.Covers(message) {
			return ItemChange{}, existing.refuse(string(OpEnqueue) + " of message " + message.MessageID)
		}
		return ItemChange{Item: *existing, Repeat: true}, nil
	}
	item := Item{
		WorkID: workID, DedupeKey: message.DedupeKey,
		MessageID: message.MessageID, AttemptNo: message.AttemptNo, LeaseID: message.LeaseID,
		JobID: message.JobID, StepID: message.StepID, TenantID: message.TenantID,
		Service: message.Service, StepType: message.StepType, CreatedAt: now,
	}
	move, _ := LookupItemTransition(OpEnqueue, StatusNone)
	item.enter(move, now)
	return ItemChange{Item: item, Events: []ItemEvent{item.event(move, ItemRequest{Actor: producer}, now)}}, nil
}

func (d ItemDirective) validate() error {
	switch {
	case d.MessageID == "":
		return &ItemRequestError{Field: "message_id", Reason: "is required"}
	case d.AttemptNo < 1:
		return &ItemRequestError{Field: "attempt_no", Reason: "is required and at least 1"}
	case d.LeaseID == "":
		return &ItemRequestError{Field: "lease_id", Reason: "is required"}
	}
	return nil
}

// ClaimItem gives the item to the request's actor until leaseUntil, and counts one more
// attempt. It takes a queued item, or a stalled one: a queue that does not allow
// direct reclaim must not ask for that. Errors are those of the package comment; a
// zero leaseUntil is an [ErrInvalidRequest].
func ClaimItem(item Item, request ItemRequest, leaseUntil, now time.Time) (ItemChange, error) {
	return underLease(item, OpClaimNext, request, leaseUntil, now)
}

// ClaimAndStartItem claims the item and starts it in one change: two transitions with
// two events and two revs, under one request, which is remembered as the claim. The
// errors are those of [ClaimItem].
func ClaimAndStartItem(item Item, request ItemRequest, leaseUntil, now time.Time) (ItemChange, error) {
	claimed, err := ClaimItem(item, request, leaseUntil, now)
	if err != nil || claimed.Repeat {
		return claimed, err
	}
	running := claimed.Item
	move, _ := LookupItemTransition(OpStart, running.Status)
	running.enter(move, now)
	// The claim is the last request of a slice that this change allocated.
	running.Requests[len(running.Requests)-1].Rev = running.Rev
	return ItemChange{Item: running, Events: append(claimed.Events, running.event(move, request, now))}, nil
}

// StartItem says that the owner has begun with the work, and may go on until leaseUntil.
func StartItem(item Item, request ItemRequest, leaseUntil, now time.Time) (ItemChange, error) {
	return underLease(item, OpStart, request, leaseUntil, now)
}

// HeartbeatItem sets the lease of a claimed or running item to leaseUntil, even if that
// is earlier than before: the caller knows how far a lease may reach.
func HeartbeatItem(item Item, request ItemRequest, leaseUntil, now time.Time) (ItemChange, error) {
	return underLease(item, OpHeartbeat, request, leaseUntil, now)
}

// underLease makes a move after which the actor holds the item.
func underLease(item Item, operation ItemOperation, request ItemRequest, leaseUntil, now time.Time) (ItemChange, error) {
	if leaseUntil.IsZero() {
		return ItemChange{}, &ItemRequestError{Field: "lease", Reason: "is required"}
	}
	return applyToItem(item, operation, request, now, func(i *Item) error {
		i.Owner, i.LeaseExpiresAt = request.Actor, leaseUntil
		return nil
	})
}

// CompleteItem ends the item with a result, a JSON object, which is kept as it is.
func CompleteItem(item Item, request ItemRequest, result json.RawMessage, now time.Time) (ItemChange, error) {
	if !isObject(result) {
		return ItemChange{}, &ItemRequestError{Field: "result", Reason: "must be a JSON object"}
	}
	return applyToItem(item, OpComplete, request, now, func(i *Item) error {
		i.Result = slices.Clone(result)
		return nil
	})
}

// FailItem ends the item with an error, which needs a code: a queue whose workers need
// not give one sets it for them.
func FailItem(item Item, request ItemRequest, failure ItemFailure, now time.Time) (ItemChange, error) {
	if failure.Code == "" {
		return ItemChange{}, &ItemRequestError{Field: "error.code", Reason: "is required"}
	}
	return applyToItem(item, OpFail, request, now, func(i *Item) error {
		i.Error = &failure
		return nil
	})
}

// StallItem takes the item from an owner that is no longer trusted. It needs no owner,
// but the rev, so that a heartbeat that arrived before it wins.
func StallItem(item Item, request ItemRequest, now time.Time) (ItemChange, error) {
	return applyToItem(item, OpStall, request, now, func(*Item) error { return nil })
}

// RequeueItem offers a stalled item again, with the directive of the next attempt. The
// directive must be newer than the one that the item carries, so that no two workers
// ever hold one pair; else it is an [ErrInvalidRequest]. Attempt, rev and the
// remembered requests go on.
func RequeueItem(item Item, request ItemRequest, next ItemDirective, now time.Time) (ItemChange, error) {
	if err := next.validate(); err != nil {
		return ItemChange{}, err
	}
	return applyToItem(item, OpRequeueStalled, request, now, func(i *Item) error {
		switch {
		case next.AttemptNo <= i.AttemptNo:
			return &ItemRequestError{Field: "attempt_no", Reason: fmt.Sprintf("must be above %d", i.AttemptNo)}
		case next.MessageID == i.MessageID:
			return &ItemRequestError{Field: "message_id", Reason: "must not be the one that the item carries"}
		case next.LeaseID == i.LeaseID:
			return &ItemRequestError{Field: "lease_id", Reason: "must not be the one that the item carries"}
		}
		i.MessageID, i.AttemptNo, i.LeaseID = next.MessageID, next.AttemptNo, next.LeaseID
		return nil
	})
}

// RemoveItem drops the item from its queue. It is retention and not a transition, but
// appends the last event of the item's history. Item in the change is the item as it
// was, for the caller to delete. A running item must end or be stalled first
// ([ErrIllegalTransition]). A removed item remembers no request, so a repeat finds
// no item.
func RemoveItem(item Item, request ItemRequest, now time.Time) (ItemChange, error) {
	if err := request.validate(""); err != nil {
		return ItemChange{}, err
	}
	if err := item.expect(request.ExpectedRev); err != nil {
		return ItemChange{}, err
	}
	if !item.Status.removable() {
		return ItemChange{}, item.refuse("removal")
	}
	removed := item
	removed.Rev++
	gone := ItemTransition{From: item.Status, To: StatusNone, Event: ItemEventRemoved}
	return ItemChange{Item: item, Events: []ItemEvent{removed.event(gone, request, now)}}, nil
}
