package workitem

import (
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
)

// Ask is the verb of the queue that caused a change. The zero value stands for any
// other cause: a callback, a deadline, an operator's pause.
type Ask struct {
	Operation lifecycle.Operation
	Request   lifecycle.Request
}

// Moves are the effects of a job's change on its work items.
type Moves struct {
	// Open is the job's open item after the change, nil if it has none. Changed says
	// that its record must be written.
	Open    *Record
	Changed bool
	// Ended is the item that the change ended or removed, nil if there is none.
	Ended *Record
	// Events are the moves, in their order.
	Events []lifecycle.Event
}

// The actors of moves that neither a worker nor an operator asked for.
const (
	actorLedger = "ledger"
	actorRelay  = "relay"
)

// Follow derives from an applied decision its effects on the job's open item (nil if
// there was none). A refusal of the lifecycle is returned as it is: the caller must
// have checked the verb before. Any other error is a defect.
func Follow(before *statemachine.Aggregate, open *Record, d *statemachine.Decision, ask Ask, now time.Time) (Moves, error) {
	f := &follower{after: &d.After, light: d.Light, ask: ask, now: now}
	if open != nil {
		record := *open
		f.record, f.item = &record, View(before, open)
		step := &f.after.Steps[open.StepIndex]
		switch f.item.Status {
		case lifecycle.StatusQueued:
			f.followQueued(step)
		case lifecycle.StatusClaimed, lifecycle.StatusRunning:
			f.followHeld(step)
		case lifecycle.StatusStalled:
			f.followStalled(step)
		case lifecycle.StatusNone, lifecycle.StatusSucceeded, lifecycle.StatusFailed:
			f.err = fmt.Errorf("the open item is neither queued, held nor stalled while its step is %s", before.Steps[open.StepIndex].State)
		}
		if f.err != nil {
			return Moves{}, fmt.Errorf("work item %s: %w", open.WorkID, f.err)
		}
	}
	if i, queued := f.after.Queued(); queued && f.record == nil {
		if err := f.enqueue(i); err != nil {
			return Moves{}, err
		}
	}
	f.moves.Open = f.record
	return f.moves, nil
}

// follower builds one change.
type follower struct {
	after *statemachine.Aggregate
	light bool
	ask   Ask
	now   time.Time

	record *Record        // the open item, nil once it has ended
	item   lifecycle.Item // after the moves so far
	moves  Moves
	err    error
}

// followQueued moves an item that no worker holds: a claim takes it, and any other
// change that ends its wait removes it.
func (f *follower) followQueued(step *statemachine.Step) {
	claimed := f.ask.Operation == lifecycle.OpClaimNext
	switch {
	case step.State == statemachine.StepAwaitingAck && step.LeaseExpiresAt.IsZero():
	case claimed && step.State == statemachine.StepAwaitingAck:
		f.move(lifecycle.Claim(f.item, f.ask.Request, step.LeaseExpiresAt, f.now))
	case claimed && step.State == statemachine.StepInProgress:
		f.move(lifecycle.ClaimAndStart(f.item, f.ask.Request, step.LeaseExpiresAt, f.now))
	default:
		f.remove()
	}
}

// followHeld moves an item that a worker holds. The worker's reports, by a verb or a
// callback, are the owner's moves; a deadline or an operator takes the item from it.
// A held attempt had no RESULT before.
func (f *follower) followHeld(step *statemachine.Step) {
	owner := f.item.Owner
	result := step.Result(f.record.AttemptNo)
	running := step.State == statemachine.StepInProgress || result != ""
	if f.item.Status == lifecycle.StatusClaimed && running {
		lease := step.LeaseExpiresAt
		if lease.IsZero() { // The same change ended the step.
			lease = f.now.Add(step.Policy.Lease)
		}
		f.move(lifecycle.Start(f.item, f.request(lifecycle.OpStart, owner), lease, f.now))
	} else if f.light {
		f.move(lifecycle.Heartbeat(f.item, f.request(lifecycle.OpHeartbeat, owner), step.LeaseExpiresAt, f.now))
	}
	switch {
	case f.err != nil || result == "" && (step.State == statemachine.StepInProgress || step.State == statemachine.StepAwaitingAck):
	case result == statemachine.ResultSucceeded:
		f.move(lifecycle.Complete(f.item, f.request(lifecycle.OpComplete, owner), resultOf(step), f.now))
	case result != "": // A failed RESULT always has a code.
		failure := lifecycle.Failure{Code: step.LastErrorCode, Message: step.LastErrorMessage}
		f.move(lifecycle.Fail(f.item, f.request(lifecycle.OpFail, owner), failure, f.now))
	default:
		f.move(lifecycle.Stall(f.item, f.request(lifecycle.OpStall, actorLedger), f.now))
		if step.State.Terminal() {
			f.remove()
		}
	}
}

