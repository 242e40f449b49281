package queuetest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

var claimChecks = []check{
	{
		"claim/gives a queued item to its owner under a lease",
		"queued to claimed: owner and lease must be present; attempt increments exactly when a job enters claimed.",
		func(t testing.TB, e *env) {
			queued := e.in(t, statemachine.StatusQueued)
			before := e.now()
			item := e.claimItem(t, queued, anna)
			e.expectItem(t, item)
			e.expectMove(t, queued, item, statemachine.StatusClaimed, 1)
			if item.Owner != anna || item.LeaseExpiresAt.Before(before.Add(claimLease)) {
				t.Errorf("held by %q until %s, want %q until %s", item.Owner, item.LeaseExpiresAt, anna, before.Add(claimLease))
			}
			if diff := cmp.Diff(messageOf(queued), messageOf(item)); diff != "" {
				t.Errorf("the claim changed the message (-before +after):\n%s", diff)
			}
		},
	},
	{
		"claim/of nothing returns nothing",
		"queued is what is eligible to be claimed.",
		func(t testing.TB, e *env) {
			if items := e.claim(t, Claim{Owner: anna, Max: 1, Lease: claimLease, RequestID: e.unique("claim")}); len(items) > 0 {
				t.Errorf("an empty queue handed out %v", workIDs(items))
			}
		},
	},
	{
		"claim/takes no more than it asks for, and all in the end",
		"queued: the job is eligible to be claimed by a worker.",
		func(t testing.TB, e *env) {
			for range 5 {
				e.in(t, statemachine.StatusQueued)
			}
			var got []string
			for _, want := range []int{2, 2, 1, 0} {
				items := e.claim(t, Claim{Owner: anna, Max: 2, Lease: claimLease, RequestID: e.unique("claim")})
				if len(items) != want {
					t.Errorf("a claim of 2 took %d items, want %d", len(items), want)
				}
				got = append(got, workIDs(items)...)
			}
			e.expectIDs(t, "the claims took", got, e.made...)
		},
	},
	{
		"claim/is narrowed by service and step type",
		"claimNext gives exclusive responsibility for what the worker asked for.",
		func(t testing.TB, e *env) {
			ocrSmall := e.enqueue(t, e.messageFor(t, "ocr", "SMALL")).WorkID
			ocrLarge := e.enqueue(t, e.messageFor(t, "ocr", "LARGE")).WorkID
			mtLarge := e.enqueue(t, e.messageFor(t, "translate", "LARGE")).WorkID
			rest := e.enqueue(t, e.messageFor(t, "index", "INDEX")).WorkID
			for _, c := range []struct {
				what   string
				filter Filter
				want   []string
			}{
				{"another service", Filter{Services: []string{"other"}}, nil},
				{"service and step type", Filter{Services: []string{"ocr"}, StepTypes: []string{"LARGE"}}, []string{ocrLarge}},
				{"step type", Filter{StepTypes: []string{"LARGE", "HUGE"}}, []string{mtLarge}},
				{"service", Filter{Services: []string{"translate", "ocr"}}, []string{ocrSmall}},
				{"anything", Filter{}, []string{rest}},
			} {
				items := e.claim(t, Claim{Owner: anna, Filter: c.filter, Max: 10, Lease: claimLease, RequestID: e.unique("claim")})
				e.expectIDs(t, "a claim by "+c.what+" took", workIDs(items), c.want...)
			}
		},
	},
	{
		"claim/never takes an item that is held or has ended",
		"claimed: a specific worker has exclusive responsibility; no transitions outside the set are allowed.",
		func(t testing.TB, e *env) {
			for _, status := range []statemachine.ItemStatus{
				statemachine.StatusClaimed, statemachine.StatusRunning, statemachine.StatusSucceeded, statemachine.StatusFailed,
			} {
				e.leaves(t, e.in(t, status))
			}
		},
	},
	{
		"claim/leaves an item to its owner until it is stalled",
		"stalled, not an expired lease, is what says that the owner is no longer trusted.",
		func(t testing.TB, e *env) {
			claimed, running := e.in(t, statemachine.StatusClaimed), e.in(t, statemachine.StatusRunning)
			ends := max(claimed.LeaseExpiresAt.Sub(e.Now()), running.LeaseExpiresAt.Sub(e.Now()))
			e.Advance(ends + claimLease)
			e.leaves(t, claimed)
			e.leaves(t, running)
		},
	},
	{
		"claim/of a stalled item is a reclaim or does not happen",
		"stalled to claimed is allowed only as a reclaim path; attempt increments, including reclaiming a stalled job.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, statemachine.StatusStalled)
			if !e.Reclaims {
				e.leaves(t, stalled)
				return
			}
			item := e.claimItem(t, stalled, bert)
			e.expectMove(t, stalled, item, statemachine.StatusClaimed, 1)
		},
	},
	{
		"claim/can start in the same step",
		"queued to claimed and claimed to running are two transitions: each appends its event and raises rev.",
		func(t testing.TB, e *env) {
			queued := e.in(t, statemachine.StatusQueued)
			claim := e.claimOf(queued, anna)
			claim.Start = true
			items := e.claim(t, claim)
			e.expectIDs(t, "the claim took", workIDs(items), queued.WorkID)
			item := e.get(t, queued.WorkID)
			if item.Status != statemachine.StatusRunning || item.Attempt != 1 || item.Rev < queued.Rev+2 {
				t.Errorf("item is %s, attempt %d, rev %d", item.Status, item.Attempt, item.Rev)
			}
			if len(items) == 1 {
				e.expectItem(t, items[0])
			}
			e.expectTypes(t, item.WorkID, statemachine.ItemEventEnqueued, statemachine.ItemEventClaimed, statemachine.ItemEventStarted)
		},
	},
	{
		"claim/names its owner and its request",
		"All retry-safe transitions must carry a request_id; claimed: owner must be present.",
		func(t testing.TB, e *env) {
			queued := e.in(t, statemachine.StatusQueued)
			for _, spoil := range []func(*Claim){
				func(c *Claim) { c.Owner = "" },
				func(c *Claim) { c.RequestID = "" },
			} {
				claim := e.claimOf(queued, anna)
				spoil(&claim)
				e.untouched(t, queued.WorkID, "an incomplete claim", func() {
					if _, err := e.Queue.ClaimNext(t.Context(), claim); !errors.Is(err, statemachine.ErrInvalidRequest) {
						t.Errorf("claim %+v: error is %v, want ErrInvalidRequest", claim, err)
					}
				})
			}
		},
	},
}

