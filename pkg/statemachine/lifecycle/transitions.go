// Package lifecycle is the policy of the pull queue: the statuses of a work item,
// who may move it from one to the next, and what each move changes. It is pure: it
// does no I/O, reads no clock and makes no ids, so any queue can apply the same
// rules to its own storage: load an item, ask this package for the [Change], write
// item and events in one step.
//
//	enqueue
//	   │
//	   ▼       claimNext           start           complete
//	queued ────────────────▶ claimed ──────▶ running ───────▶ succeeded
//	   ▲                     ▲  │ ↺             │ │ ↺
//	   │           claimNext │  │ stall   stall │ └─────────▶ failed
//	   │           (reclaim) │  ▼               │    fail
//	   └──────────────────── stalled ◀──────────┘
//	     requeueStalled                            ↺ heartbeat
//
// The arrows are data, the table behind [Transitions]; there are no others.
// [Validate] checks what must hold in each status, [ValidateHistory] what must hold
// of an item's events.
//
// # Who moves an item
//
// Any worker may claim a queued item. Only its owner moves a claimed or running
// item, under a lease, until the system stalls it. Only the system offers a stalled
// item again. Nothing moves a succeeded or failed item. If the owner reports past
// the queue, the queue makes the owner's move in the owner's name.
//
// An expired lease is a reason for a stall and changes nothing by itself: until the
// queue stalls the item, its owner may still move it.
//
// # How a request is checked, in this order
//
//  1. It is complete: actor, expected rev and request id; else [ErrInvalidRequest],
//     which names the field.
//  2. It is not a repeat. Actor and id identify a request. The same move again
//     returns the item as it is and changes nothing, whatever happened since;
//     another move under a used id is refused.
//  3. An owner's move comes from the owner, by its current claim: not at a rev from
//     before it ([ErrNotOwner]). If the item has no owner, its status decides, see 5.
//  4. The item is at the expected rev ([ErrRevConflict]).
//  5. The table has the move ([ErrIllegalTransition]).
//
// A worker makes a new request id for each request and sends it again only to
// repeat that request. The item itself remembers the ids ([Item.Requests]), so every
// replica recognises a repeat, also after a crash.
//
// # Counting
//
// attempt counts claims: 0 at first, one more on each entry to claimed. rev counts
// accepted moves, heartbeats included: enqueue makes it 1, each event has its own
// rev, a repeat has none. Both survive a requeue.
//
// # What the queue decides
//
// How long leases last, when an item is stalled, whether a worker may reclaim a
// stalled item directly, and which item a claim takes. A dedupe key is opaque.
//
// Source: Job lifecycle plan 02.
package lifecycle

import "slices"

// Status is the state of a work item. The values are part of the wire contract.
//
// Source: Job lifecycle plan 02, Status meanings.
type Status string

// The statuses.
const (
	// StatusNone is an item before its enqueue or after its removal. It is never
	// stored.
	StatusNone Status = ""
	// StatusQueued may be claimed by any worker; it has neither owner nor lease.
	StatusQueued Status = "queued"
	// StatusClaimed belongs to one worker under a lease; its work is not started.
	StatusClaimed Status = "claimed"
	// StatusRunning is in work; its owner extends the lease by heartbeats.
	StatusRunning Status = "running"
	// StatusSucceeded ended with a result. It is final.
	StatusSucceeded Status = "succeeded"
	// StatusFailed ended with an error. It is final.
	StatusFailed Status = "failed"
	// StatusStalled was taken from an owner that is no longer trusted. It is not an
	// end: the system requeues it, or a worker reclaims it if the queue allows that.
	StatusStalled Status = "stalled"
)

var statuses = [...]Status{
	StatusQueued, StatusClaimed, StatusRunning, StatusSucceeded, StatusFailed, StatusStalled,
}

// Statuses returns all statuses that an item can have, in a slice that the caller
// owns.
func Statuses() []Status { return slices.Clone(statuses[:]) }

// Terminal reports whether an item in this status never changes again.
func (s Status) Terminal() bool { return s == StatusSucceeded || s == StatusFailed }

// Held reports whether an item in this status has an owner and a lease.
func (s Status) Held() bool { return s == StatusClaimed || s == StatusRunning }

// removable reports whether an item in this status may be removed.
func (s Status) removable() bool { return s != StatusRunning && s != StatusNone }

