package statemachine

import (
	"fmt"
	"slices"
	"time"
)

// ItemAsk is the verb of the queue that caused a change. The zero value stands for any
// other cause: a callback, a deadline, an operator's pause.
type ItemAsk struct {
	Operation ItemOperation
	Request   ItemRequest
}

// ItemMoves are the effects of a job's change on its work items.
type ItemMoves struct {
	// Open is the job's open item after the change, nil if it has none. Changed says
	// that its record must be written.
	Open    *ItemRecord
	Changed bool
	// Ended is the item that the change ended or removed, nil if there is none.
	Ended *ItemRecord
	// Events are the moves, in their order.
	Events []ItemEvent
}

// The actors of moves that neither a worker nor an operator asked for.
const (
	actorLedger = "ledger"
	actorRelay  = "relay"
)

// FollowItem derives from an applied decision its effects on the job's open item (nil if
// there was none). A refusal of the lifecycle is returned as it is: the caller must
// have checked the verb before. Any other error is a defect.
func FollowItem(before *Aggregate, open *ItemRecord, d *Decision, ask ItemAsk, now time.Time) (ItemMoves, error) {
	f := &itemFollower{after: &d.After, light: d.Light, ask: ask, now: now}
	if open != nil {
		record := *open
		f.record, f.item = &record, ViewItem(before, open)
		step := &f.after.Steps[open.StepIndex]
		switch f.item.Status {
		case StatusQueued:
			f.followQueued(step)
		case StatusClaimed, StatusRunning:
			f.followHeld(step)
		case StatusStalled:
			f.followStalled(step)
		case StatusNone, StatusSucceeded, StatusFailed:
			f.err = fmt.Errorf("the open item is neither queued, held nor stalled while its step is %s", before.Steps[open.StepIndex].State)
		}
		if f.err != nil {
			return ItemMoves{}, fmt.Errorf("work item %s: %w", open.WorkID, f.err)
		}
	}
	if i, queued := f.after.Queued(); queued && f.record == nil {
		if err := f.enqueue(i); err != nil {
			return ItemMoves{}, err
		}
	}
	f.moves.Open = f.record
	return f.moves, nil
}

// itemFollower builds one change.
type itemFollower struct {
	after *Aggregate
	light bool
	ask   ItemAsk
	now   time.Time

	record *ItemRecord // the open item, nil once it has ended
	item   Item        // after the moves so far
	moves  ItemMoves
	err    error
}

// followQueued moves an item that no worker holds: a claim takes it, and any other
// change that ends its wait removes it.
func (f *itemFollower) followQueued(step *Step) {
	claimed := f.ask.Operation == OpClaimNext
	switch {
	case step.State == StepAwaitingAck && step.LeaseExpiresAt.IsZero():
		if class := f.after.Job.Class; f.record.ReadyClass != class { // Only the hint moves.
			f.record.ReadyClass, f.record.ReadyRev = class, f.after.Job.Rev
			f.moves.Changed = true
		}
	case claimed && step.State == StepAwaitingAck:
		f.move(ClaimItem(f.item, f.ask.Request, step.LeaseExpiresAt, f.now))
	case claimed && step.State == StepInProgress:
		f.move(ClaimAndStartItem(f.item, f.ask.Request, step.LeaseExpiresAt, f.now))
	default:
		f.remove()
	}
}

// followHeld moves an item that a worker holds. The worker's reports, by a verb or a
// callback, are the owner's moves; a deadline or an operator takes the item from it.
// A held attempt had no RESULT before.
func (f *itemFollower) followHeld(step *Step) {
	owner := f.item.Owner
	result := step.Result(f.record.AttemptNo)
	running := step.State == StepInProgress || result != ""
	if f.item.Status == StatusClaimed && running {
		lease := step.LeaseExpiresAt
		if lease.IsZero() { // The same change ended the step.
			lease = f.now.Add(step.Policy.Lease)
		}
		f.move(StartItem(f.item, f.request(OpStart, owner), lease, f.now))
	} else if f.light {
		f.move(HeartbeatItem(f.item, f.request(OpHeartbeat, owner), step.LeaseExpiresAt, f.now))
	}
	switch {
	case f.err != nil || result == "" && (step.State == StepInProgress || step.State == StepAwaitingAck):
	case result == ResultSucceeded:
		f.move(CompleteItem(f.item, f.request(OpComplete, owner), itemResultOf(step), f.now))
	case result != "": // A failed RESULT always has a code.
		failure := ItemFailure{Code: step.LastErrorCode, Message: step.LastErrorMessage}
		f.move(FailItem(f.item, f.request(OpFail, owner), failure, f.now))
	default:
		f.move(StallItem(f.item, f.request(OpStall, actorLedger), f.now))
		if step.State.Terminal() {
			f.remove()
		}
	}
}

