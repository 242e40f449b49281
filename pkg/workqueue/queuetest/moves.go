package queuetest

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

var enqueueChecks = []check{
	{
		"enqueue/makes a queued item",
		"Enqueue creates queued; attempt starts at 0 when created in queued.",
		func(t testing.TB, e *env) {
			message := e.message(t)
			before := e.now()
			item := e.enqueue(t, message)
			e.expectItem(t, item)
			if item.Status != statemachine.StatusQueued || item.Attempt != 0 {
				t.Errorf("item is %s with attempt %d, want queued with attempt 0", item.Status, item.Attempt)
			}
			if item.CreatedAt.Before(before) || item.CreatedAt.After(e.Now()) {
				t.Errorf("created at %s, want the time of the enqueue, %s", item.CreatedAt, before)
			}
			if diff := cmp.Diff(message, messageOf(item)); diff != "" {
				t.Errorf("the item's message (-want +got):\n%s", diff)
			}
		},
	},
	{
		"enqueue/a duplicate returns the existing item in any status",
		"Enqueue returns the existing record by dedupe_key.",
		func(t testing.TB, e *env) {
			for _, status := range statemachine.ItemStatuses() {
				item := e.in(t, status)
				e.duplicates(t, messageOf(item), item)
			}
		},
	},
	{
		"enqueue/the message of a requeue is a duplicate, and so is the one before",
		"Enqueue returns the existing record by dedupe_key; requeueStalled is stalled to queued, not a new record.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, statemachine.StatusStalled)
			queued := e.must(t, statemachine.OpRequeueStalled, stalled)
			republished := messageOf(queued)
			republished.DedupeKey = queued.MessageID
			e.duplicates(t, republished, queued)
			e.duplicates(t, messageOf(stalled), queued)
		},
	},
	{
		"enqueue/other messages are other items",
		"Enqueue creates queued, unless there is a record by dedupe_key.",
		func(t testing.TB, e *env) {
			first, second := e.in(t, statemachine.StatusQueued), e.in(t, statemachine.StatusQueued)
			if first.WorkID == second.WorkID {
				t.Errorf("two messages share the item %s", first.WorkID)
			}
		},
	},
	{
		"enqueue/an unknown id is not found",
		"Enqueue is the only operation that creates a record.",
		func(t testing.TB, e *env) {
			const unknown = "no-such-work"
			if _, err := e.Queue.Get(t.Context(), unknown); !errors.Is(err, statemachine.ErrNoItem) {
				t.Errorf("get: error is %v, want ErrNotFound", err)
			}
			if _, err := e.Queue.Events(t.Context(), unknown); !errors.Is(err, statemachine.ErrNoItem) {
				t.Errorf("events: error is %v, want ErrNotFound", err)
			}
			for _, op := range asked {
				item := statemachine.Item{WorkID: unknown, Rev: 1, AttemptNo: 1}
				if _, err := e.ask(t, op, item, e.request(anna, item)); !errors.Is(err, statemachine.ErrNoItem) {
					t.Errorf("%s: error is %v, want ErrNotFound", op, err)
				}
			}
		},
	},
}

// duplicates fails unless enqueueing the message returns that item unchanged,
// and adds nothing to claim.
func (e *env) duplicates(t testing.TB, message statemachine.ItemMessage, item statemachine.Item) {
	t.Helper()
	e.untouched(t, item.WorkID, "a duplicate", func() {
		again, err := e.Queue.Enqueue(t.Context(), message)
		if err != nil {
			t.Errorf("enqueue of a duplicate of a %s item: %v", item.Status, err)
			return
		}
		if diff := cmp.Diff(item, again, sameItem); diff != "" {
			t.Errorf("a duplicate of a %s item returned (-want +got):\n%s", item.Status, diff)
		}
	})
	if item.Status == statemachine.StatusQueued || item.Status == statemachine.StatusStalled {
		return
	}
	if items := e.claim(t, e.claimOf(item, bert)); len(items) > 0 {
		t.Errorf("a duplicate of a %s item left %v to be claimed", item.Status, workIDs(items))
	}
}

