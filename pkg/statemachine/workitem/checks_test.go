package workitem_test

import (
	"encoding/json"
	"fmt"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
	"github.com/lucius-project/lucius/pkg/statemachine/workitem"
)

// knowledge is what the checks remember of a job from change to change.
type knowledge struct {
	// items are the items according to the lifecycle alone: each move that Follow reports
	// is repeated on the previous item.
	items map[string]lifecycle.Item
	// rows are the latest outbox rows, and how tells how each step came to its state, both
	// by step. unclaimed are the attempts that got a report without a claim.
	rows      map[int]statemachine.Outbox
	how       map[int]cause
	unclaimed map[string]bool
	// requeue are the operators' requests that were held back, by work id.
	requeue map[string]workitem.Requester
}

// cause is how a step came to its state: by which kind of event, and whether a
// worker held its attempt then.
type cause struct {
	by   statemachine.Event
	held bool
}

func newKnowledge() knowledge {
	return knowledge{
		items: map[string]lifecycle.Item{}, rows: map[int]statemachine.Outbox{}, how: map[int]cause{}, unclaimed: map[string]bool{},
		requeue: map[string]workitem.Requester{},
	}
}

// attempt names an attempt of a step.
func attempt(step *statemachine.Step) string { return fmt.Sprint(step.ID, "#", step.AttemptNo) }

// check checks a change: it reports the same of the items as the lifecycle does of these
// moves, and what the job shows of all its items is valid and matches the table.
func (j *job) check(event statemachine.Event, ask workitem.Ask, d *statemachine.Decision, before *workitem.Record, moves *workitem.Moves) {
	j.t.Helper()
	if diff := cmp.Diff(before, j.open); diff != "" {
		j.t.Fatalf("Follow wrote to the record passed in:\n%s", diff)
	}
	j.learn(event, ask, d)
	j.checkCounts(before, moves)
	j.replay(event, d, moves)
	j.checkActors(ask, before, moves)
	for _, record := range []*workitem.Record{moves.Ended, moves.Open} {
		if record != nil {
			j.records[record.WorkID] = record
		}
	}
	for _, e := range moves.Events {
		j.events[e.WorkID] = append(j.events[e.WorkID], e)
	}
	j.checkItems(&d.After, moves)
	for i := range d.After.Steps {
		row, want := j.standing(&d.After, i)
		if got := j.status(&d.After, i); row == "" || got != want {
			j.t.Fatalf("after %T, step %d shows its worker %q; the table says %q, by %q\n%+v", event, i, got, want, row, d.After.Steps[i])
		}
	}
}

// learn remembers how the steps came to their states.
func (j *job) learn(event statemachine.Event, ask workitem.Ask, d *statemachine.Decision) {
	if i, queued := j.agg.Queued(); queued && ask.Operation == "" {
		switch event.(type) {
		case statemachine.Ack, statemachine.Heartbeat, statemachine.Result:
			j.known.unclaimed[attempt(&j.agg.Steps[i])] = true
		}
	}
	if row := d.After.Outbox; row != nil {
		j.known.rows[row.StepIndex] = *row
	}
	for i := range d.After.Steps {
		was, step := &j.agg.Steps[i], &d.After.Steps[i]
		if was.State == step.State {
			continue
		}
		held := was.State == statemachine.StepInProgress ||
			was.State == statemachine.StepAwaitingAck && !was.LeaseExpiresAt.IsZero()
		j.known.how[i] = cause{by: event, held: held}
	}
}

// checkCounts checks that rev rises exactly with moves, that the change that makes an item
// ready names the hint, and that nothing else has changed.
func (j *job) checkCounts(before *workitem.Record, moves *workitem.Moves) {
	j.t.Helper()
	if !moves.Changed {
		if diff := cmp.Diff(before, moves.Open); diff != "" || moves.Ended != nil || len(moves.Events) > 0 {
			j.t.Fatalf("changed, but not to be written: %s%+v", diff, moves)
		}
		return
	}
	for _, record := range []*workitem.Record{moves.Ended, moves.Open} {
		if record == nil {
			continue
		}
		was := workitem.Record{WorkID: record.WorkID}
		if before != nil && before.WorkID == record.WorkID {
			was = *before
		}
		var made int64
		ready := false
		for _, e := range moves.Events {
			if e.WorkID != record.WorkID {
				continue
			}
			if e.Type != lifecycle.EventRemoved {
				made++
			}
			ready = ready || e.To == lifecycle.StatusQueued
		}
		if record.Rev != was.Rev+made {
			j.t.Fatalf("%s went from rev %d to %d by %d moves", record.WorkID, was.Rev, record.Rev, made)
		}
		if ready != (record.ReadyRev != was.ReadyRev) || ready && (record.ReadyRev != j.agg.Job.Rev+1 || !record.ReadySince.Equal(j.now)) {
			j.t.Fatalf("%s names the hint of rev %d since %s", record.WorkID, record.ReadyRev, record.ReadySince)
		}
	}
}

