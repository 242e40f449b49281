package queuetest

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
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
					e.refused(t, move.Operation, item, request, statemachine.ErrRevConflict)
				}
			}
		},
	},
	{
		"requests/of an owner's move come from the owner",
		"Owner-only execution transitions: start, heartbeat, complete, fail only from the current owner.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				if move.By == statemachine.MoverOwner {
					item := e.in(t, move.From)
					e.refused(t, move.Operation, item, e.request(bert, item), statemachine.ErrNotOwner)
				}
			}
		},
	},
	{
		"requests/of the system need no owner",
		"System transitions: stall and requeueStalled do not require an owning actor.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				if move.By != statemachine.MoverSystem {
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
		"requests/are complete",
		"All retry-safe transitions must carry a request_id; CAS is mandatory.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				item := e.in(t, move.From)
				for _, spoil := range []func(*statemachine.ItemRequest){
					func(r *statemachine.ItemRequest) { r.Actor = "" },
					func(r *statemachine.ItemRequest) { r.ID = "" },
					func(r *statemachine.ItemRequest) { r.ExpectedRev = 0 },
				} {
					request := e.request(actorOf(move.Operation, item), item)
					spoil(&request)
					e.refused(t, move.Operation, item, request, statemachine.ErrInvalidRequest)
				}
			}
		},
	},
}

