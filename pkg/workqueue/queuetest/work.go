package queuetest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

var startChecks = []check{
	{
		"start/makes a claimed item run",
		"claimed to running; attempt must not change on start; owner and lease must be present.",
		func(t testing.TB, e *env) {
			claimed := e.in(t, lifecycle.StatusClaimed)
			item := e.must(t, lifecycle.OpStart, claimed)
			e.expectItem(t, item)
			e.expectMove(t, claimed, item, lifecycle.StatusRunning, 0)
			if item.Owner != anna || !item.LeaseExpiresAt.After(e.Now()) {
				t.Errorf("held by %q until %s", item.Owner, item.LeaseExpiresAt)
			}
		},
	},
}

var heartbeatChecks = []check{
	{
		"heartbeat/extends the lease of a claimed and of a running item",
		"claimed to claimed and running to running: lease extension; rev increases, attempt must not change.",
		func(t testing.TB, e *env) {
			for _, status := range []lifecycle.Status{lifecycle.StatusClaimed, lifecycle.StatusRunning} {
				before := e.in(t, status)
				e.Advance(time.Minute)
				item := e.must(t, lifecycle.OpHeartbeat, before)
				e.expectItem(t, item)
				e.expectMove(t, before, item, status, 0)
				if item.Owner != anna || !item.LeaseExpiresAt.After(before.LeaseExpiresAt) {
					t.Errorf("%s: held by %q until %s, before until %s", status, item.Owner, item.LeaseExpiresAt, before.LeaseExpiresAt)
				}
				e.expectLast(t, item, lifecycle.EventHeartbeat)
			}
		},
	},
}

var endChecks = []check{
	{
		"end/complete keeps the result and clears owner and lease",
		"running to succeeded: result must be present, error absent, owner and lease cleared; attempt must not change.",
		func(t testing.TB, e *env) {
			for _, given := range []json.RawMessage{result, json.RawMessage(`{}`)} {
				running := e.in(t, lifecycle.StatusRunning)
				item, err := e.Queue.Complete(t.Context(), running.WorkID, e.request(anna, running), given)
				if err != nil {
					t.Errorf("complete with %s: %v", given, err)
					continue
				}
				e.expectItem(t, item)
				e.expectMove(t, running, item, lifecycle.StatusSucceeded, 0)
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
			running := e.in(t, lifecycle.StatusRunning)
			item := e.must(t, lifecycle.OpFail, running)
			e.expectItem(t, item)
			e.expectMove(t, running, item, lifecycle.StatusFailed, 0)
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
			for _, status := range []lifecycle.Status{lifecycle.StatusSucceeded, lifecycle.StatusFailed} {
				item := e.in(t, status)
				e.Advance(2 * claimLease)
				for _, op := range asked {
					e.refused(t, op, item, e.request(actorOf(op, item), item), lifecycle.ErrIllegalTransition)
				}
				e.leaves(t, item)
			}
		},
	},
}

// decode reads JSON, so that spelling does not count.
func decode(t testing.TB, text json.RawMessage) (value any) {
	t.Helper()
	if err := json.Unmarshal(text, &value); err != nil {
		t.Errorf("result %q: %v", text, err)
	}
	return value
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
