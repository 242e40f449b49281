package statemachine_test

import (
	"encoding/json"
	"fmt"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// knowledge is what the checks remember of a job from change to change.
type knowledge struct {
	// items are the items according to the lifecycle alone: each move that FollowItem reports
	// is repeated on the previous item.
	items map[string]statemachine.Item
	// rows are the latest outbox rows, and how tells how each step came to its state, both
	// by step. unclaimed are the attempts that got a report without a claim.
	rows      map[int]statemachine.Outbox
	how       map[int]itemCause
	unclaimed map[string]bool
	// requeue are the operators' requests that were held back, by work id.
	requeue map[string]statemachine.ItemRequester
}

// cause is how a step came to its state: by which kind of event, and whether a
// worker held its attempt then.
type itemCause struct {
	by   statemachine.Event
	held bool
}

func newKnowledge() knowledge {
	return knowledge{
		items: map[string]statemachine.Item{}, rows: map[int]statemachine.Outbox{}, how: map[int]itemCause{}, unclaimed: map[string]bool{},
		requeue: map[string]statemachine.ItemRequester{},
	}
}

// attempt names an attempt of a step.
func itemAttempt(step *statemachine.Step) string { return fmt.Sprint(step.ID, "#", step.AttemptNo) }

// check checks a change: it reports the same of the items as the lifecycle does of these
// moves, and what the job shows of all its items is valid and matches the table.
func (j *itemJob) check(event statemachine.Event, ask statemachine.ItemAsk, d *statemachine.Decision, before *statemachine.ItemRecord, moves *statemachine.ItemMoves) {
	j.t.Helper()
	if diff := cmp.Diff(before, j.open); diff != "" {
		j.t.Fatalf("Follow wrote to the record passed in:\n%s", diff)
	}
	j.learn(event, ask, d)
	j.checkCounts(before, moves)
	j.replay(event, d, moves)
	j.checkActors(ask, before, moves)
	for _, record := range []*statemachine.ItemRecord{moves.Ended, moves.Open} {
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
func (j *itemJob) learn(event statemachine.Event, ask statemachine.ItemAsk, d *statemachine.Decision) {
	if i, queued := j.agg.Queued(); queued && ask.Operation == "" {
		switch event.(type) {
		case statemachine.Ack, statemachine.Heartbeat, statemachine.Result:
			j.known.unclaimed[itemAttempt(&j.agg.Steps[i])] = true
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
		j.known.how[i] = itemCause{by: event, held: held}
	}
}

// checkCounts checks that rev rises exactly with moves, that the change that makes an item
// ready names the hint, and that nothing else has changed.
func (j *itemJob) checkCounts(before *statemachine.ItemRecord, moves *statemachine.ItemMoves) {
	j.t.Helper()
	if !moves.Changed {
		if diff := cmp.Diff(before, moves.Open); diff != "" || moves.Ended != nil || len(moves.Events) > 0 {
			j.t.Fatalf("changed, but not to be written: %s%+v", diff, moves)
		}
		return
	}
	for _, record := range []*statemachine.ItemRecord{moves.Ended, moves.Open} {
		if record == nil {
			continue
		}
		was := statemachine.ItemRecord{WorkID: record.WorkID}
		if before != nil && before.WorkID == record.WorkID {
			was = *before
		}
		var made int64
		ready := false
		for _, e := range moves.Events {
			if e.WorkID != record.WorkID {
				continue
			}
			if e.Type != statemachine.ItemEventRemoved {
				made++
			}
			ready = ready || e.To == statemachine.StatusQueued
		}
		if record.Rev != was.Rev+made {
			j.t.Fatalf("%s went from rev %d to %d by %d moves", record.WorkID, was.Rev, record.Rev, made)
		}
		// A directive that waits moves to the hint of its new class, and keeps its age.
		reclassed := !ready && record.ReadyClass != was.ReadyClass
		since := was.ReadySince
		if ready {
			since = j.now
		}
		moved := ready || reclassed
		if moved != (record.ReadyRev != was.ReadyRev) || moved && record.ReadyRev != j.agg.Job.Rev+1 || !record.ReadySince.Equal(since) {
			j.t.Fatalf("%s names the hint of rev %d since %s", record.WorkID, record.ReadyRev, record.ReadySince)
		}
	}
}

// replay repeats the moves by the lifecycle alone, on the items of its last run, and
// compares the events and items with those that FollowItem reports.
func (j *itemJob) replay(event statemachine.Event, d *statemachine.Decision, moves *statemachine.ItemMoves) {
	j.t.Helper()
	for i := 0; i < len(moves.Events); {
		e := moves.Events[i]
		withStart := e.Type == statemachine.ItemEventClaimed && i+1 < len(moves.Events) && moves.Events[i+1].Type == statemachine.ItemEventStarted
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
	for _, record := range []*statemachine.ItemRecord{moves.Ended, moves.Open} {
		if record != nil {
			j.compare(&d.After, record, len(moves.Events) > 0)
		}
	}
}

// move asks the lifecycle for the move that the event records.
func (j *itemJob) move(e statemachine.ItemEvent, withStart bool, event statemachine.Event, d *statemachine.Decision) (statemachine.ItemChange, error) {
	item := j.known.items[e.WorkID]
	request := statemachine.ItemRequest{Actor: e.Actor, ExpectedRev: item.Rev, ID: e.RequestID}
	row, result := d.After.Outbox, statemachine.Result{}
	if report, ok := event.(statemachine.Result); ok {
		result = report
	}
	next := statemachine.ItemDirective{AttemptNo: row.AttemptNo, LeaseID: row.LeaseID, MessageID: fmt.Sprintf("%s/%d", row.ID, row.AttemptNo)}
	i, ok := itemStepOf(&d.After, item.StepID)
	if !ok {
		i = row.StepIndex
	}
	step := &d.After.Steps[i]
	lease := step.LeaseExpiresAt
	switch e.Type {
	case statemachine.ItemEventEnqueued:
		return statemachine.EnqueueItem(nil, row.ID, e.Actor, statemachine.ItemMessage{
			ItemDirective: next, DedupeKey: next.MessageID, JobID: d.After.Job.ID, StepID: step.ID, TenantID: d.After.Job.TenantID,
			Service: step.Service, StepType: step.Type,
		}, j.now)
	case statemachine.ItemEventClaimed:
		if withStart {
			return statemachine.ClaimAndStartItem(item, request, lease, j.now)
		}
		return statemachine.ClaimItem(item, request, lease, j.now)
	case statemachine.ItemEventStarted:
		if lease.IsZero() { // A RESULT started and ended it.
			lease = j.now.Add(step.Policy.Lease)
		}
		return statemachine.StartItem(item, request, lease, j.now)
	case statemachine.ItemEventHeartbeat:
		return statemachine.HeartbeatItem(item, request, lease, j.now)
	case statemachine.ItemEventSucceeded:
		refs := map[string]json.RawMessage{}
		for name, ref := range map[string]json.RawMessage{"output_ref": result.OutputRef, "result_ref": result.ResultRef} {
			if ref != nil {
				refs[name] = ref
			}
		}
		object, err := json.Marshal(refs)
		if err != nil {
			return statemachine.ItemChange{}, err
		}
		return statemachine.CompleteItem(item, request, object, j.now)
	case statemachine.ItemEventFailed:
		failure := statemachine.ItemFailure{Code: result.Status.ErrorCode(result.ErrorCode), Message: result.ErrorMessage}
		return statemachine.FailItem(item, request, failure, j.now)
	case statemachine.ItemEventStalled:
		return statemachine.StallItem(item, request, j.now)
	case statemachine.ItemEventRequeued:
		return statemachine.RequeueItem(item, request, next, j.now)
	case statemachine.ItemEventRemoved:
		return statemachine.RemoveItem(item, request, j.now)
	}
	return statemachine.ItemChange{}, fmt.Errorf("unknown event %q", e.Type)
}

// stepOf returns the index of the step with that id.
func itemStepOf(agg *statemachine.Aggregate, id string) (int, bool) {
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
func (j *itemJob) compare(agg *statemachine.Aggregate, record *statemachine.ItemRecord, moved bool) {
	j.t.Helper()
	want, got := j.known.items[record.WorkID], statemachine.ViewItem(agg, record)
	step := &agg.Steps[record.StepIndex]
	if !record.Open() || want.Status == statemachine.StatusStalled {
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
func (j *itemJob) checkActors(ask statemachine.ItemAsk, before *statemachine.ItemRecord, moves *statemachine.ItemMoves) {
	j.t.Helper()
	operations := map[statemachine.ItemEventType]statemachine.ItemOperation{
		statemachine.ItemEventClaimed: statemachine.OpClaimNext, statemachine.ItemEventStarted: statemachine.OpStart,
		statemachine.ItemEventHeartbeat: statemachine.OpHeartbeat, statemachine.ItemEventSucceeded: statemachine.OpComplete,
		statemachine.ItemEventFailed: statemachine.OpFail, statemachine.ItemEventStalled: statemachine.OpStall,
		statemachine.ItemEventRequeued: statemachine.OpRequeueStalled,
	}
	for _, e := range moves.Events {
		by, id := ask.Request.Actor, ask.Request.ID
		own := operations[e.Type] == ask.Operation || ask.Operation == statemachine.OpClaimNext && e.Type == statemachine.ItemEventStarted
		switch {
		case ask.Operation != "" && own:
		case e.Type == statemachine.ItemEventRequeued && j.known.requeue[e.WorkID].Actor != "":
			by, id = j.known.requeue[e.WorkID].Actor, j.known.requeue[e.WorkID].RequestID
		case e.Type == statemachine.ItemEventEnqueued || e.Type == statemachine.ItemEventRequeued:
			by, id = "relay", e.RequestID
		case e.Type == statemachine.ItemEventStalled || e.Type == statemachine.ItemEventRemoved:
			by, id = "ledger", e.RequestID
		default:
			by, id = before.Owner, e.RequestID
		}
		if e.Actor != by || e.RequestID != id {
			j.t.Fatalf("%s by %q, request %q; want %q, %q", e.Type, e.Actor, e.RequestID, by, id)
		}
		delete(j.known.requeue, e.WorkID)
	}
	if ask.Operation == statemachine.OpRequeueStalled && len(moves.Events) == 0 {
		j.known.requeue[before.WorkID] = statemachine.ItemRequester{Actor: ask.Request.Actor, RequestID: ask.Request.ID}
	}
}

// checkItems checks all items of the job, as it shows them now, by the policy's
// validators, and that at most one is open, none once the job has ended.
func (j *itemJob) checkItems(agg *statemachine.Aggregate, moves *statemachine.ItemMoves) {
	j.t.Helper()
	open := 0
	for id, record := range j.records {
		item := statemachine.ViewItem(agg, record)
		if err := statemachine.ValidateItem(item); err != nil {
			j.t.Fatalf("%v", err)
		}
		if err := statemachine.ValidateItemHistory(item, j.events[id]); err != nil {
			j.t.Fatalf("%v", err)
		}
		if record.Open() {
			open++
		}
		removed := j.events[id][len(j.events[id])-1].Type == statemachine.ItemEventRemoved
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
func (j *itemJob) status(agg *statemachine.Aggregate, i int) statemachine.ItemStatus {
	record := j.record(agg, i)
	if record == nil || record.Removed {
		return statemachine.StatusNone
	}
	return statemachine.ViewItem(agg, record).Status
}

// record returns the record of a step's attempt: the step's open one, or else the record
// that ended with this attempt, nil if there is none.
func (j *itemJob) record(agg *statemachine.Aggregate, i int) *statemachine.ItemRecord {
	for _, record := range j.records {
		if record.StepIndex == i && (record.Open() || record.AttemptNo == agg.Steps[i].AttemptNo) {
			return record
		}
	}
	return nil
}