// Operation is what a caller asks of the queue.
//
// Source: Job lifecycle plan 02, Scope.
type Operation string

// The operations.
const (
	OpEnqueue        Operation = "enqueue"
	OpClaimNext      Operation = "claimNext"
	OpStart          Operation = "start"
	OpHeartbeat      Operation = "heartbeat"
	OpComplete       Operation = "complete"
	OpFail           Operation = "fail"
	OpStall          Operation = "stall"
	OpRequeueStalled Operation = "requeueStalled"
)

var operations = [...]Operation{
	OpEnqueue, OpClaimNext, OpStart, OpHeartbeat, OpComplete, OpFail, OpStall, OpRequeueStalled,
}

// Operations returns all operations, in a slice that the caller owns.
func Operations() []Operation { return slices.Clone(operations[:]) }

// OwnerOnly reports whether only the item's owner may ask for the operation.
func (o Operation) OwnerOnly() bool {
	return o == OpStart || o == OpHeartbeat || o == OpComplete || o == OpFail
}

// EventType is the canonical name of what happened to an item.
//
// Source: Job lifecycle plan 02, Event semantics.
type EventType string

// The vocabulary of events.
const (
	EventEnqueued  EventType = "enqueued"
	EventClaimed   EventType = "claimed"
	EventStarted   EventType = "started"
	EventHeartbeat EventType = "heartbeat"
	EventSucceeded EventType = "succeeded"
	EventFailed    EventType = "failed"
	EventStalled   EventType = "stalled"
	EventRequeued  EventType = "requeued"
	// EventRemoved is retention, not a transition: the table does not have it. See
	// [Remove].
	EventRemoved EventType = "removed"
)

// Mover is the kind of actor that may make a transition.
type Mover string

// The actors.
const (
	// MoverProducer puts work into the queue.
	MoverProducer Mover = "producer"
	// MoverWorker is any worker.
	MoverWorker Mover = "worker"
	// MoverOwner is the worker that holds the item.
	MoverOwner Mover = "owner"
	// MoverSystem is the queue itself, or an operator. It owns nothing.
	MoverSystem Mover = "system"
)

// Transition is one allowed move.
type Transition struct {
	Operation Operation
	From, To  Status
	// Event is the type of the event that the move appends.
	Event EventType
	By    Mover
}

// transitions are all moves that an item can make.
var transitions = [...]Transition{
	{Operation: OpEnqueue, From: StatusNone, To: StatusQueued, Event: EventEnqueued, By: MoverProducer},
	{Operation: OpClaimNext, From: StatusQueued, To: StatusClaimed, Event: EventClaimed, By: MoverWorker},
	// Direct reclaim. A queue may leave it out and requeue instead.
	{Operation: OpClaimNext, From: StatusStalled, To: StatusClaimed, Event: EventClaimed, By: MoverWorker},
	{Operation: OpStart, From: StatusClaimed, To: StatusRunning, Event: EventStarted, By: MoverOwner},
	{Operation: OpHeartbeat, From: StatusClaimed, To: StatusClaimed, Event: EventHeartbeat, By: MoverOwner},
	{Operation: OpHeartbeat, From: StatusRunning, To: StatusRunning, Event: EventHeartbeat, By: MoverOwner},
	{Operation: OpComplete, From: StatusRunning, To: StatusSucceeded, Event: EventSucceeded, By: MoverOwner},
	{Operation: OpFail, From: StatusRunning, To: StatusFailed, Event: EventFailed, By: MoverOwner},
	{Operation: OpStall, From: StatusClaimed, To: StatusStalled, Event: EventStalled, By: MoverSystem},
	{Operation: OpStall, From: StatusRunning, To: StatusStalled, Event: EventStalled, By: MoverSystem},
	{Operation: OpRequeueStalled, From: StatusStalled, To: StatusQueued, Event: EventRequeued, By: MoverSystem},
}

// Transitions returns the allowed moves in the order of the source, in a slice that
// the caller owns.
//
// Source: Job lifecycle plan 02, Allowed transitions.
func Transitions() []Transition { return slices.Clone(transitions[:]) }

// Lookup returns the transition that the operation makes from that status, and
// false if there is none.
func Lookup(operation Operation, from Status) (Transition, bool) {
	for _, transition := range transitions {
		if transition.Operation == operation && transition.From == from {
			return transition, true
		}
	}
	return Transition{}, false
}