// leaves fails if a claim takes the item, or changes it.
func (e *env) leaves(t testing.TB, item statemachine.Item) {
	t.Helper()
	e.untouched(t, item.WorkID, "another worker's claim", func() {
		if items := e.claim(t, e.claimOf(item, bert)); len(items) > 0 {
			t.Errorf("a claim took %v, which is %s", workIDs(items), item.Status)
		}
	})
}

var claimRepeatChecks = []check{
	{
		"claim repeat/answers as the first did",
		"Repeating the same transition with the same request_id is success and changes nothing: no extra attempt increments.",
		func(t testing.TB, e *env) {
			first := e.in(t, statemachine.StatusQueued)
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
			item := e.in(t, statemachine.StatusQueued)
			claim := e.claimOf(item, anna)
			claimed := e.claim(t, claim)
			if len(claimed) != 1 {
				t.Fatalf("claimed %v", workIDs(claimed))
			}
			e.must(t, statemachine.OpHeartbeat, e.must(t, statemachine.OpStart, claimed[0]))
			e.answers(t, claim, item.WorkID)
		},
	},
	{
		"claim repeat/leaves out what the owner no longer holds by it",
		"stalled: the previous lease and owner are no longer trusted; no silent duplicate execution.",
		func(t testing.TB, e *env) {
			item := e.in(t, statemachine.StatusQueued)
			claim := e.claimOf(item, anna)
			claimed := e.claim(t, claim)
			if len(claimed) != 1 {
				t.Fatalf("claimed %v", workIDs(claimed))
			}
			stalled := e.must(t, statemachine.OpStall, claimed[0])
			e.answers(t, claim)
			queued := e.must(t, statemachine.OpRequeueStalled, stalled)
			e.answers(t, claim)
			e.claimItem(t, queued, anna)
			e.answers(t, claim)
		},
	},
	{
		"claim repeat/is for the same owner only",
		"claimed: a specific worker has exclusive responsibility.",
		func(t testing.TB, e *env) {
			item := e.in(t, statemachine.StatusQueued)
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
			claim := e.claimOf(statemachine.Item{Service: message.Service}, anna)
			e.expectIDs(t, "the first claim took", workIDs(e.claim(t, claim)))
			item := e.enqueue(t, message)
			e.expectIDs(t, "the second claim took", workIDs(e.claim(t, claim)), item.WorkID)
		},
	},
	{
		"claim repeat/is known for as long as the lease",
		"Idempotent retries are detected by request_id; it is remembered for at least as long as the lease.",
		func(t testing.TB, e *env) {
			item := e.in(t, statemachine.StatusQueued)
			claim := e.claimOf(item, anna)
			e.claim(t, claim)
			e.Advance(claimLease - time.Second)
			e.answers(t, claim, item.WorkID)
		},
	},
}

// answers fails unless the repeated claim returns exactly these items, unchanged, and
// changes nothing.
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
	Item   statemachine.Item
	Events []statemachine.ItemEvent
}
