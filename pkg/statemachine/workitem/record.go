// Package workitem shows a job's step as a work item of the pull queue. A work item
// is not a separate record: it is an attempt of a step, and the attempt's
// re-deliveries after a stall, as the queue sees it. The package is pure.
//
//	Step row, Outbox row, Record ──View──▶ lifecycle.Item ──▶ lifecycle.Validate
//
//	statemachine.Decision ──Follow──▶ Moves: the Record after the change,
//	                                  the one it ended, and the item's events
//
// A [Record] holds only what the Step row (state, attempt, lease, deadline,
// references, error) lacks: the owner, the number of claims, the item's rev and the
// requests that it remembers. [View] combines both. [Follow] derives from a decision
// of the state machine the moves of the item, so that step and item change in one
// commit, whichever transport brought the event.
//
// # The status of a step as a work item
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

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
)

// Record is what the pull queue stores of a work item beyond its step. It is a
// value; copies may share slices, which must not be written to.
type Record struct {
	// WorkID is the id of the outbox row under which the item was first enqueued.
	WorkID string
	// DedupeKey is the id of the message with which the item was enqueued.
	DedupeKey string
	StepIndex int
	// AttemptNo is the step's attempt that the item carries, and MessageID the id of
	// its directive.
	AttemptNo int
	MessageID string
	// Owner is the worker that holds the item; empty if none does.
	Owner string
	// Claims counts the claims of the item, and Rev its moves.
	Claims int
	Rev    int64
	// ReadySince, ReadyRev and AttemptNo name the one ready hint of a queued item.
	// They stay after the item was claimed, so that a requeue and a purge delete a
	// hint that a crash left.
	ReadySince time.Time
	ReadyRev   int64
	// RequeuedBy is the operator's request to offer a stalled item again, while the
	// next attempt's outbox row is PENDING: the requeue is made in its name.
	RequeuedBy Requester
	// Requests are those by which a repeat is recognised.
	Requests []lifecycle.Remembered
	// Ended is the status in which the item ended or was removed; empty while it is
	// open. Removed says that it was removed.
	Ended   lifecycle.Status
	Removed bool
	// Failure is the error of a failed item: later attempts overwrite the step's own.
	Failure lifecycle.Failure

	CreatedAt time.Time
	UpdatedAt time.Time
}

// Requester identifies the request for a move, and keeps its reason.
type Requester struct{ Actor, RequestID, Reason string }

// Sent reports whether the request is the requester's, or a repeat of it.
func (r Requester) Sent(request lifecycle.Request) bool {
	return r.Actor == request.Actor && r.RequestID == request.ID
}

// Open reports whether the item has neither ended nor been removed.
func (r *Record) Open() bool { return r.Ended == "" }

// View combines step and record into the item. The record must be that of one of the
// job's items. The item has no status if no worker may work on its step, as after a
// defect.
func View(agg *statemachine.Aggregate, r *Record) lifecycle.Item {
	step := &agg.Steps[r.StepIndex]
	item := lifecycle.Item{
		WorkID: r.WorkID, Status: r.status(step), Attempt: r.Claims, Rev: r.Rev, Owner: r.Owner,
		DedupeKey: r.DedupeKey, MessageID: r.MessageID, AttemptNo: r.AttemptNo,
		JobID: agg.Job.ID, StepID: step.ID, TenantID: agg.Job.TenantID, Service: step.Service, StepType: step.Type,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Requests: r.Requests,
	}
	item.LeaseID = r.leaseID(step, item.Status)
	if item.Status == lifecycle.StatusFailed {
		failure := r.Failure
		item.Error = &failure
	}
	if item.Status.Held() {
		item.LeaseExpiresAt = step.LeaseExpiresAt
	}
	if item.Status == lifecycle.StatusSucceeded {
		item.Result = resultOf(step)
	}
	return item
}

// status derives the item's status from step and record.
func (r *Record) status(step *statemachine.Step) lifecycle.Status {
	current := r.AttemptNo == step.AttemptNo
	switch {
	case !r.Open():
		return r.Ended
	case step.State == statemachine.StepAwaitingAck && current && step.LeaseExpiresAt.IsZero() && r.Owner == "":
		return lifecycle.StatusQueued
	case step.State == statemachine.StepAwaitingAck && current && !step.LeaseExpiresAt.IsZero() && r.Owner != "":
		return lifecycle.StatusClaimed
	case step.State == statemachine.StepInProgress && current && r.Owner != "":
		return lifecycle.StatusRunning
	case step.State == statemachine.StepFailedRetry && r.Owner == "",
		step.State == statemachine.StepDispatching && !current && r.Owner == "":
		return lifecycle.StatusStalled
	}
	return lifecycle.StatusNone
}

// leaseID returns the lease id of a queued or held item. For any other item it returns the
// digest that the step keeps, which authorizes nothing.
func (r *Record) leaseID(step *statemachine.Step, status lifecycle.Status) string {
	if r.Open() && (status == lifecycle.StatusQueued || status.Held()) {
		return step.LeaseID
	}
	for i := range step.Attempts {
		if step.Attempts[i].No == r.AttemptNo {
			return step.Attempts[i].LeaseDigest
		}
	}
	return "forgotten"
}

// resultOf returns the RESULT of a step that succeeded, as the owner reported it.
func resultOf(step *statemachine.Step) json.RawMessage {
	object := []byte{'{'}
	if step.GaveOutput {
		object = append(append(object, `"output_ref":`...), step.OutputRef...)
	}
	if step.GaveResult {
		if step.GaveOutput {
			object = append(object, ',')
		}
		object = append(append(object, `"result_ref":`...), step.ResultRef...)
	}
	return append(object, '}')
}

// take copies the item into the record after a move.
func (r *Record) take(item *lifecycle.Item) {
	r.Owner, r.Claims, r.Rev = item.Owner, item.Attempt, item.Rev
	r.AttemptNo, r.MessageID = item.AttemptNo, item.MessageID
	r.Requests, r.UpdatedAt = item.Requests, item.UpdatedAt
	if item.Error != nil {
		r.Failure = *item.Error
	}
	if item.Status.Terminal() {
		r.Ended = item.Status
	}
}

// MessageID is the bus's id of an attempt's message.
func MessageID(outboxID string, attemptNo int) string {
	return outboxID + "/" + strconv.Itoa(attemptNo)
}
