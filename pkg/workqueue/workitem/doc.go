// Package workitem holds the pull queue to its law. A work item is no record of
// its own: it is an attempt of a step, and the attempt's re-deliveries after a
// stall, seen as the queue sees it. The package is pure.
//
//	Step row, Outbox row, Record ──View──▶ lifecycle.Item ──▶ lifecycle.Validate
//
//	statemachine.Decision ──Follow──▶ Moves: the Record after the change,
//	                                  the one it ended, and the item's events
//
// What the Step row says (state, attempt, lease, deadline, references, error) is
// not stored again. A [Record] holds only what the step lacks: the owner, how
// often the item was claimed, its rev, the requests that it remembers. [View] puts
// both together; [Follow] derives from a decision of the state machine which
// moves of the lifecycle it is to the item, so that step and item change in one
// commit, whichever door the event came through.
//
// # What a step is to a worker
//
// The first row that fits counts. An attempt on Service Bus has no item.
//
//	step                                outbox   record              status
//	any, reported on without a claim    SENT     removed             no item
//	PENDING, or DISPATCHING             PENDING  none open           no item
//	DISPATCHING                         PENDING  open, no owner      stalled
//	AWAITING_ACK, no deadline           SENT     open, no owner      queued
//	AWAITING_ACK, deadline              SENT     owner               claimed
//	IN_PROGRESS                         SENT     owner               running
//	FAILED_RETRY by deadline, operator  SENT     open, no owner      stalled
//	FAILED_RETRY by RESULT              SENT     ended               failed
//	CANCELLED after that                SENT     ended               failed
//	FAILED_RETRY by withdrawal          any      removed             no item
//	ended by RESULT while held          SENT     ended               succeeded, failed
//	ended otherwise                     any      removed             no item
//
// Source: Job lifecycle plan 02.
package workitem
