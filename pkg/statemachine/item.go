package statemachine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// MinMemory is how long a request is remembered at least, however short the
	// lease. A client that lost an answer tries again with growing delays, perhaps
	// through a restart of the server; that takes minutes, and leases may last for
	// seconds.
	MinMemory = 5 * time.Minute

	// MaxRemembered bounds how many requests an item remembers, so that it stays a
	// small row. Beyond it the oldest heartbeat is dropped first: a worker that
	// sends the next heartbeat no longer waits for the answer of the one before, and
	// a late copy of it fails on its rev.
	MaxRemembered = 32
)

// Item is one piece of work in a queue. It is a value: the functions of this
// package return a changed copy and leave their argument as it was. Copies may
// share slices, which must not be written to.
//
// Source: Job lifecycle plan 02, Required invariants per status.
type Item struct {
	// WorkID is the item's id, unique in its queue.
	WorkID string
	Status ItemStatus
	// Attempt counts the claims of the item.
	Attempt int
	// Rev is the item's revision, which each accepted move raises.
	Rev int64
	// Owner is the worker that holds the item; empty if none does.
	Owner string
	// LeaseExpiresAt is when the lease ends unless it is extended; zero if there is
	// no lease.
	LeaseExpiresAt time.Time
	// Result is a JSON object, with output_ref and result_ref if there are any. Only
	// a succeeded item has one.
	Result json.RawMessage
	// Error is why the work failed. Only a failed item has one.
	Error *ItemFailure

	// DedupeKey is the key under which the item was enqueued. It is opaque and never
	// changes.
	DedupeKey string
	// MessageID, AttemptNo and LeaseID are the [ItemDirective] that the item carries now.
	MessageID string
	AttemptNo int
	LeaseID   string

	// The job and step that the item is for. They are opaque too.
	JobID    string
	StepID   string
	TenantID string
	Service  string
	StepType string

	CreatedAt time.Time
	UpdatedAt time.Time

	// Requests are those by which a repeat is recognised, oldest first, at most
	// [MaxRemembered].
	Requests []Remembered
}

// heldBy reports whether the request comes from the claim under which the owner holds the
// item. If that is not the item's first claim, a rev from before it is of an earlier one,
// perhaps by the same owner.
func (i *Item) heldBy(r ItemRequest) bool {
	after := func(known Remembered) bool {
		return known.Operation == OpClaimNext && known.Attempt == i.Attempt && known.Rev > r.ExpectedRev
	}
	return i.Owner == r.Actor && (i.Attempt == 1 || !slices.ContainsFunc(i.Requests, after))
}

// ItemFailure is why work failed.
type ItemFailure struct {
	// Code is for machines. Required.
	Code string `column:"error_code"`
	// ItemMessage is for people. Optional.
	Message string `column:"error_message"`
}

// ItemDirective names what an item carries: the message, and the pair by which the
// ledger fences the attempt that the message is for.
type ItemDirective struct {
	// MessageID is the bus's id of the message, another one for each attempt.
	MessageID string
	// AttemptNo is the ledger's number of the attempt, from 1; not the item's
	// Attempt, which counts claims.
	AttemptNo int
	// LeaseID is the capability to report on the attempt.
	LeaseID string
}

// ItemMessage is what a producer enqueues.
type ItemMessage struct {
	ItemDirective
	// DedupeKey makes a second enqueue of the same message find the first one's
	// item. Required.
	DedupeKey string

	JobID    string
	StepID   string
	TenantID string
	Service  string
	StepType string
}

// ItemRequest is what each move carries.
//
// Source: Job lifecycle plan 02, Concurrency, CAS, and retry semantics.
type ItemRequest struct {
	// Actor is the caller: the owner for a worker's operation; for the system's the
	// part of it or the operator, for the audit log. Required.
	Actor string
	// ExpectedRev is the rev at which the actor saw the item, or at which the queue
	// chose it for a claim. Required.
	ExpectedRev int64
	// ID is the request_id: new for each request, the same for its repeats. Required.
	ID string
	// Reason is why the actor asks, for the history. Optional.
	Reason string
}

// validate checks that the request is complete.
func (r ItemRequest) validate(operation ItemOperation) error {
	switch {
	case r.Actor == "" && (operation == OpClaimNext || operation.OwnerOnly()):
		return &ItemRequestError{Field: "owner", Reason: "is required"}
	case r.Actor == "":
		return &ItemRequestError{Field: "actor", Reason: "is required"}
	case r.ID == "":
		return &ItemRequestError{Field: "request_id", Reason: "is required"}
	case r.ExpectedRev < 1:
		return &ItemRequestError{Field: "expected_rev", Reason: "is required and at least 1"}
	}
	return nil
}

