package queuetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

var stallChecks = []check{
	{
		"stall/takes a claimed or running item from its owner",
		"claimed to stalled and running to stalled: owner and lease must be absent; attempt must not change.",
		func(t testing.TB, e *env) {
			for _, status := range []lifecycle.Status{lifecycle.StatusClaimed, lifecycle.StatusRunning} {
				before := e.in(t, status)
				item := e.must(t, lifecycle.OpStall, before)
				e.expectItem(t, item)
				e.expectMove(t, before, item, lifecycle.StatusStalled, 0)
				e.expectFree(t, item)
			}
		},
	},
	{
		"stall/ends what the owner may do",
		"start, heartbeat, complete and fail must only be accepted from the current owner, and a stalled item has none.",
		func(t testing.TB, e *env) {
			item := e.in(t, lifecycle.StatusStalled)
			for _, op := range ownersMoves {
				e.refused(t, op, item, e.request(anna, item), lifecycle.ErrIllegalTransition)
			}
		},
	},
}

var requeueChecks = []check{
	{
		"requeue/offers a stalled item again with the next directive",
		"stalled to queued; attempt must not change on requeueStalled; owner and lease must be absent.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, lifecycle.StatusStalled)
			next := e.next(t, stalled)
			item, err := e.Queue.Requeue(t.Context(), stalled.WorkID, e.request(sweeper, stalled), next)
			if err != nil {
				t.Fatalf("requeue: %v", err)
			}
			e.expectItem(t, item)
			e.expectMove(t, stalled, item, lifecycle.StatusQueued, 0)
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
			item := e.in(t, lifecycle.StatusStalled)
			for attempt := 2; attempt <= 3; attempt++ {
				item = e.claimItem(t, e.must(t, lifecycle.OpRequeueStalled, item), bert)
				if item.Attempt != attempt {
					t.Errorf("attempt is %d, want %d", item.Attempt, attempt)
				}
				item = e.must(t, lifecycle.OpStall, item)
			}
		},
	},
	{
		"requeue/shuts the first owner out",
		"start, heartbeat, complete and fail must only be accepted from the current owner.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, lifecycle.StatusStalled)
			item := e.claimItem(t, e.must(t, lifecycle.OpRequeueStalled, stalled), bert)
			for _, op := range ownersMoves {
				e.refused(t, op, item, e.request(anna, item), lifecycle.ErrNotOwner)
			}
			e.must(t, lifecycle.OpComplete, e.must(t, lifecycle.OpStart, item))
		},
	},
	{
		"requeue/never hands a pair out twice",
		"stalled exists to enable safe recovery without silent duplicate execution.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, lifecycle.StatusStalled)
			e.untouched(t, stalled.WorkID, "a requeue with the old directive", func() {
				_, err := e.Queue.Requeue(t.Context(), stalled.WorkID, e.request(sweeper, stalled), directiveOf(stalled))
				if err == nil {
					t.Error("a requeue with the directive that was handed out before was accepted")
				}
			})
		},
	},
}
