package statemachine

import "slices"

// ItemStatus is the state of a work item. The values are part of the wire contract.
//
// Source: Job lifecycle plan 02, Status meanings.
type ItemStatus string

// The statuses.
const (
	// StatusNone is an item before its enqueue or after its removal. It is never
	// stored.
	StatusNone ItemStatus = ""
	// StatusQueued may be claimed by any worker; it has neither owner nor lease.
	StatusQueued ItemStatus = "queued"
	// StatusClaimed belongs to one worker under a lease; its work is not started.
	StatusClaimed ItemStatus = "claimed"
	// StatusRunning is in work; its owner extends the lease by heartbeats.
	StatusRunning ItemStatus = "running"
	// StatusSucceeded ended with a result. It is final.
	StatusSucceeded ItemStatus = "succeeded"
	// StatusFailed ended with an error. It is final.
	StatusFailed ItemStatus = "failed"
	// StatusStalled was taken from an owner that is no longer trusted. It is not an
	// end: the system requeues it, or a worker reclaims it if the queue allows that.
	StatusStalled ItemStatus = "stalled"
)

var itemStatuses = [...]ItemStatus{
	StatusQueued, StatusClaimed, StatusRunning, StatusSucceeded, StatusFailed, StatusStalled,
}

// ItemStatuses returns all statuses that an item can have, in a slice that the caller
// owns.
func ItemStatuses() []ItemStatus { return slices.Clone(itemStatuses[:]) }

// Terminal reports whether an item in this status never changes again.
func (s ItemStatus) Terminal() bool { return s == StatusSucceeded || s == StatusFailed }

// Held reports whether an item in this status has an owner and a lease.
func (s ItemStatus) Held() bool { return s == StatusClaimed || s == StatusRunning }

// removable reports whether an item in this status may be removed.
func (s ItemStatus) removable() bool { return s != StatusRunning && s != StatusNone }

// ItemOperation is what a caller asks of the queue.
//
// Source: Job lifecycle plan 02, Scope.
type ItemOperation string

// The operations.
const (
	OpEnqueue        ItemOperation = "enqueue"
	OpClaimNext      ItemOperation = "claimNext"
	OpStart          ItemOperation = "start"
	OpHeartbeat      ItemOperation = "heartbeat"
	OpComplete       ItemOperation = "complete"
	OpFail           ItemOperation = "fail"
	OpStall          ItemOperation = "stall"
	OpRequeueStalled ItemOperation = "requeueStalled"
)

var itemOperations = [...]ItemOperation{
	OpEnqueue, OpClaimNext, OpStart, OpHeartbeat, OpComplete, OpFail, OpStall, OpRequeueStalled,
}

// ItemOperations returns all operations, in a slice that the caller owns.
func ItemOperations() []ItemOperation { return slices.Clone(itemOperations[:]) }

// OwnerOnly reports whether only the item's owner may ask for the operation.
func (o ItemOperation) OwnerOnly() bool {
	return o == OpStart || o == OpHeartbeat || o == OpComplete || o == OpFail
}

// ItemEventType is the canonical name of what happened to an item.
//
// Source: Job lifecycle plan 02, Event semantics.
type ItemEventType string

// The vocabulary of events.
const (
	ItemEventEnqueued  ItemEventType = "enqueued"
	ItemEventClaimed   ItemEventType = "claimed"
	ItemEventStarted   ItemEventType = "started"
	ItemEventHeartbeat ItemEventType = "heartbeat"
	ItemEventSucceeded ItemEventType = "succeeded"
	ItemEventFailed    ItemEventType = "failed"
	ItemEventStalled   ItemEventType = "stalled"
	ItemEventRequeued  ItemEventType = "requeued"
	// ItemEventRemoved is retention, not a transition: the table does not have it. See
	// [RemoveItem].
	ItemEventRemoved ItemEventType = "removed"
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

// ItemTransition is one allowed move.
type ItemTransition struct {
	Operation ItemOperation
	From, To  ItemStatus
	// ItemEvent is the type of the event that the move appends.
	Event ItemEventType
	By    Mover
}

// itemTransitions are all moves that an item can make.
var itemTransitions = [...]ItemTransition{
	{Operation: OpEnqueue, From: StatusNone, To: StatusQueued, Event: ItemEventEnqueued, By: MoverProducer},
	{Operation: OpClaimNext, From: StatusQueued, To: StatusClaimed, Event: ItemEventClaimed, By: MoverWorker},
	// Direct reclaim. A queue may leave it out and requeue instead.
	{Operation: OpClaimNext, From: StatusStalled, To: StatusClaimed, Event: ItemEventClaimed, By: MoverWorker},
	{Operation: OpStart, From: StatusClaimed, To: StatusRunning, Event: ItemEventStarted, By: MoverOwner},
	{Operation: OpHeartbeat, From: StatusClaimed, To: StatusClaimed, Event: ItemEventHeartbeat, By: MoverOwner},
	{Operation: OpHeartbeat, From: StatusRunning, To: StatusRunning, Event: ItemEventHeartbeat, By: MoverOwner},
	{Operation: OpComplete, From: StatusRunning, To: StatusSucceeded, Event: ItemEventSucceeded, By: MoverOwner},
	{Operation: OpFail, From: StatusRunning, To: StatusFailed, Event: ItemEventFailed, By: MoverOwner},
	{Operation: OpStall, From: StatusClaimed, To: StatusStalled, Event: ItemEventStalled, By: MoverSystem},
	{Operation: OpStall, From: StatusRunning, To: StatusStalled, Event: ItemEventStalled, By: MoverSystem},
	{Operation: OpRequeueStalled, From: StatusStalled, To: StatusQueued, Event: ItemEventRequeued, By: MoverSystem},
}

// ItemTransitions returns the allowed moves in the order of the source, in a slice that
// the caller owns.
//
// Source: Job lifecycle plan 02, Allowed transitions.
func ItemTransitions() []ItemTransition { return slices.Clone(itemTransitions[:]) }

// LookupItemTransition returns the transition that the operation makes from that status, and
// false if there is none.
func LookupItemTransition(operation ItemOperation, from ItemStatus) (ItemTransition, bool) {
	for _, transition := range itemTransitions {
		if transition.Operation == operation && transition.From == from {
			return transition, true
		}
	}
	return ItemTransition{}, false
}
