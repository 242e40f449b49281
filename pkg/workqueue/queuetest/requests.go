package queuetest

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

var requestChecks = []check{
	{
		"requests/expect the present rev",
		"CAS is mandatory: every mutating transition must use cas.expected_rev.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				item := e.in(t, move.From)
				for _, off := range []int64{-1, 1} {
					request := e.request(actorOf(move.Operation, item), item)
					request.ExpectedRev += off
					e.refused(t, move.Operation, item, request, lifecycle.ErrRevConflict)
				}
			}
		},
	},
	{
		"requests/of an owner's move come from the owner",
		"Owner-only execution transitions: start, heartbeat, complete, fail only from the current owner.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				if move.By == lifecycle.MoverOwner {
					item := e.in(t, move.From)
					e.refused(t, move.Operation, item, e.request(bert, item), lifecycle.ErrNotOwner)
				}
			}
		},
	},
	{
		"requests/of the system need no owner",
		"System transitions: stall and requeueStalled do not require an owning actor.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				if move.By != lifecycle.MoverSystem {
					continue
				}
				item := e.in(t, move.From)
				if _, err := e.ask(t, move.Operation, item, e.request("operator", item)); err != nil {
					t.Errorf("%s of a %s item by an operator: %v", move.Operation, move.From, err)
				}
			}
		},
	},
	{
		"requests/are whole",
		"All retry-safe transitions must carry a request_id; CAS is mandatory.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				item := e.in(t, move.From)
				for _, spoil := range []func(*lifecycle.Request){
					func(r *lifecycle.Request) { r.Actor = "" },
					func(r *lifecycle.Request) { r.ID = "" },
					func(r *lifecycle.Request) { r.ExpectedRev = 0 },
				} {
					request := e.request(actorOf(move.Operation, item), item)
					spoil(&request)
					e.refused(t, move.Operation, item, request, lifecycle.ErrInvalidRequest)
				}
			}
		},
	},
}
