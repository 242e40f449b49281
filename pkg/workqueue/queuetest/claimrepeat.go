package queuetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

var claimRepeatChecks = []check{
	{
		"claim repeat/answers as the first did",
		"Repeating the same transition with the same request_id is success and changes nothing: no extra attempt increments.",
		func(t testing.TB, e *env) {
			first := e.in(t, lifecycle.StatusQueued)
			claim := e.claimOf(first, anna)
			claim.Max = 1
			e.claim(t, claim)
			e.enqueue(t, e.messageFor(t, first.Service, first.StepType))
			e.answers(t, claim, first.WorkID)
		},
	},
	{
		"claim repeat/answers with items that went on",
		"Repeating the same transition with the same request_id is success, whatever came after it.",
		func(t testing.TB, e *env) {
			item := e.in(t, lifecycle.StatusQueued)
			claim := e.claimOf(item, anna)
			claimed := e.claim(t, claim)
			if len(claimed) != 1 {
				t.Fatalf("claimed %v", workIDs(claimed))
			}
			e.must(t, lifecycle.OpHeartbeat, e.must(t, lifecycle.OpStart, claimed[0]))
			e.answers(t, claim, item.WorkID)
		},
	},
	{
		"claim repeat/leaves out what the owner no longer holds by it",
		"stalled: the previous lease and owner are no longer trusted; no silent duplicate execution.",
		func(t testing.TB, e *env) {
			item := e.in(t, lifecycle.StatusQueued)
			claim := e.claimOf(item, anna)
			claimed := e.claim(t, claim)
			if len(claimed) != 1 {
				t.Fatalf("claimed %v", workIDs(claimed))
			}
			stalled := e.must(t, lifecycle.OpStall, claimed[0])
			e.answers(t, claim)
			queued := e.must(t, lifecycle.OpRequeueStalled, stalled)
			e.answers(t, claim)
			e.claimItem(t, queued, anna)
			e.answers(t, claim)
		},
	},
	{
		"claim repeat/is for the same owner only",
		"claimed: a specific worker has exclusive responsibility.",
		func(t testing.TB, e *env) {
			item := e.in(t, lifecycle.StatusQueued)
			claim := e.claimOf(item, anna)
			e.claim(t, claim)
			other := e.enqueue(t, e.messageFor(t, item.Service, item.StepType))
			claim.Owner = bert
			e.expectIDs(t, "bert's claim took", workIDs(e.claim(t, claim)), other.WorkID)
		},
	},
	{
		"claim repeat/of an empty claim is a claim",
		"Repeats are of transitions, and an empty claim made none.",
		func(t testing.TB, e *env) {
			message := e.message(t)
			claim := e.claimOf(lifecycle.Item{Service: message.Service}, anna)
			e.expectIDs(t, "the first claim took", workIDs(e.claim(t, claim)))
			item := e.enqueue(t, message)
			e.expectIDs(t, "the second claim took", workIDs(e.claim(t, claim)), item.WorkID)
		},
	},
	{
		"claim repeat/is known for as long as the lease",
		"Idempotent retries are detected by request_id; it is remembered for at least as long as the lease.",
		func(t testing.TB, e *env) {
			item := e.in(t, lifecycle.StatusQueued)
			claim := e.claimOf(item, anna)
			e.claim(t, claim)
			e.Advance(claimLease - time.Second)
			e.answers(t, claim, item.WorkID)
		},
	},
}

// answers fails unless the repeated claim returns just these items, as they
// are, and changes nothing.
func (e *env) answers(t testing.TB, claim Claim, want ...string) {
	t.Helper()
	before := e.snapshot(t)
	items := e.claim(t, claim)
	e.expectIDs(t, "the repeated claim answered with", workIDs(items), want...)
	for _, item := range items {
		e.expectItem(t, item)
	}
	if diff := cmp.Diff(before, e.snapshot(t), sameItem); diff != "" {
		t.Errorf("the repeated claim changed items (-before +after):\n%s", diff)
	}
}

// snapshot is all items with their histories.
func (e *env) snapshot(t testing.TB) map[string]record {
	t.Helper()
	all := make(map[string]record)
	for _, id := range e.made {
		all[id] = record{Item: e.get(t, id), Events: e.events(t, id)}
	}
	return all
}

type record struct {
	Item   lifecycle.Item
	Events []lifecycle.Event
}