// replay repeats the moves by the lifecycle alone, on the items of its last run, and
// compares the events and items with those that Follow reports.
func (j *job) replay(event statemachine.Event, d *statemachine.Decision, moves *workitem.Moves) {
	j.t.Helper()
	for i := 0; i < len(moves.Events); {
		e := moves.Events[i]
		withStart := e.Type == lifecycle.EventClaimed && i+1 < len(moves.Events) && moves.Events[i+1].Type == lifecycle.EventStarted
		change, err := j.move(e, withStart, event, d)
		if err != nil {
			j.t.Fatalf("%T: %s by %s is no move of the lifecycle: %v", event, e.Type, e.Actor, err)
		}
		end := min(i+max(1, len(change.Events)), len(moves.Events))
		if diff := cmp.Diff(change.Events, moves.Events[i:end]); diff != "" {
			j.t.Fatalf("%T: the events differ (-lifecycle +follow):\n%s", event, diff)
		}
		j.known.items[e.WorkID] = change.Item
		i = end
	}
	for _, record := range []*workitem.Record{moves.Ended, moves.Open} {
		if record != nil {
			j.compare(&d.After, record, len(moves.Events) > 0)
		}
	}
}

// move asks the lifecycle for the move that the event records.
func (j *job) move(e lifecycle.Event, withStart bool, event statemachine.Event, d *statemachine.Decision) (lifecycle.Change, error) {
	item := j.known.items[e.WorkID]
	request := lifecycle.Request{Actor: e.Actor, ExpectedRev: item.Rev, ID: e.RequestID}
	row, result := d.After.Outbox, statemachine.Result{}
	if report, ok := event.(statemachine.Result); ok {
		result = report
	}
	next := lifecycle.Directive{AttemptNo: row.AttemptNo, LeaseID: row.LeaseID, MessageID: fmt.Sprintf("%s/%d", row.ID, row.AttemptNo)}
	i, ok := stepOf(&d.After, item.StepID)
	if !ok {
		i = row.StepIndex
	}
	step := &d.After.Steps[i]
	lease := step.LeaseExpiresAt
	switch e.Type {
	case lifecycle.EventEnqueued:
		return lifecycle.Enqueue(nil, row.ID, e.Actor, lifecycle.Message{
			Directive: next, DedupeKey: next.MessageID, JobID: d.After.Job.ID, StepID: step.ID, TenantID: d.After.Job.TenantID,
			Service: step.Service, StepType: step.Type,
		}, j.now)
	case lifecycle.EventClaimed:
		if withStart {
			return lifecycle.ClaimAndStart(item, request, lease, j.now)
		}
		return lifecycle.Claim(item, request, lease, j.now)
	case lifecycle.EventStarted:
		if lease.IsZero() { // A RESULT started and ended it.
			lease = j.now.Add(step.Policy.Lease)
		}
		return lifecycle.Start(item, request, lease, j.now)
	case lifecycle.EventHeartbeat:
		return lifecycle.Heartbeat(item, request, lease, j.now)
	case lifecycle.EventSucceeded:
		refs := map[string]json.RawMessage{}
		for name, ref := range map[string]json.RawMessage{"output_ref": result.OutputRef, "result_ref": result.ResultRef} {
			if ref != nil {
				refs[name] = ref
			}
		}
		object, err := json.Marshal(refs)
		if err != nil {
			return lifecycle.Change{}, err
		}
		return lifecycle.Complete(item, request, object, j.now)
	case lifecycle.EventFailed:
		failure := lifecycle.Failure{Code: result.Status.ErrorCode(result.ErrorCode), Message: result.ErrorMessage}
		return lifecycle.Fail(item, request, failure, j.now)
	case lifecycle.EventStalled:
		return lifecycle.Stall(item, request, j.now)
	case lifecycle.EventRequeued:
		return lifecycle.Requeue(item, request, next, j.now)
	case lifecycle.EventRemoved:
		return lifecycle.Remove(item, request, j.now)
	}
	return lifecycle.Change{}, fmt.Errorf("unknown event %q", e.Type)
}

// stepOf returns the index of the step with that id.
func stepOf(agg *statemachine.Aggregate, id string) (int, bool) {
	for i := range agg.Steps {
		if agg.Steps[i].ID == id {
			return i, true
		}
	}
	return 0, false
}

