package queuetest

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

const (
	// racers is how many goroutines race in one check.
	racers = 8
	// rounds is how often they do.
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
				e.in(t, lifecycle.StatusQueued)
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
				item := e.in(t, lifecycle.StatusRunning)
				accepted := e.raceFor(t, item, func(racer int) lifecycle.Operation {
					return []lifecycle.Operation{
						lifecycle.OpHeartbeat, lifecycle.OpComplete, lifecycle.OpFail, lifecycle.OpStall,
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
				item := e.in(t, lifecycle.StatusRunning)
				request := e.request(anna, item)
				race(func(int) {
					if _, err := e.Queue.Heartbeat(t.Context(), item.WorkID, request); err != nil {
						t.Errorf("heartbeat: %v", err)
					}
				})
				e.expectTypes(t, item.WorkID, lifecycle.EventEnqueued, lifecycle.EventClaimed,
					lifecycle.EventStarted, lifecycle.EventHeartbeat)
			}
		},
	},
	{
		"races/one message enqueued many times at once is one item",
		"Enqueue creates queued, or returns the existing record by dedupe_key.",
		func(t testing.TB, e *env) {
			for range rounds {
				message := e.message(t)
				items := make([]lifecycle.Item, racers)
				race(func(racer int) {
					var err error
					if items[racer], err = e.Queue.Enqueue(t.Context(), message); err != nil {
						t.Errorf("enqueue: %v", err)
					}
				})
				if ids := slices.Compact(workIDs(items)); len(ids) != 1 {
					t.Errorf("one message made the items %v", ids)
				}
				claimed := e.claim(t, e.claimOf(lifecycle.Item{Service: message.Service}, anna))
				e.expectIDs(t, "the claim took", workIDs(claimed), items[0].WorkID)
				e.made = append(e.made, items[0].WorkID)
			}
		},
	},
}

// raceFor has racers ask for moves of the item from its present rev, each by a
// request of its own, and returns how many were accepted.
func (e *env) raceFor(t testing.TB, item lifecycle.Item, op func(racer int) lifecycle.Operation) (accepted int) {
	t.Helper()
	requests := make([]lifecycle.Request, racers)
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
		case errors.Is(err, lifecycle.ErrRevConflict), errors.Is(err, lifecycle.ErrIllegalTransition):
		default:
			t.Errorf("%s, which came too late: error is %v, want ErrRevConflict or ErrIllegalTransition", op(racer), err)
		}
	}
	return accepted
}
