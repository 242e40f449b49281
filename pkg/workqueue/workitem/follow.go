package workitem

import (
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Ask is the verb of the queue that caused a change. The zero value stands for
// any other cause: a callback, a deadline, an operator's pause.
type Ask struct {
	Operation lifecycle.Operation
	Request   lifecycle.Request
	// GaveOutput and GaveResult say which references a RESULT has.
	GaveOutput, GaveResult bool
}

// Moves are what a change of a job does to its work items.
type Moves struct {
	// Open is the job's open item after the change, nil if it has none. Changed says
	// that its record has to be written.
	Open    *Record
	Changed bool
	// Ended is the item that the change ended or removed, nil if it did neither.
	Ended *Record
	// Events are the moves, in their order.
	Events []lifecycle.Event
}

// The actors of moves that no worker and no operator asked for.
const (
	actorLedger = "ledger"
	actorRelay  = "relay"
)

// Follow derives from an applied decision what it does to the job's open item
// (nil if there was none). A refusal of the lifecycle is returned as it is: the
// verb that asked must have been checked before. Any other error is a defect.
func Follow(before *statemachine.Aggregate, open *Record, d *statemachine.Decision, ask Ask, now time.Time) (Moves, error) {
	f := &follower{before: before, after: &d.After, light: d.Light, ask: ask, now: now}
	if open != nil {
		record := *open
		f.record, f.item = &record, View(before, open)
		if err := f.follow(); err != nil {
			return Moves{}, fmt.Errorf("work item %s: %w", open.WorkID, err)
		}
	}
	if f.record == nil {
		if err := f.enqueue(); err != nil {
			return Moves{}, err
		}
	}
	f.moves.Open = f.record
	return f.moves, nil
}

// follower is one change in the making.
type follower struct {
	before, after *statemachine.Aggregate
	light         bool
	ask           Ask
	now           time.Time

	record *Record        // the open item, nil once it has ended
	item   lifecycle.Item // as the moves so far have left it
	moves  Moves
	err    error
}

// follow moves the open item to where its step went.
func (f *follower) follow() error {
	step := &f.after.Steps[f.record.StepIndex]
	switch f.item.Status {
	case lifecycle.StatusQueued:
		f.followQueued(step)
	case lifecycle.StatusClaimed, lifecycle.StatusRunning:
		f.followHeld(step)
	case lifecycle.StatusStalled:
		f.followStalled(step)
	case lifecycle.StatusNone, lifecycle.StatusSucceeded, lifecycle.StatusFailed:
		return fmt.Errorf("it is neither queued, held nor stalled while its step is %s", f.before.Steps[f.record.StepIndex].State)
	}
	return f.err
}

// followQueued handles an item that no worker holds: a claim takes it, and
// whatever else ends its wait removes it.
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

// followHeld handles an item in a worker's hands: what the worker reported,
// through whichever door, is the owner's move; what a deadline or an operator
// decided takes the item from it. An attempt that was held had no RESULT before.
func (f *follower) followHeld(step *statemachine.Step) {
	result := step.Result(f.record.AttemptNo)
	running := step.State == statemachine.StepInProgress || result != ""
	if f.item.Status == lifecycle.StatusClaimed && running {
		f.move(lifecycle.Start(f.item, f.owners(lifecycle.OpStart), leaseEnd(step, f.now), f.now))
	} else if f.light {
		f.move(lifecycle.Heartbeat(f.item, f.owners(lifecycle.OpHeartbeat), step.LeaseExpiresAt, f.now))
	}
	switch {
	case f.err != nil || result == "" && (step.State == statemachine.StepInProgress || step.State == statemachine.StepAwaitingAck):
	case result == statemachine.ResultSucceeded:
		f.record.GaveOutput, f.record.GaveResult = f.ask.GaveOutput, f.ask.GaveResult
		f.move(lifecycle.Complete(f.item, f.owners(lifecycle.OpComplete), f.record.result(step), f.now))
	case result != "":
		f.move(lifecycle.Fail(f.item, f.owners(lifecycle.OpFail), failureOf(step), f.now))
	default:
		f.move(lifecycle.Stall(f.item, f.systems(lifecycle.OpStall, actorLedger), f.now))
		if step.State.Terminal() {
			f.remove()
		}
	}
}

// followStalled handles an item that was taken from its worker: the next attempt
// comes back as the same item, or there is none. A pause that withdraws the next
// attempt before it was offered removes the item too.
func (f *follower) followStalled(step *statemachine.Step) {
	row := f.after.Outbox
	withdrawn := step.LeaseID == ""
	switch {
	case step.State == statemachine.StepFailedRetry && !withdrawn:
	case step.State == statemachine.StepDispatching && row.Bus == statemachine.BusQueue:
		if f.ask.Operation == lifecycle.OpRequeueStalled {
			f.record.RequeuedBy = Requester{f.ask.Request.Actor, f.ask.Request.ID}
			f.moves.Changed = true
		}
	case step.State == statemachine.StepAwaitingAck && row.Bus == statemachine.BusQueue:
		by := f.systems(lifecycle.OpRequeueStalled, actorRelay)
		if held := f.record.RequeuedBy; held.Actor != "" {
			by.Actor, by.ID = held.Actor, held.RequestID
		}
		f.move(lifecycle.Requeue(f.item, by, lifecycle.Directive{
			MessageID: MessageID(row.ID, row.AttemptNo), AttemptNo: row.AttemptNo, LeaseID: row.LeaseID,
		}, f.now))
		f.record.RequeuedBy = Requester{}
		f.record.ReadySince, f.record.ReadyRev = f.now, f.after.Job.Rev
	default:
		f.remove()
	}
}

// enqueue makes the item of an attempt that the change published.
func (f *follower) enqueue() error {
	i, queued := f.after.Queued()
	if !queued {
		return nil
	}
	step, row := &f.after.Steps[i], f.after.Outbox
	message := lifecycle.Message{
		Directive: lifecycle.Directive{
			MessageID: MessageID(row.ID, row.AttemptNo), AttemptNo: row.AttemptNo, LeaseID: row.LeaseID,
		},
		DedupeKey: MessageID(row.ID, row.AttemptNo), JobID: f.after.Job.ID, StepID: step.ID, TenantID: f.after.Job.TenantID,
		Service: step.Service, StepType: step.Type,
	}
	change, err := lifecycle.Enqueue(nil, row.ID, actorRelay, message, f.now)
	if err != nil {
		return fmt.Errorf("work item %s: %w", row.ID, err)
	}
	f.record = &Record{
		WorkID: row.ID, DedupeKey: message.DedupeKey, StepIndex: i, CreatedAt: f.now, ReadySince: f.now, ReadyRev: f.after.Job.Rev,
	}
	f.record.take(&change.Item)
	f.moves.Changed = true
	f.moves.Events = append(f.moves.Events, change.Events...)
	return nil
}

// move takes a move of the lifecycle over.
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
	change, err := lifecycle.Remove(f.item, f.systems("", actorLedger), f.now)
	if err != nil {
		f.err = err
		return
	}
	f.moves.Events = append(f.moves.Events, change.Events...)
	f.record.Ended, f.record.Removed = f.item.Status, true
	f.moves.Changed = true
	f.moves.Ended, f.record = f.record, nil
}

// owners is the request of an owner's move: the verb's own, or one in the owner's
// name if the worker reported past the queue.
func (f *follower) owners(operation lifecycle.Operation) lifecycle.Request {
	return f.request(operation, f.item.Owner)
}

// systems is the request of the system's move: the operator's own, or one in the
// name of the part that made it.
func (f *follower) systems(operation lifecycle.Operation, actor string) lifecycle.Request {
	return f.request(operation, actor)
}

// request makes an id that the item does not remember: a worker may have the name
// of a part of the system, and may have used any id.
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

// leaseEnd is the lease under which a step that has gone on was started: it may
// have ended by the same change.
func leaseEnd(step *statemachine.Step, now time.Time) time.Time {
	if step.LeaseExpiresAt.IsZero() {
		return now.Add(step.Policy.Lease)
	}
	return step.LeaseExpiresAt
}

// failureOf is the error that a RESULT left on its step. It always has a code.
func failureOf(step *statemachine.Step) lifecycle.Failure {
	return lifecycle.Failure{Code: step.LastErrorCode, Message: step.LastErrorMessage}
}
