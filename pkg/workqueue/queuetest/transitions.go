package queuetest

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// asked are the operations that name an item.
var asked = []lifecycle.Operation{
	lifecycle.OpStart, lifecycle.OpHeartbeat, lifecycle.OpComplete, lifecycle.OpFail,
	lifecycle.OpStall, lifecycle.OpRequeueStalled,
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
			for _, status := range lifecycle.Statuses() {
				item := e.in(t, status)
				for _, op := range asked {
					if _, ok := lifecycle.Lookup(op, status); !ok {
						e.refused(t, op, item, e.request(actorOf(op, item), item), lifecycle.ErrIllegalTransition)
					}
				}
			}
		},
	},
}

// allowed are the transitions that name an item.
func allowed() (moves []lifecycle.Transition) {
	for _, transition := range lifecycle.Transitions() {
		switch transition.Operation {
		case lifecycle.OpEnqueue, lifecycle.OpClaimNext:
		default:
			moves = append(moves, transition)
		}
	}
	return moves
}
