package lifecycle

import "slices"

// Operation is what someone asks of the queue.
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

// Operations returns all operations. The slice is the caller's.
func Operations() []Operation { return slices.Clone(operations[:]) }

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
	// EventRemoved is an item that a queue dropped. It is retention and not a
	// transition, so it is not in the table. See [Remove].
	EventRemoved EventType = "removed"
)

// Mover is the kind of actor whose move a transition is.
type Mover string

// The movers.
const (
	// MoverProducer puts work into the queue.
	MoverProducer Mover = "producer"
	// MoverWorker is any worker.
	MoverWorker Mover = "worker"
	// MoverOwner is the worker that holds the item, and no other.
	MoverOwner Mover = "owner"
	// MoverSystem is the queue itself, or an operator. It owns nothing.
	MoverSystem Mover = "system"
)

// Transition is one allowed move.
type Transition struct {
	Operation Operation
	From, To  Status
	// Event is the type of the event that the move leaves behind.
	Event EventType
	// By is whose move it is.
	By Mover
}

// transitions is all that may ever happen to an item.
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

// Transitions returns the allowed moves, in the order of the source. The slice
// is the caller's.
//
// Source: Job lifecycle plan 02, Allowed transitions.
func Transitions() []Transition { return slices.Clone(transitions[:]) }

// Lookup returns the transition that the operation makes from that status, and
// false where it makes none.
func Lookup(operation Operation, from Status) (Transition, bool) {
	for _, transition := range transitions {
		if transition.Operation == operation && transition.From == from {
			return transition, true
		}
	}
	return Transition{}, false
}

// ownerOnly reports whether only the item's owner may ask for the operation.
func (o Operation) ownerOnly() bool {
	switch o {
	case OpStart, OpHeartbeat, OpComplete, OpFail:
		return true
	default:
		return false
	}
}

// byWorker reports whether a worker asks for the operation.
func (o Operation) byWorker() bool { return o == OpClaimNext || o.ownerOnly() }