// messageOf is the message that the item stands for.
func messageOf(item statemachine.Item) statemachine.ItemMessage {
	return statemachine.ItemMessage{
		ItemDirective: directiveOf(item), DedupeKey: item.DedupeKey, JobID: item.JobID, StepID: item.StepID,
		TenantID: item.TenantID, Service: item.Service, StepType: item.StepType,
	}
}

func directiveOf(item statemachine.Item) statemachine.ItemDirective {
	return statemachine.ItemDirective{MessageID: item.MessageID, AttemptNo: item.AttemptNo, LeaseID: item.LeaseID}
}

var workChecks = []check{
	{
		"start/makes a claimed item run",
		"claimed to running; attempt must not change on start; owner and lease must be present.",
		func(t testing.TB, e *env) {
			claimed := e.in(t, statemachine.StatusClaimed)
			item := e.must(t, statemachine.OpStart, claimed)
			e.expectItem(t, item)
			e.expectMove(t, claimed, item, statemachine.StatusRunning, 0)
			if item.Owner != anna || !item.LeaseExpiresAt.After(e.Now()) {
				t.Errorf("held by %q until %s", item.Owner, item.LeaseExpiresAt)
			}
		},
	},
	{
		"heartbeat/extends the lease of a claimed and of a running item",
		"claimed to claimed and running to running: lease extension; rev increases, attempt must not change.",
		func(t testing.TB, e *env) {
			for _, status := range []statemachine.ItemStatus{statemachine.StatusClaimed, statemachine.StatusRunning} {
				before := e.in(t, status)
				e.Advance(time.Minute)
				item := e.must(t, statemachine.OpHeartbeat, before)
				e.expectItem(t, item)
				e.expectMove(t, before, item, status, 0)
				if item.Owner != anna || !item.LeaseExpiresAt.After(before.LeaseExpiresAt) {
					t.Errorf("%s: held by %q until %s, before until %s", status, item.Owner, item.LeaseExpiresAt, before.LeaseExpiresAt)
				}
				e.expectLast(t, item, statemachine.ItemEventHeartbeat)
			}
		},
	},
	{
		"end/complete keeps the result and clears owner and lease",
		"running to succeeded: result must be present, error absent, owner and lease cleared; attempt must not change.",
		func(t testing.TB, e *env) {
			for _, given := range []json.RawMessage{result, json.RawMessage(`{}`)} {
				running := e.in(t, statemachine.StatusRunning)
				item, err := e.Queue.Complete(t.Context(), running.WorkID, e.request(anna, running), given)
				if err != nil {
					t.Errorf("complete with %s: %v", given, err)
					continue
				}
				e.expectItem(t, item)
				e.expectMove(t, running, item, statemachine.StatusSucceeded, 0)
				e.expectFree(t, item)
				if diff := cmp.Diff(decode(t, given), decode(t, item.Result)); diff != "" || item.Error != nil {
					t.Errorf("result (-want +got), error %v:\n%s", item.Error, diff)
				}
			}
		},
	},
	{
		"end/fail keeps the error and clears owner and lease",
		"running to failed: error must be present, result absent, owner and lease cleared; attempt must not change.",
		func(t testing.TB, e *env) {
			running := e.in(t, statemachine.StatusRunning)
			item := e.must(t, statemachine.OpFail, running)
			e.expectItem(t, item)
			e.expectMove(t, running, item, statemachine.StatusFailed, 0)
			e.expectFree(t, item)
			if diff := cmp.Diff(&failure, item.Error); diff != "" || len(item.Result) > 0 {
				t.Errorf("error (-want +got), result %s:\n%s", item.Result, diff)
			}
		},
	},
	{
		"end/a terminal item never changes",
		"Terminal immutability: succeeded and failed are terminal, and no transition leaves them.",
		func(t testing.TB, e *env) {
			for _, status := range []statemachine.ItemStatus{statemachine.StatusSucceeded, statemachine.StatusFailed} {
				item := e.in(t, status)
				e.Advance(2 * claimLease)
				for _, op := range asked {
					e.refused(t, op, item, e.request(actorOf(op, item), item), statemachine.ErrIllegalTransition)
				}
				e.leaves(t, item)
			}
		},
	},
}

