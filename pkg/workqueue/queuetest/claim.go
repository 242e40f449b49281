package queuetest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

var claimChecks = []check{
	{
		"claim/gives a queued item to its owner under a lease",
		"queued to claimed: owner and lease must be present; attempt increments exactly when a job enters claimed.",
		func(t testing.TB, e *env) {
			queued := e.in(t, lifecycle.StatusQueued)
			before := e.now()
			item := e.claimItem(t, queued, anna)
			e.expectItem(t, item)
			e.expectMove(t, queued, item, lifecycle.StatusClaimed, 1)
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
				e.in(t, lifecycle.StatusQueued)
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
			for _, status := range []lifecycle.Status{
				lifecycle.StatusClaimed, lifecycle.StatusRunning, lifecycle.StatusSucceeded, lifecycle.StatusFailed,
			} {
				e.leaves(t, e.in(t, status))
			}
		},
	},
	{
		"claim/leaves an item to its owner while nobody stalls it",
		"stalled, not an expired lease, is what says that the owner is no longer trusted.",
		func(t testing.TB, e *env) {
			claimed, running := e.in(t, lifecycle.StatusClaimed), e.in(t, lifecycle.StatusRunning)
			e.Advance(latest(claimed.LeaseExpiresAt, running.LeaseExpiresAt).Sub(e.Now()) + claimLease)
			e.leaves(t, claimed)
			e.leaves(t, running)
		},
	},
	{
		"claim/of a stalled item is a reclaim or does not happen",
		"stalled to claimed is allowed only as a reclaim path; attempt increments, including reclaiming a stalled job.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, lifecycle.StatusStalled)
			if !e.Reclaims {
				e.leaves(t, stalled)
				return
			}
			item := e.claimItem(t, stalled, bert)
			e.expectMove(t, stalled, item, lifecycle.StatusClaimed, 1)
		},
	},
	{
		"claim/can start in the same step",
		"queued to claimed and claimed to running are two transitions: each appends its event and raises rev.",
		func(t testing.TB, e *env) {
			queued := e.in(t, lifecycle.StatusQueued)
			claim := e.claimOf(queued, anna)
			claim.Start = true
			items := e.claim(t, claim)
			e.expectIDs(t, "the claim took", workIDs(items), queued.WorkID)
			item := e.get(t, queued.WorkID)
			if item.Status != lifecycle.StatusRunning || item.Attempt != 1 || item.Rev < queued.Rev+2 {
				t.Errorf("item is %s, attempt %d, rev %d", item.Status, item.Attempt, item.Rev)
			}
			if len(items) == 1 {
				e.expectItem(t, items[0])
			}
			e.expectTypes(t, item.WorkID, lifecycle.EventEnqueued, lifecycle.EventClaimed, lifecycle.EventStarted)
		},
	},
	{
		"claim/names its owner and its request",
		"All retry-safe transitions must carry a request_id; claimed: owner must be present.",
		func(t testing.TB, e *env) {
			queued := e.in(t, lifecycle.StatusQueued)
			for _, spoil := range []func(*Claim){
				func(c *Claim) { c.Owner = "" },
				func(c *Claim) { c.RequestID = "" },
			} {
				claim := e.claimOf(queued, anna)
				spoil(&claim)
				e.untouched(t, queued.WorkID, "a claim that is not whole", func() {
					if _, err := e.Queue.ClaimNext(t.Context(), claim); !errors.Is(err, lifecycle.ErrInvalidRequest) {
						t.Errorf("claim %+v: error is %v, want ErrInvalidRequest", claim, err)
					}
				})
			}
		},
	},
}

// leaves fails if a claim takes the item, or changes it.
func (e *env) leaves(t testing.TB, item lifecycle.Item) {
	t.Helper()
	e.untouched(t, item.WorkID, "another worker's claim", func() {
		if items := e.claim(t, e.claimOf(item, bert)); len(items) > 0 {
			t.Errorf("a claim took %v, which is %s", workIDs(items), item.Status)
		}
	})
}