var repeatChecks = []check{
	{
		"repeats/succeed and change nothing",
		"Repeating with the same request_id is success; rev must not increase, no duplicate terminal writes.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				item := e.in(t, move.From)
				e.repeats(t, move.Operation, item, func(statemachine.Item) {})
			}
		},
	},
	{
		"repeats/succeed after the item went on",
		"Repeating with the same request_id is success, by detecting prior application, whatever the status is by then.",
		func(t testing.TB, e *env) {
			e.repeats(t, statemachine.OpStart, e.in(t, statemachine.StatusClaimed), func(item statemachine.Item) {
				stalled := e.must(t, statemachine.OpStall, e.must(t, statemachine.OpHeartbeat, item))
				e.claimItem(t, e.must(t, statemachine.OpRequeueStalled, stalled), bert)
			})
			e.repeats(t, statemachine.OpHeartbeat, e.in(t, statemachine.StatusRunning), func(item statemachine.Item) {
				e.must(t, statemachine.OpComplete, item)
			})
			e.repeats(t, statemachine.OpStall, e.in(t, statemachine.StatusRunning), func(item statemachine.Item) {
				e.must(t, statemachine.OpRequeueStalled, item)
			})
		},
	},
	{
		"repeats/are known for as long as the lease",
		"Idempotent retries are detected by request_id; it is remembered for at least as long as the lease.",
		func(t testing.TB, e *env) {
			for _, move := range allowed() {
				e.repeats(t, move.Operation, e.in(t, move.From), func(after statemachine.Item) {
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
			claimed := e.in(t, statemachine.StatusClaimed)
			request := e.request(anna, claimed)
			running, err := e.Queue.Start(t.Context(), claimed.WorkID, request)
			if err != nil {
				t.Fatalf("start: %v", err)
			}
			request.ExpectedRev = running.Rev
			for _, op := range []statemachine.ItemOperation{statemachine.OpHeartbeat, statemachine.OpComplete, statemachine.OpFail} {
				e.refused(t, op, running, request, statemachine.ErrInvalidRequest)
			}
		},
	},
	{
		"repeats/are by the same actor",
		"Owner-only execution transitions: another worker's request_id is not one's own.",
		func(t testing.TB, e *env) {
			claimed := e.in(t, statemachine.StatusClaimed)
			request := e.request(anna, claimed)
			running, err := e.Queue.Start(t.Context(), claimed.WorkID, request)
			if err != nil {
				t.Fatalf("start: %v", err)
			}
			request.Actor = bert
			e.refused(t, statemachine.OpStart, running, request, statemachine.ErrNotOwner)
		},
	},
	{
		"repeats/of a refused request are evaluated again",
		"Repeats are of transitions, and a refusal made none.",
		func(t testing.TB, e *env) {
			claimed := e.in(t, statemachine.StatusClaimed)
			request := e.request(anna, claimed)
			e.refused(t, statemachine.OpComplete, claimed, request, statemachine.ErrIllegalTransition)
			request.ExpectedRev = e.must(t, statemachine.OpStart, claimed).Rev
			item, err := e.ask(t, statemachine.OpComplete, claimed, request)
			if err != nil || item.Status != statemachine.StatusSucceeded {
				t.Errorf("complete, refused before: %s item, %v", item.Status, err)
			}
		},
	},
}

// repeats makes the move, calls after, and fails unless a repeat of the move returns
// the item as it is then and changes nothing.
func (e *env) repeats(t testing.TB, op statemachine.ItemOperation, item statemachine.Item, after func(moved statemachine.Item)) {
	t.Helper()
	request := e.request(actorOf(op, item), item)
	again := func() (statemachine.Item, error) { return e.ask(t, op, item, request) }
	if op == statemachine.OpRequeueStalled { // All arguments of a repeat must be the same.
		next := e.next(t, item)
		again = func() (statemachine.Item, error) { return e.Queue.Requeue(t.Context(), item.WorkID, request, next) }
	}
	moved, err := again()
	if err != nil {
		t.Fatalf("%s of a %s item: %v", op, item.Status, err)
	}
	after(moved)
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

const (
	// racers is how many goroutines race in one check.
	racers = 8
	// rounds is how often they race.
	rounds = 10
)

// race runs the function in all racers at once and waits for them.
func race(run func(racer int)) {
	var group sync.WaitGroup
	for racer := range racers {
		group.Go(func() { run(racer) })
	}
	group.Wait()
}

var raceChecks = []check{
	{
		"races/an item is handed to one of racing claims",
		"claimed: a specific worker has exclusive responsibility via an active lease.",
		func(t testing.TB, e *env) {
			for range rounds * racers {
				e.in(t, statemachine.StatusQueued)
			}
			claims := make([]Claim, rounds*racers)
			for n := range claims {
				claims[n] = Claim{Owner: e.unique("owner"), Max: 2, Lease: claimLease, RequestID: e.unique("claim")}
			}
			taken := make([][]string, racers)
			race(func(racer int) {
				for round := range rounds {
					items, err := e.Queue.ClaimNext(t.Context(), claims[racer*rounds+round])
					if err != nil {
						t.Errorf("claim: %v", err)
					}
					taken[racer] = append(taken[racer], workIDs(items)...)
				}
			})
			all := slices.Concat(taken...)
			if slices.Sort(all); len(slices.Compact(slices.Clone(all))) != len(all) {
				t.Errorf("items were handed out more than once: %v", all)
			}
		},
	},
	{
		"races/one of racing moves from one rev is accepted",
		"CAS is mandatory: every mutating transition must use optimistic concurrency.",
		func(t testing.TB, e *env) {
			for range rounds {
				item := e.in(t, statemachine.StatusRunning)
				accepted := e.raceFor(t, item, func(racer int) statemachine.ItemOperation {
					return []statemachine.ItemOperation{
						statemachine.OpHeartbeat, statemachine.OpComplete, statemachine.OpFail, statemachine.OpStall,
					}[racer%4]
				})
				if accepted != 1 {
					t.Errorf("%d of %d moves from one rev were accepted, want 1", accepted, racers)
				}
			}
		},
	},
	{
		"races/one request sent many times at once is one move",
		"Repeating with the same request_id must not change semantics.",
		func(t testing.TB, e *env) {
			for range rounds {
				item := e.in(t, statemachine.StatusRunning)
				request := e.request(anna, item)
				race(func(int) {
					if _, err := e.Queue.Heartbeat(t.Context(), item.WorkID, request); err != nil {
						t.Errorf("heartbeat: %v", err)
					}
				})
				e.expectTypes(t, item.WorkID, statemachine.ItemEventEnqueued, statemachine.ItemEventClaimed,
					statemachine.ItemEventStarted, statemachine.ItemEventHeartbeat)
			}
		},
	},
	{
		"races/one message enqueued many times at once is one item",
		"Enqueue creates queued, or returns the existing record by dedupe_key.",
		func(t testing.TB, e *env) {
			for range rounds {
				message := e.message(t)
				items := make([]statemachine.Item, racers)
				race(func(racer int) {
					var err error
					if items[racer], err = e.Queue.Enqueue(t.Context(), message); err != nil {
						t.Errorf("enqueue: %v", err)
					}
				})
				if ids := slices.Compact(workIDs(items)); len(ids) != 1 {
					t.Errorf("one message made the items %v", ids)
				}
				claimed := e.claim(t, e.claimOf(statemachine.Item{Service: message.Service}, anna))
				e.expectIDs(t, "the claim took", workIDs(claimed), items[0].WorkID)
				e.made = append(e.made, items[0].WorkID)
			}
		},
	},
}

// raceFor makes racers ask for moves of the item from its current rev, each by a separate
// request, and returns how many were accepted.
func (e *env) raceFor(t testing.TB, item statemachine.Item, op func(racer int) statemachine.ItemOperation) (accepted int) {
	t.Helper()
	requests := make([]statemachine.ItemRequest, racers)
	for racer := range requests {
		requests[racer] = e.request(actorOf(op(racer), item), item)
	}
	errs := make([]error, racers)
	race(func(racer int) {
		_, errs[racer] = e.ask(t, op(racer), item, requests[racer])
	})
	for racer, err := range errs {
		switch {
		case err == nil:
			accepted++
		case errors.Is(err, statemachine.ErrRevConflict), errors.Is(err, statemachine.ErrIllegalTransition):
		default:
			t.Errorf("%s, which lost the race: error is %v, want ErrRevConflict or ErrIllegalTransition", op(racer), err)
		}
	}
	return accepted
}