// compare checks that step and record show the lifecycle's item. The lease is the step's,
// which an outage may extend without a move. An item that no worker holds or may claim
// shows what the step remembers of the lease id.
func (j *job) compare(agg *statemachine.Aggregate, record *workitem.Record, moved bool) {
	j.t.Helper()
	want, got := j.known.items[record.WorkID], workitem.View(agg, record)
	step := &agg.Steps[record.StepIndex]
	if !record.Open() || want.Status == lifecycle.StatusStalled {
		want.LeaseID = "forgotten"
		for _, known := range step.Attempts {
			if known.No == record.AttemptNo {
				want.LeaseID = known.LeaseDigest
			}
		}
	}
	if !moved && want.Status.Held() {
		want.LeaseExpiresAt = step.LeaseExpiresAt
	}
	if diff := cmp.Diff(want, got); diff != "" {
		j.t.Fatalf("the item is not what the lifecycle made of it (-lifecycle +view):\n%s", diff)
	}
}

// checkActors checks the actors of the moves: the verb's actor, the operator whose requeue
// was held back, or else the owner or a part of the system.
func (j *job) checkActors(ask workitem.Ask, before *workitem.Record, moves *workitem.Moves) {
	j.t.Helper()
	operations := map[lifecycle.EventType]lifecycle.Operation{
		lifecycle.EventClaimed: lifecycle.OpClaimNext, lifecycle.EventStarted: lifecycle.OpStart,
		lifecycle.EventHeartbeat: lifecycle.OpHeartbeat, lifecycle.EventSucceeded: lifecycle.OpComplete,
		lifecycle.EventFailed: lifecycle.OpFail, lifecycle.EventStalled: lifecycle.OpStall,
		lifecycle.EventRequeued: lifecycle.OpRequeueStalled,
	}
	for _, e := range moves.Events {
		by, id := ask.Request.Actor, ask.Request.ID
		own := operations[e.Type] == ask.Operation || ask.Operation == lifecycle.OpClaimNext && e.Type == lifecycle.EventStarted
		switch {
		case ask.Operation != "" && own:
		case e.Type == lifecycle.EventRequeued && j.known.requeue[e.WorkID].Actor != "":
			by, id = j.known.requeue[e.WorkID].Actor, j.known.requeue[e.WorkID].RequestID
		case e.Type == lifecycle.EventEnqueued || e.Type == lifecycle.EventRequeued:
			by, id = "relay", e.RequestID
		case e.Type == lifecycle.EventStalled || e.Type == lifecycle.EventRemoved:
			by, id = "ledger", e.RequestID
		default:
			by, id = before.Owner, e.RequestID
		}
		if e.Actor != by || e.RequestID != id {
			j.t.Fatalf("%s by %q, request %q; want %q, %q", e.Type, e.Actor, e.RequestID, by, id)
		}
		delete(j.known.requeue, e.WorkID)
	}
	if ask.Operation == lifecycle.OpRequeueStalled && len(moves.Events) == 0 {
		j.known.requeue[before.WorkID] = workitem.Requester{Actor: ask.Request.Actor, RequestID: ask.Request.ID}
	}
}

// checkItems checks all items of the job, as it shows them now, by the policy's
// validators, and that at most one is open, none once the job has ended.
func (j *job) checkItems(agg *statemachine.Aggregate, moves *workitem.Moves) {
	j.t.Helper()
	open := 0
	for id, record := range j.records {
		item := workitem.View(agg, record)
		if err := lifecycle.Validate(item); err != nil {
			j.t.Fatalf("%v", err)
		}
		if err := lifecycle.ValidateHistory(item, j.events[id]); err != nil {
			j.t.Fatalf("%v", err)
		}
		if record.Open() {
			open++
		}
		removed := j.events[id][len(j.events[id])-1].Type == lifecycle.EventRemoved
		if removed != record.Removed || record.Open() && record != moves.Open {
			j.t.Fatalf("%s is open: %t, removed: %t; its history ends with a removal: %t", id, record.Open(), record.Removed, removed)
		}
	}
	if open > 1 || open == 1 && agg.Job.State.Terminal() {
		j.t.Fatalf("%d items are open, the job is %s", open, agg.Job.State)
	}
}

// status returns the status of the item of the step's attempt, as workers see it, none if
// it was removed.
func (j *job) status(agg *statemachine.Aggregate, i int) lifecycle.Status {
	record := j.record(agg, i)
	if record == nil || record.Removed {
		return lifecycle.StatusNone
	}
	return workitem.View(agg, record).Status
}

// record returns the record of a step's attempt: the step's open one, or else the record
// that ended with this attempt, nil if there is none.
func (j *job) record(agg *statemachine.Aggregate, i int) *workitem.Record {
	for _, record := range j.records {
		if record.StepIndex == i && (record.Open() || record.AttemptNo == agg.Steps[i].AttemptNo) {
			return record
		}
	}
	return nil
}