// decode reads JSON, so that a comparison ignores its formatting.
func decode(t testing.TB, text json.RawMessage) (value any) {
	t.Helper()
	if err := json.Unmarshal(text, &value); err != nil {
		t.Errorf("result %q: %v", text, err)
	}
	return value
}

var recoveryChecks = []check{
	{
		"stall/takes a claimed or running item from its owner",
		"claimed to stalled and running to stalled: owner and lease must be absent; attempt must not change.",
		func(t testing.TB, e *env) {
			for _, status := range []statemachine.ItemStatus{statemachine.StatusClaimed, statemachine.StatusRunning} {
				before := e.in(t, status)
				item := e.must(t, statemachine.OpStall, before)
				e.expectItem(t, item)
				e.expectMove(t, before, item, statemachine.StatusStalled, 0)
				e.expectFree(t, item)
			}
		},
	},
	{
		"stall/ends what the owner may do",
		"start, heartbeat, complete and fail must only be accepted from the current owner, and a stalled item has none.",
		func(t testing.TB, e *env) {
			item := e.in(t, statemachine.StatusStalled)
			for _, op := range ownersMoves {
				e.refused(t, op, item, e.request(anna, item), statemachine.ErrIllegalTransition)
			}
		},
	},
	{
		"requeue/offers a stalled item again with the next directive",
		"stalled to queued; attempt must not change on requeueStalled; owner and lease must be absent.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, statemachine.StatusStalled)
			next := e.next(t, stalled)
			item, err := e.Queue.Requeue(t.Context(), stalled.WorkID, e.request(sweeper, stalled), next)
			if err != nil {
				t.Fatalf("requeue: %v", err)
			}
			e.expectItem(t, item)
			e.expectMove(t, stalled, item, statemachine.StatusQueued, 0)
			e.expectFree(t, item)
			if diff := cmp.Diff(next, directiveOf(item)); diff != "" {
				t.Errorf("directive (-want +got):\n%s", diff)
			}
		},
	},
	{
		"requeue/the next claim is the next attempt",
		"attempt increments exactly when a job enters claimed, and survives stall and requeueStalled.",
		func(t testing.TB, e *env) {
			item := e.in(t, statemachine.StatusStalled)
			for attempt := 2; attempt <= 3; attempt++ {
				item = e.claimItem(t, e.must(t, statemachine.OpRequeueStalled, item), bert)
				if item.Attempt != attempt {
					t.Errorf("attempt is %d, want %d", item.Attempt, attempt)
				}
				item = e.must(t, statemachine.OpStall, item)
			}
		},
	},
	{
		"requeue/shuts the first owner out",
		"start, heartbeat, complete and fail must only be accepted from the current owner.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, statemachine.StatusStalled)
			item := e.claimItem(t, e.must(t, statemachine.OpRequeueStalled, stalled), bert)
			for _, op := range ownersMoves {
				e.refused(t, op, item, e.request(anna, item), statemachine.ErrNotOwner)
			}
			e.must(t, statemachine.OpComplete, e.must(t, statemachine.OpStart, item))
		},
	},
	{
		"requeue/never hands a pair out twice",
		"stalled exists to enable safe recovery without silent duplicate execution.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, statemachine.StatusStalled)
			e.untouched(t, stalled.WorkID, "a requeue with the old directive", func() {
				_, err := e.Queue.Requeue(t.Context(), stalled.WorkID, e.request(sweeper, stalled), directiveOf(stalled))
				if err == nil {
					t.Error("a requeue with the directive that was handed out before was accepted")
				}
			})
		},
	},
}

// asked lists the operations on one item.
var asked = []statemachine.ItemOperation{
	statemachine.OpStart, statemachine.OpHeartbeat, statemachine.OpComplete, statemachine.OpFail,
	statemachine.OpStall, statemachine.OpRequeueStalled,
}