// Remembered is a request that was accepted.
type Remembered struct {
	// Actor and RequestID identify the request: two workers that use the same id do
	// not take each other's answers.
	Actor     string        `json:"a"`
	RequestID string        `json:"i"`
	Operation ItemOperation `json:"o"`
	// Rev and Attempt are the item's after the move.
	Rev     int64 `json:"r"`
	Attempt int   `json:"n"`
	// ExpiresAt is until when it is remembered at least.
	// invariant: ExpiresAt ≥ move + MinMemory, and ≥ the leases before and after it
	ExpiresAt time.Time `json:"e"`
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

// Covers reports whether the item already stands for the message, so that no second
// item may be made for it: the message was enqueued under the same key, or the item
// carries it since a requeue, or it arrives late, for an earlier attempt at the same
// step.
func (i *Item) Covers(message ItemMessage) bool {
	sameStep := i.JobID != "" && i.JobID == message.JobID && i.StepID == message.StepID
	return i.DedupeKey == message.DedupeKey || i.MessageID == message.MessageID ||
		sameStep && message.AttemptNo <= i.AttemptNo
}

// HeldUnder reports whether the owner holds the item by the claim with that request
// id, so that a repeat of the claim returns it. It does not if the item was stalled,
// requeued or ended since, or if a later claim of the same owner took it.
func (i *Item) HeldUnder(owner, requestID string) bool {
	known := i.remembered(owner, requestID)
	return known != nil && i.Owner == owner && known.Operation == OpClaimNext && known.Attempt == i.Attempt
}

var (
	// ErrInvalidRequest is returned when a field of a request is missing or invalid.
	// It comes as a [*ItemRequestError], which names the field.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrNotOwner is returned when an actor that is not the owner asks for an
	// owner's move.
	ErrNotOwner = errors.New("not the owner")
	// ErrRevConflict is returned when the item is not at the expected rev. It comes as a
	// [*RevError], which says at which rev it is.
	ErrRevConflict = errors.New("revision conflict")
	// ErrIllegalTransition is returned when the item's status does not allow the
	// move.
	ErrIllegalTransition = errors.New("illegal transition")
	// ErrInvalidItem is returned when an item, or its history, breaks a rule. It
	// comes as an [*ItemError], which names every violation.
	ErrInvalidItem = errors.New("invalid work item")
	// ErrNoItem is returned when a queue has no item with that id. This package
	// never returns it; all queues share it.
	ErrNoItem = errors.New("no such work item")
)

// RevError says at which rev an item is.
type RevError struct {
	WorkID        string
	Rev, Expected int64
}

// Error names the item and both revs.
func (e *RevError) Error() string {
	return fmt.Sprintf("%v: work item %s is at rev %d, not at %d", ErrRevConflict, e.WorkID, e.Rev, e.Expected)
}

// Unwrap returns [ErrRevConflict].
func (e *RevError) Unwrap() error { return ErrRevConflict }

// ItemRequestError says which field of a request is wrong.
type ItemRequestError struct {
	// Field is the field's name in the wire contract.
	Field string
	// Reason completes the sentence that Field begins.
	Reason string
}

// Error names the field and what is wrong with it.
func (e *ItemRequestError) Error() string {
	return fmt.Sprintf("%v: %s %s", ErrInvalidRequest, e.Field, e.Reason)
}

// Unwrap returns [ErrInvalidRequest].
func (*ItemRequestError) Unwrap() error { return ErrInvalidRequest }

// ItemViolation is one broken rule of an item or of its history.
type ItemViolation struct {
	Field string
	Rule  string
}

// String returns both as a sentence.
func (v ItemViolation) String() string { return v.Field + " " + v.Rule }

// ItemError lists what is wrong with an item.
type ItemError struct {
	WorkID     string
	Status     ItemStatus
	Violations []ItemViolation
}

// Error names all violations.
func (e *ItemError) Error() string {
	parts := make([]string, len(e.Violations))
	for i, violation := range e.Violations {
		parts[i] = violation.String()
	}
	return fmt.Sprintf("%v: %q, %s: %s", ErrInvalidItem, e.WorkID, e.Status, strings.Join(parts, "; "))
}

// Unwrap returns [ErrInvalidItem].
func (*ItemError) Unwrap() error { return ErrInvalidItem }
