package queuetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

var eventChecks = []check{
	{
		"events/tell the whole story in canonical words",
		"Each successful transition appends a JobEvent; event type strings are canonicalized across implementations.",
		func(t testing.TB, e *env) {
			item := e.must(t, lifecycle.OpHeartbeat, e.in(t, lifecycle.StatusClaimed))
			item = e.must(t, lifecycle.OpStall, e.must(t, lifecycle.OpStart, item))
			item = e.claimItem(t, e.must(t, lifecycle.OpRequeueStalled, item), bert)
			item = e.must(t, lifecycle.OpHeartbeat, e.must(t, lifecycle.OpStart, item))
			e.must(t, lifecycle.OpFail, item)
			e.expectTypes(t, item.WorkID,
				lifecycle.EventEnqueued, lifecycle.EventClaimed, lifecycle.EventHeartbeat, lifecycle.EventStarted,
				lifecycle.EventStalled, lifecycle.EventRequeued, lifecycle.EventClaimed, lifecycle.EventStarted,
				lifecycle.EventHeartbeat, lifecycle.EventFailed)
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
				want := lifecycle.Event{
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
			queued := e.in(t, lifecycle.StatusQueued)
			claim := e.claimOf(queued, anna)
			e.claim(t, claim)
			got := e.expectLast(t, e.get(t, queued.WorkID), lifecycle.EventClaimed)
			if got.Actor != anna || got.RequestID != claim.RequestID {
				t.Errorf("event names %q and %q, want %q and %q", got.Actor, got.RequestID, anna, claim.RequestID)
			}
		},
	},
}