// ownersMoves are those that only the owner may ask for.
var ownersMoves = asked[:4]

var transitionChecks = []check{
	{
		"transitions/the allowed ones are accepted from each status",
		"Allowed transitions (authoritative).",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				item := e.in(t, move.From)
				if after := e.must(t, move.Operation, item); after.Status != move.To {
					t.Errorf("%s led from %s to %s, want %s", move.Operation, move.From, after.Status, move.To)
				}
			}
		},
	},
	{
		"transitions/all others are refused in each status",
		"No transitions outside the set are allowed.",
		func(t testing.TB, e *env) {
			for _, status := range statemachine.ItemStatuses() {
				item := e.in(t, status)
				for _, op := range asked {
					if _, ok := statemachine.LookupItemTransition(op, status); !ok {
						e.refused(t, op, item, e.request(actorOf(op, item), item), statemachine.ErrIllegalTransition)
					}
				}
			}
		},
	},
}

// allowed are the transitions of one item.
func allowed() (moves []statemachine.ItemTransition) {
	for _, transition := range statemachine.ItemTransitions() {
		switch transition.Operation {
		case statemachine.OpEnqueue, statemachine.OpClaimNext:
		default:
			moves = append(moves, transition)
		}
	}
	return moves
}

var eventChecks = []check{
	{
		"events/tell the whole story in canonical words",
		"Each successful transition appends a JobEvent; event type strings are canonicalized across implementations.",
		func(t testing.TB, e *env) {
			item := e.must(t, statemachine.OpHeartbeat, e.in(t, statemachine.StatusClaimed))
			item = e.must(t, statemachine.OpStall, e.must(t, statemachine.OpStart, item))
			item = e.claimItem(t, e.must(t, statemachine.OpRequeueStalled, item), bert)
			item = e.must(t, statemachine.OpHeartbeat, e.must(t, statemachine.OpStart, item))
			e.must(t, statemachine.OpFail, item)
			e.expectTypes(t, item.WorkID,
				statemachine.ItemEventEnqueued, statemachine.ItemEventClaimed, statemachine.ItemEventHeartbeat,
				statemachine.ItemEventStarted, statemachine.ItemEventStalled, statemachine.ItemEventRequeued,
				statemachine.ItemEventClaimed, statemachine.ItemEventStarted, statemachine.ItemEventHeartbeat,
				statemachine.ItemEventFailed)
		},
	},
	{
		"events/say who, when, from where and by which request",
		"A JobEvent describes (from_status, to_status, at, actor, request_id).",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				item := e.in(t, move.From)
				e.Advance(claimLease / 4)
				before, request := e.now(), e.request(actorOf(move.Operation, item), item)
				after, err := e.ask(t, move.Operation, item, request)
				if err != nil {
					t.Fatalf("%s of a %s item: %v", move.Operation, move.From, err)
				}
				got := e.expectLast(t, after, move.Event)
				if got.At.Before(before) || got.At.After(e.Now()) {
					t.Errorf("%s happened at %s, the event says %s", move.Operation, before, got.At)
				}
				want := statemachine.ItemEvent{
					WorkID: item.WorkID, Rev: after.Rev, Type: move.Event, From: move.From, To: move.To, At: got.At,
					Actor: request.Actor, RequestID: request.ID, Attempt: item.Attempt,
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("event of %s (-want +got):\n%s", move.Operation, diff)
				}
			}
		},
	},
	{
		"events/of a claim name its owner and its request",
		"A JobEvent describes (from_status, to_status, at, actor, request_id).",
		func(t testing.TB, e *env) {
			queued := e.in(t, statemachine.StatusQueued)
			claim := e.claimOf(queued, anna)
			e.claim(t, claim)
			got := e.expectLast(t, e.get(t, queued.WorkID), statemachine.ItemEventClaimed)
			if got.Actor != anna || got.RequestID != claim.RequestID {
				t.Errorf("event names %q and %q, want %q and %q", got.Actor, got.RequestID, anna, claim.RequestID)
			}
		},
	},
}