// followStalled moves an item that was taken from its worker: the next attempt comes
// back as the same item. Without a next attempt the item is removed, also if a pause
// withdraws that attempt before it was offered.
func (f *follower) followStalled(step *statemachine.Step) {
	row := f.after.Outbox
	withdrawn := step.LeaseID == ""
	switch {
	case step.State == statemachine.StepFailedRetry && !withdrawn:
	case step.State == statemachine.StepDispatching && row.Bus == statemachine.BusQueue:
		if f.ask.Operation == lifecycle.OpRequeueStalled {
			f.record.RequeuedBy = Requester{f.ask.Request.Actor, f.ask.Request.ID, f.ask.Request.Reason}
			f.moves.Changed = true
		}
	case step.State == statemachine.StepAwaitingAck && row.Bus == statemachine.BusQueue:
		by := f.request(lifecycle.OpRequeueStalled, actorRelay)
		if held := f.record.RequeuedBy; held.Actor != "" {
			by.Actor, by.ID, by.Reason = held.Actor, held.RequestID, held.Reason
		}
		f.move(lifecycle.Requeue(f.item, by, directiveOf(row), f.now))
		f.record.RequeuedBy = Requester{}
		f.record.ReadySince, f.record.ReadyRev = f.now, f.after.Job.Rev
	default:
		f.remove()
	}
}

// directiveOf returns the reference to the message of the outbox row's attempt.
func directiveOf(row *statemachine.Outbox) lifecycle.Directive {
	return lifecycle.Directive{MessageID: MessageID(row.ID, row.AttemptNo), AttemptNo: row.AttemptNo, LeaseID: row.LeaseID}
}

// enqueue makes the item of step i, whose attempt the change published.
func (f *follower) enqueue(i int) error {
	step, row := &f.after.Steps[i], f.after.Outbox
	directive := directiveOf(row)
	change, err := lifecycle.Enqueue(nil, row.ID, actorRelay, lifecycle.Message{
		Directive: directive, DedupeKey: directive.MessageID, JobID: f.after.Job.ID, StepID: step.ID,
		TenantID: f.after.Job.TenantID, Service: step.Service, StepType: step.Type,
	}, f.now)
	if err != nil {
		return fmt.Errorf("work item %s: %w", row.ID, err)
	}
	f.record = &Record{
		WorkID: row.ID, DedupeKey: directive.MessageID, StepIndex: i, CreatedAt: f.now, ReadySince: f.now, ReadyRev: f.after.Job.Rev,
	}
	f.move(change, nil)
	return nil
}

// move adds a move of the lifecycle to the change.
func (f *follower) move(change lifecycle.Change, err error) {
	if err != nil {
		f.err = err
		return
	}
	f.item = change.Item
	f.record.take(&change.Item)
	f.moves.Changed = true
	f.moves.Events = append(f.moves.Events, change.Events...)
	if !f.record.Open() {
		f.moves.Ended, f.record = f.record, nil
	}
}

// remove drops the item from the queue.
func (f *follower) remove() {
	if f.err != nil {
		return
	}
	change, err := lifecycle.Remove(f.item, f.request("", actorLedger), f.now)
	if err != nil {
		f.err = err
		return
	}
	f.moves.Events = append(f.moves.Events, change.Events...)
	f.record.Ended, f.record.Removed = f.item.Status, true
	f.moves.Changed = true
	f.moves.Ended, f.record = f.record, nil
}

// request is the request for a move: the verb's own if it asked for the operation, or else
// one in the actor's name, with an id that the item does not remember: a worker may have
// the name of a part of the system, and may have used any id.
func (f *follower) request(operation lifecycle.Operation, actor string) lifecycle.Request {
	if operation != "" && f.ask.Operation == operation {
		return f.ask.Request
	}
	request := lifecycle.Request{Actor: actor, ExpectedRev: f.item.Rev, ID: fmt.Sprint("ledger-", f.item.Rev)}
	for slices.ContainsFunc(f.item.Requests, func(known lifecycle.Remembered) bool {
		return known.Actor == actor && known.RequestID == request.ID
	}) {
		request.ID += "+"
	}
	return request
}
