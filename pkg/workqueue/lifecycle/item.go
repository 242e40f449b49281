package lifecycle

import (
	"encoding/json"
	"time"
)

// Item is one piece of work in a queue. It is a value: the functions of this
// package return a changed copy and leave the one passed in as it was. Slices
// may be shared between copies and must not be written to.
//
// Source: Job lifecycle plan 02, Required invariants per status.
type Item struct {
	// WorkID is the item's id, unique in its queue.
	WorkID string
	Status Status
	// Attempt is how often the item was claimed.
	Attempt int
	// Rev is the item's revision, which each accepted move raises.
	Rev int64
	// Owner is the worker that holds the item; empty where none does.
	Owner string
	// LeaseExpiresAt is when the owner's hold runs out unless it is extended;
	// the zero time where there is no lease.
	LeaseExpiresAt time.Time
	// ClaimLease is for how long the claim gave the item, for a heartbeat to give
	// as much again. Only a claimed item has one.
	ClaimLease time.Duration
	// Result is what the owner made of the work: a JSON object, with output_ref
	// and result_ref where there are any. Only a succeeded item has one.
	Result json.RawMessage
	// Error is why the work failed. Only a failed item has one.
	Error *Failure

	// DedupeKey is the key under which the item was enqueued. It is opaque and
	// never changes.
	DedupeKey string
	// MessageID, AttemptNo and LeaseID name the directive that the item carries
	// now; see [Directive].
	MessageID string
	AttemptNo int
	LeaseID   string

	// What the item is work for. These are opaque too.
	JobID    string
	StepID   string
	TenantID string
	Service  string
	StepType string

	CreatedAt time.Time
	UpdatedAt time.Time

	// Requests are the requests that a repeat is recognised by, oldest first, at
	// most [MaxRemembered].
	Requests []Remembered
}

// Failure is why work failed.
type Failure struct {
	// Code is for machines. Required.
	Code string
	// Message is for people. Optional.
	Message string
}

// Directive names what an item carries: the message, and the pair by which the
// ledger fences the attempt that the message is for.
type Directive struct {
	// MessageID is the bus's id of the message, another one for each attempt.
	MessageID string
	// AttemptNo is the ledger's number of the attempt, from 1. It is not the
	// item's Attempt, which counts claims.
	AttemptNo int
	// LeaseID is the capability to report on the attempt.
	LeaseID string
}

// Message is what a producer enqueues.
type Message struct {
	Directive
	// DedupeKey makes a second enqueue of the same message find the first one's
	// item. Required.
	DedupeKey string

	JobID    string
	StepID   string
	TenantID string
	Service  string
	StepType string
}

// Covers reports whether the item already stands for the message, so that no
// second item may be made for it: the message was enqueued under the same key,
// or it is the one that the item carries since a requeue, or it is for an
// earlier attempt at the same step and came late.
func (i *Item) Covers(message Message) bool {
	sameStep := i.JobID != "" && i.JobID == message.JobID && i.StepID == message.StepID
	return i.DedupeKey == message.DedupeKey || i.MessageID == message.MessageID ||
		sameStep && message.AttemptNo <= i.AttemptNo
}

// HeldUnder reports whether the owner holds the item by the claim with that
// request id. It is what decides if a repeated claim answers with the item: not
// when the item has been stalled, requeued or ended since, nor when the same
// owner has it back by a later claim.
func (i *Item) HeldUnder(owner, requestID string) bool {
	known := i.remembered(owner, requestID)
	return known != nil && i.Owner == owner && known.Operation == OpClaimNext && known.Attempt == i.Attempt
}
