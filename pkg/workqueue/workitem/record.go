package workitem

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Record is what the pull queue knows of a work item beyond its step. It is a
// value; slices may be shared between copies and must not be written to.
type Record struct {
	// WorkID is the id of the outbox row under which the item was first enqueued.
	WorkID string
	// DedupeKey is the id of the message with which the item was enqueued.
	DedupeKey string
	StepIndex int
	// AttemptNo is the attempt of the step that the item carries, and MessageID the
	// id of its directive.
	AttemptNo int
	MessageID string
	// Owner is the worker that holds the item; empty if none does.
	Owner string
	// Claims is how often the item was claimed.
	Claims int
	// Rev counts the item's moves.
	Rev int64
	// ClaimLease is for how long the claim gave the item, until its start.
	ClaimLease time.Duration
	// ReadySince, ReadyRev and AttemptNo name the one ready hint of a queued item.
	// They stay when the item is queued no longer, so that a requeue and a purge
	// delete a hint that a crash left behind.
	ReadySince time.Time
	ReadyRev   int64
	// RequeuedBy is the operator's request to offer a stalled item again while the
	// next attempt's outbox row is still PENDING: the requeue is made in its name.
	RequeuedBy Requester
	// Requests are the requests that a repeat is recognised by.
	Requests []lifecycle.Remembered
	// Ended is the status in which the item ended or was removed; empty while it is
	// open. Removed says that it was removed.
	Ended   lifecycle.Status
	Removed bool
	// Failure is the error of an item that failed: the step's own is overwritten by
	// later attempts. GaveOutput and GaveResult say which references the RESULT of
	// an item that succeeded had; the step keeps them.
	Failure    lifecycle.Failure
	GaveOutput bool
	GaveResult bool

	CreatedAt time.Time
	UpdatedAt time.Time
}

// Requester is who asked for a move, and by which request.
type Requester struct{ Actor, RequestID string }

// Open reports whether the item has neither ended nor been removed.
func (r *Record) Open() bool { return r.Ended == "" }

// View is the item that the step and the record make together. An open record
// must be that of one of the job's items; the item of a step that nobody may work
// on, as after a defect, has no status.
func View(agg *statemachine.Aggregate, r *Record) lifecycle.Item {
	step := &agg.Steps[r.StepIndex]
	item := lifecycle.Item{
		WorkID: r.WorkID, Status: r.status(step), Attempt: r.Claims, Rev: r.Rev, Owner: r.Owner,
		ClaimLease: r.ClaimLease,
		DedupeKey:  r.DedupeKey, MessageID: r.MessageID, AttemptNo: r.AttemptNo,
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
		item.Result = r.result(step)
	}
	return item
}

// status reads off step and record where the item stands.
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

// leaseID is the lease id of an item that waits for a worker or is held by one. Of
// any other item it is what the step keeps of it, which opens nothing: the step may
// have a newer attempt, or get one.
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

// result is what the owner made of the work, as it was reported.
func (r *Record) result(step *statemachine.Step) json.RawMessage {
	object := []byte{'{'}
	if r.GaveOutput {
		object = append(append(object, `"output_ref":`...), step.OutputRef...)
	}
	if r.GaveResult {
		if r.GaveOutput {
			object = append(object, ',')
		}
		object = append(append(object, `"result_ref":`...), step.ResultRef...)
	}
	return append(object, '}')
}

// take writes the item's side of a move into the record.
func (r *Record) take(item *lifecycle.Item) {
	r.Owner, r.Claims, r.Rev, r.ClaimLease = item.Owner, item.Attempt, item.Rev, item.ClaimLease
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