// followStalled moves an item that was taken from its worker: the next attempt comes
// back as the same item. Without a next attempt the item is removed, also if a pause
// withdraws that attempt before it was offered.
func (f *itemFollower) followStalled(step *Step) {
	row := f.after.Outbox
	withdrawn := step.LeaseID == ""
	switch {
	case step.State == StepFailedRetry && !withdrawn:
	case step.State == StepDispatching && row.Bus == BusQueue:
		if f.ask.Operation == OpRequeueStalled {
			f.record.RequeuedBy = ItemRequester{f.ask.Request.Actor, f.ask.Request.ID, f.ask.Request.Reason}
			f.moves.Changed = true
		}
	case step.State == StepAwaitingAck && row.Bus == BusQueue:
		by := f.request(OpRequeueStalled, actorRelay)
		if held := f.record.RequeuedBy; held.Actor != "" {
			by.Actor, by.ID, by.Reason = held.Actor, held.RequestID, held.Reason
		}
		f.move(RequeueItem(f.item, by, itemDirectiveOf(row), f.now))
		f.record.RequeuedBy = ItemRequester{}
		f.record.ReadySince, f.record.ReadyRev, f.record.ReadyClass = f.now, f.after.Job.Rev, f.after.Job.Class
	default:
		f.remove()
	}
}

// itemDirectiveOf returns the reference to the message of the outbox row's attempt.
func itemDirectiveOf(row *Outbox) ItemDirective {
	return ItemDirective{MessageID: ItemMessageID(row.ID, row.AttemptNo), AttemptNo: row.AttemptNo, LeaseID: row.LeaseID}
}

// enqueue makes the item of step i, whose attempt the change published.
func (f *itemFollower) enqueue(i int) error {
	step, row := &f.after.Steps[i], f.after.Outbox
	directive := itemDirectiveOf(row)
	change, err := EnqueueItem(nil, row.ID, actorRelay, ItemMessage{
		ItemDirective: directive, DedupeKey: directive.MessageID, JobID: f.after.Job.ID, StepID: step.ID,
		TenantID: f.after.Job.TenantID, Service: step.Service, StepType: step.Type,
	}, f.now)
	if err != nil {
		return fmt.Errorf("work item %s: %w", row.ID, err)
	}
	f.record = &ItemRecord{
		WorkID: row.ID, DedupeKey: directive.MessageID, StepIndex: i, CreatedAt: f.now,
		ReadySince: f.now, ReadyRev: f.after.Job.Rev, ReadyClass: f.after.Job.Class,
	}
	f.move(change, nil)
	return nil
}

// move adds a move of the lifecycle to the change.
func (f *itemFollower) move(change ItemChange, err error) {
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
func (f *itemFollower) remove() {
	if f.err != nil {
		return
	}
	change, err := RemoveItem(f.item, f.request("", actorLedger), f.now)
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
func (f *itemFollower) request(operation ItemOperation, actor string) ItemRequest {
	if operation != "" && f.ask.Operation == operation {
		return f.ask.Request
	}
	request := ItemRequest{Actor: actor, ExpectedRev: f.item.Rev, ID: fmt.Sprint("ledger-", f.item.Rev)}
	for slices.ContainsFunc(f.item.Requests, func(known Remembered) bool {
		return known.Actor == actor && known.RequestID == request.ID
	}) {
		request.ID += "+"
	}
	return request
}
