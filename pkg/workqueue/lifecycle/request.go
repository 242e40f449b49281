package lifecycle

import (
	"slices"
	"time"
)

const (
	// MinMemory is how long a request is remembered at least, however short the
	// lease. A client that lost an answer tries again with growing delays,
	// through a restart of the server if need be; that takes minutes, and leases
	// may last for seconds.
	MinMemory = 5 * time.Minute

	// MaxRemembered is how many requests an item remembers at most, so that it
	// stays a small row. Beyond it the oldest heartbeats go first: whoever sends
	// the next heartbeat has stopped to wait for the answer of the one before,
	// and a late copy of it then fails on its rev and does no harm.
	MaxRemembered = 32
)

// Request is what each move carries.
//
// Source: Job lifecycle plan 02, Concurrency, CAS, and retry semantics.
type Request struct {
	// Actor is who asks: for a worker's operation its owner, for the system's the
	// part of it or the operator, for the audit log. Required.
	Actor string
	// ExpectedRev is the rev at which the actor saw the item; for a claim that at
	// which the queue chose it. Required.
	ExpectedRev int64
	// ID is the request_id: new for each request, the same for its repeats.
	// Required.
	ID string
}

// Remembered is a request that was accepted.
type Remembered struct {
	// Actor and RequestID say which request it was. Two workers that happen to
	// use one id do not take each other's answers.
	Actor     string
	RequestID string
	Operation Operation
	// Rev and Attempt are the item's after the move.
	Rev     int64
	Attempt int
	// ExpiresAt is until when it is remembered at least: the end of the lease
	// that the item had or got, and not before MinMemory has passed.
	ExpiresAt time.Time
}

// same reports whether both are one actor's use of one id.
func (r Remembered) same(other Remembered) bool {
	return r.Actor == other.Actor && r.RequestID == other.RequestID
}

// remembered returns the actor's request with that id, nil if it is not known.
func (i *Item) remembered(actor, requestID string) *Remembered {
	n := slices.IndexFunc(i.Requests, Remembered{Actor: actor, RequestID: requestID}.same)
	if n < 0 {
		return nil
	}
	return &i.Requests[n]
}

// validate checks that the request is whole.
func (r Request) validate(operation Operation) error {
	switch {
	case r.Actor == "" && operation.byWorker():
		return &RequestError{Field: "owner", Reason: "is required"}
	case r.Actor == "":
		return &RequestError{Field: "actor", Reason: "is required"}
	case r.ID == "":
		return &RequestError{Field: "request_id", Reason: "is required"}
	case r.ExpectedRev < 1:
		return &RequestError{Field: "expected_rev", Reason: "is required and at least 1"}
	}
	return nil
}

// repeats reports whether the request has been accepted before. An id that was
// used for another operation is refused.
func (r Request) repeats(item *Item, operation Operation) (bool, error) {
	known := item.remembered(r.Actor, r.ID)
	switch {
	case known == nil:
		return false, nil
	case known.Operation != operation:
		return false, &RequestError{Field: "request_id", Reason: "was already used for " + string(known.Operation)}
	}
	return true, nil
}

// remember adds the request to those of the item, which is already at its new
// rev, and drops what need not be kept. The slice passed in is not written to.
func (i *Item) remember(added Remembered, now time.Time) {
	added.Rev, added.Attempt = i.Rev, i.Attempt
	kept := make([]Remembered, 0, len(i.Requests)+1)
	for _, known := range i.Requests {
		// What began and moved the present attempt is needed as long as that goes
		// on: heartbeats extend the lease beyond what was known at the time.
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

// memoryEnd is until when a request is remembered that found the item under
// one lease and left it under another. Either may be the zero time.
func memoryEnd(before, after, now time.Time) time.Time {
	end := now.Add(MinMemory)
	for _, lease := range []time.Time{before, after} {
		if lease.After(end) {
			end = lease
		}
	}
	return end
}
