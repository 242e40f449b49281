package statemachine

import (
	"encoding/json"
	"strconv"
	"time"
)

// ItemRecord is what the pull queue stores of a work item beyond its step. It is a
// value; copies may share slices, which must not be written to.
type ItemRecord struct {
	// WorkID is the id of the outbox row under which the item was first enqueued.
	WorkID string `column:"work_id"`
	// DedupeKey is the id of the message with which the item was enqueued.
	DedupeKey string `column:"dedupe_key"`
	StepIndex int    `column:"step_index"`
	// AttemptNo is the step's attempt that the item carries, and MessageID the id of
	// its directive.
	AttemptNo int    `column:"attempt_no"`
	MessageID string `column:"message_id"`
	// Owner is the worker that holds the item; empty if none does.
	Owner string `column:"owner"`
	// Claims counts the claims of the item, and Rev its moves.
	Claims int   `column:"claims"`
	Rev    int64 `column:"rev"`
	// ReadySince, ReadyRev, ReadyClass and AttemptNo name the one ready hint of a queued
	// item. They stay after the item was claimed, so that a requeue and a purge delete a
	// hint that a crash left.
	//
	//	invariant: queued ⇒ ReadyClass = Job.Class
	ReadySince time.Time `column:"ready_since"`
	ReadyRev   int64     `column:"ready_rev"`
	ReadyClass Class     `column:"ready_class"`
	// RequeuedBy is the operator's request to offer a stalled item again, while the
	// next attempt's outbox row is PENDING: the requeue is made in its name.
	RequeuedBy ItemRequester
	// Requests are those by which a repeat is recognised.
	Requests []Remembered `column:"requests"`
	// Slots are the run slots that a held item takes, one of each limit that counts it.
	//
	//	invariant: Slots ≠ ∅ ⇒ a worker holds the item
	Slots []RunSlot `column:"slots"`
	// Ended is the status in which the item ended or was removed; empty while it is
	// open. Removed says that it was removed.
	Ended   ItemStatus `column:"ended"`
	Removed bool       `column:"removed"`
	// Failure is the error of a failed item: later attempts overwrite the step's own.
	Failure ItemFailure

	CreatedAt time.Time `column:"created_at"`
	UpdatedAt time.Time `column:"updated_at"`
}

// ItemRequester identifies the request for a move, and keeps its reason.
type ItemRequester struct {
	Actor     string `column:"requeue_actor"`
	RequestID string `column:"requeue_id"`
	Reason    string `column:"requeue_reason"`
}

// Sent reports whether the request is the requester's, or a repeat of it.
func (r ItemRequester) Sent(request ItemRequest) bool {
	return r.Actor == request.Actor && r.RequestID == request.ID
}

// Open reports whether the item has neither ended nor been removed.
func (r *ItemRecord) Open() bool { return r.Ended == "" }

// ViewItem combines step and record into the item. The record must be that of one of the
// job's items. The item has no status if no worker may work on its step, as after a
// defect.
func ViewItem(agg *Aggregate, r *ItemRecord) Item {
	step := &agg.Steps[r.StepIndex]
	item := Item{
		WorkID: r.WorkID, Status: r.status(step), Attempt: r.Claims, Rev: r.Rev, Owner: r.Owner,
		DedupeKey: r.DedupeKey, MessageID: r.MessageID, AttemptNo: r.AttemptNo,
		JobID: agg.Job.ID, StepID: step.ID, TenantID: agg.Job.TenantID, Service: step.Service, StepType: step.Type,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Requests: r.Requests,
	}
	item.LeaseID = r.leaseID(step, item.Status)
	if item.Status == StatusFailed {
		failure := r.Failure
		item.Error = &failure
	}
	if item.Status.Held() {
		item.LeaseExpiresAt = step.LeaseExpiresAt
	}
	if item.Status == StatusSucceeded {
		item.Result = itemResultOf(step)
	}
	return item
}

// status derives the item's status from step and record.
func (r *ItemRecord) status(step *Step) ItemStatus {
	current := r.AttemptNo == step.AttemptNo
	switch {
	case !r.Open():
		return r.Ended
	case step.State == StepAwaitingAck && current && step.LeaseExpiresAt.IsZero() && r.Owner == "":
		return StatusQueued
	case step.State == StepAwaitingAck && current && !step.LeaseExpiresAt.IsZero() && r.Owner != "":
		return StatusClaimed
	case step.State == StepInProgress && current && r.Owner != "":
		return StatusRunning
	case step.State == StepFailedRetry && r.Owner == "",
		step.State == StepDispatching && !current && r.Owner == "":
		return StatusStalled
	}
	return StatusNone
}

// leaseID returns the lease id of a queued or held item. For any other item it returns the
// digest that the step keeps, which authorizes nothing.
func (r *ItemRecord) leaseID(step *Step, status ItemStatus) string {
	if r.Open() && (status == StatusQueued || status.Held()) {
		return step.LeaseID
	}
	for i := range step.Attempts {
		if step.Attempts[i].No == r.AttemptNo {
			return step.Attempts[i].LeaseDigest
		}
	}
	return "forgotten"
}

// itemResultOf returns the RESULT of a step that succeeded, as the owner reported it.
func itemResultOf(step *Step) json.RawMessage {
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
func (r *ItemRecord) take(item *Item) {
	r.Owner, r.Claims, r.Rev = item.Owner, item.Attempt, item.Rev
	r.AttemptNo, r.MessageID = item.AttemptNo, item.MessageID
	r.Requests, r.UpdatedAt = item.Requests, item.UpdatedAt
	if item.Error != nil {
		r.Failure = *item.Error
	}
	if item.Status.Terminal() {
		r.Ended = item.Status
	}
	if !item.Status.Held() {
		r.Slots = nil
	}
}

// ItemMessageID is the bus's id of an attempt's message.
func ItemMessageID(outboxID string, attemptNo int) string {
	return outboxID + "/" + strconv.Itoa(attemptNo)
}
