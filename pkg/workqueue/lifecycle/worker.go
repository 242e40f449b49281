package lifecycle

import (
	"encoding/json"
	"slices"
	"time"
)

// Claim gives the item to the request's actor until leaseUntil, and counts one
// more attempt. It takes a queued item, or a stalled one in a queue that allows
// direct reclaim: one that does not must not ask. Errors are those of the
// package comment; a zero leaseUntil is an [ErrInvalidRequest].
//
// Source: Job lifecycle plan 02, Allowed transitions, Claim.
func Claim(item Item, request Request, leaseUntil, now time.Time) (Change, error) {
	change, err := underLease(item, OpClaimNext, request, leaseUntil, now)
	if err == nil && !change.Repeat {
		change.Item.ClaimLease = leaseUntil.Sub(now)
	}
	return change, err
}

// ClaimAndStart claims the item and starts it in one change: two transitions
// with two events and two revs, under one request, which is remembered as the
// claim. The errors are those of [Claim].
func ClaimAndStart(item Item, request Request, leaseUntil, now time.Time) (Change, error) {
	claimed, err := Claim(item, request, leaseUntil, now)
	if err != nil || claimed.Repeat {
		return claimed, err
	}
	running := claimed.Item
	move, _ := Lookup(OpStart, running.Status)
	running.enter(move, now)
	// The claim's record is the last one of a slice that is this change's own.
	running.Requests[len(running.Requests)-1].Rev = running.Rev
	return Change{Item: running, Events: append(claimed.Events, running.event(move, request, now))}, nil
}

// Start says that the owner has begun with the work, and may go on until
// leaseUntil.
//
// Source: Job lifecycle plan 02, Allowed transitions, Start.
func Start(item Item, request Request, leaseUntil, now time.Time) (Change, error) {
	return underLease(item, OpStart, request, leaseUntil, now)
}

// Heartbeat extends the lease to leaseUntil, of a claimed item as of a running
// one. The lease becomes what the caller says, even where that is less: how far
// it may reach is the caller's to know.
//
// Source: Job lifecycle plan 02, Allowed transitions, Heartbeat.
func Heartbeat(item Item, request Request, leaseUntil, now time.Time) (Change, error) {
	return underLease(item, OpHeartbeat, request, leaseUntil, now)
}

// underLease makes a move after which the actor holds the item.
func underLease(item Item, operation Operation, request Request, leaseUntil, now time.Time) (Change, error) {
	if leaseUntil.IsZero() {
		return Change{}, &RequestError{Field: "lease", Reason: "is required"}
	}
	return apply(item, operation, request, now, func(i *Item) error {
		i.Owner, i.LeaseExpiresAt = request.Actor, leaseUntil
		return nil
	})
}

// Complete ends the item with a result, a JSON object, which is kept as it is.
//
// Source: Job lifecycle plan 02, Allowed transitions, Complete.
func Complete(item Item, request Request, result json.RawMessage, now time.Time) (Change, error) {
	if !isObject(result) {
		return Change{}, &RequestError{Field: "result", Reason: "must be a JSON object"}
	}
	return apply(item, OpComplete, request, now, func(i *Item) error {
		i.Result = slices.Clone(result)
		return nil
	})
}

// Fail ends the item with an error. A queue whose workers need not give a code
// puts one in their place.
//
// Source: Job lifecycle plan 02, Allowed transitions, Fail.
func Fail(item Item, request Request, failure Failure, now time.Time) (Change, error) {
	if failure.Code == "" {
		return Change{}, &RequestError{Field: "error.code", Reason: "is required"}
	}
	return apply(item, OpFail, request, now, func(i *Item) error {
		i.Error = &failure
		return nil
	})
}
