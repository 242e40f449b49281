package queuetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

var repeatChecks = []check{
	{
		"repeats/succeed and change nothing",
		"Repeating with the same request_id is success; rev must not increase, no duplicate terminal writes.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				item := e.in(t, move.From)
				e.repeats(t, move.Operation, item, func(lifecycle.Item) {})
			}
		},
	},
	{
		"repeats/succeed after the item went on",
		"Repeating with the same request_id is success, by detecting prior application, whatever the status is by then.",
		func(t testing.TB, e *env) {
			e.repeats(t, lifecycle.OpStart, e.in(t, lifecycle.StatusClaimed), func(item lifecycle.Item) {
				stalled := e.must(t, lifecycle.OpStall, e.must(t, lifecycle.OpHeartbeat, item))
				e.claimItem(t, e.must(t, lifecycle.OpRequeueStalled, stalled), bert)
			})
			e.repeats(t, lifecycle.OpHeartbeat, e.in(t, lifecycle.StatusRunning), func(item lifecycle.Item) {
				e.must(t, lifecycle.OpComplete, item)
			})
			e.repeats(t, lifecycle.OpStall, e.in(t, lifecycle.StatusRunning), func(item lifecycle.Item) {
				e.must(t, lifecycle.OpRequeueStalled, item)
			})
		},
	},
	{
		"repeats/are known for as long as the lease",
		"Idempotent retries are detected by request_id; it is remembered for at least as long as the lease.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				e.repeats(t, move.Operation, e.in(t, move.From), func(after lifecycle.Item) {
					if left := after.LeaseExpiresAt.Sub(e.Now()); left > time.Second {
						e.Advance(left - time.Second)
					}
				})
			}
		},
	},
	{
		"repeats/are of the same operation",
		"Repeating is of the same logical transition: a request_id stands for one.",
		func(t testing.TB, e *env) {
			claimed := e.in(t, lifecycle.StatusClaimed)
			request := e.request(anna, claimed)
			running, err := e.Queue.Start(t.Context(), claimed.WorkID, request)
			if err != nil {
				t.Fatalf("start: %v", err)
			}
			request.ExpectedRev = running.Rev
			for _, op := range []lifecycle.Operation{lifecycle.OpHeartbeat, lifecycle.OpComplete, lifecycle.OpFail} {
				e.refused(t, op, running, request, lifecycle.ErrInvalidRequest)
			}
		},
	},
	{
		"repeats/are by the same actor",
		"Owner-only execution transitions: another worker's request_id is not one's own.",
		func(t testing.TB, e *env) {
			claimed := e.in(t, lifecycle.StatusClaimed)
			request := e.request(anna, claimed)
			running, err := e.Queue.Start(t.Context(), claimed.WorkID, request)
			if err != nil {
				t.Fatalf("start: %v", err)
			}
			request.Actor = bert
			e.refused(t, lifecycle.OpStart, running, request, lifecycle.ErrNotOwner)
		},
	},
	{
		"repeats/of what was refused are judged anew",
		"Repeats are of transitions, and a refusal made none.",
		func(t testing.TB, e *env) {
			claimed := e.in(t, lifecycle.StatusClaimed)
			request := e.request(anna, claimed)
			e.refused(t, lifecycle.OpComplete, claimed, request, lifecycle.ErrIllegalTransition)
			request.ExpectedRev = e.must(t, lifecycle.OpStart, claimed).Rev
			item, err := e.ask(t, lifecycle.OpComplete, claimed, request)
			if err != nil || item.Status != lifecycle.StatusSucceeded {
				t.Errorf("complete, refused before: %s item, %v", item.Status, err)
			}
		},
	},
}

// repeats makes the move, lets something happen, and fails unless a repeat of
// the move returns the item as it is by then and changes nothing.
func (e *env) repeats(t testing.TB, op lifecycle.Operation, item lifecycle.Item, meanwhile func(after lifecycle.Item)) {
	t.Helper()
	request := e.request(actorOf(op, item), item)
	again := e.prepared(t, op, item, request)
	after, err := again()
	if err != nil {
		t.Fatalf("%s of a %s item: %v", op, item.Status, err)
	}
	meanwhile(after)
	now := e.get(t, item.WorkID)
	e.untouched(t, item.WorkID, "a repeat of "+string(op), func() {
		repeated, err := again()
		if err != nil {
			t.Errorf("repeat of %s, by now on a %s item: %v", op, now.Status, err)
			return
		}
		if diff := cmp.Diff(now, repeated, sameItem); diff != "" {
			t.Errorf("repeat of %s returned (-want +got):\n%s", op, diff)
		}
	})
}

// prepared is a call with all its arguments fixed, so that a repeat is the same
// to the last byte.
func (e *env) prepared(
	t testing.TB, op lifecycle.Operation, item lifecycle.Item, request lifecycle.Request,
) func() (lifecycle.Item, error) {
	t.Helper()
	if op != lifecycle.OpRequeueStalled {
		return func() (lifecycle.Item, error) { return e.ask(t, op, item, request) }
	}
	next := e.next(t, item)
	return func() (lifecycle.Item, error) { return e.Queue.Requeue(t.Context(), item.WorkID, request, next) }
}
