package statemachine_test

import (
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The work item follows each decision of the state machine, and the caller writes both in
// one commit.
func ExampleFollowItem() {
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	agg := statemachine.Aggregate{
		Job: statemachine.Job{ID: "job-1", TenantID: "tenant_a", State: statemachine.JobQueued},
		Steps: []statemachine.Step{{
			ID: "ocr", State: statemachine.StepPending,
			Policy: statemachine.Policy{AckTimeout: 30 * time.Second, Ack: []time.Duration{time.Minute}, Lease: 15 * time.Minute},
		}},
	}
	var open *statemachine.ItemRecord
	change := func(leaseID string, event statemachine.Event, ask statemachine.ItemAsk) {
		d, err := statemachine.Decide(agg, event, statemachine.Env{
			Now: now, LeaseID: leaseID, Bus: statemachine.BusQueue, Prompt: func(statemachine.Target) bool { return true },
		})
		if err != nil || d.Outcome != statemachine.Applied {
			fmt.Println(d.Outcome, d.Reason, err)
			return
		}
		moves, err := statemachine.FollowItem(&agg, open, &d, ask, now)
		if err != nil {
			fmt.Println(err)
			return
		}
		agg, open = d.After, moves.Open
		for _, e := range moves.Events {
			fmt.Printf("step %-12s  item rev %d: %s by %s\n", agg.Steps[0].State, e.Rev, e.Type, e.Actor)
		}
	}
	claim := func(worker, id string) statemachine.ItemAsk {
		return statemachine.ItemAsk{
			Operation: statemachine.OpClaimNext,
			Request:   statemachine.ItemRequest{Actor: worker, ExpectedRev: statemachine.ViewItem(&agg, open).Rev, ID: id},
		}
	}

	change("6f3a", statemachine.Accept{}, statemachine.ItemAsk{})
	first := statemachine.Pair{AttemptNo: 1, LeaseID: "6f3a"}
	change("", statemachine.Claimed{StepID: "ocr", Pair: first}, claim("worker-7", "a1"))
	now = now.Add(time.Minute) // No ACK comes.
	change("", statemachine.DeadlinePassed{}, statemachine.ItemAsk{})
	now = now.Add(time.Minute)
	change("9d0e", statemachine.DeadlinePassed{}, statemachine.ItemAsk{})
	second := statemachine.Pair{AttemptNo: 2, LeaseID: "9d0e"}
	change("", statemachine.Ack{StepID: "ocr", Pair: second}, claim("worker-8", "b1")) // With start.
	fmt.Printf("%s of %s, claimed %d times\n", statemachine.ViewItem(&agg, open).Status, open.WorkID, open.Claims)
	// The worker reports by a callback, not through the queue.
	change("", statemachine.Result{StepID: "ocr", Pair: second, Status: statemachine.ResultSucceeded}, statemachine.ItemAsk{})
	// Output:
	// step AWAITING_ACK  item rev 1: enqueued by relay
	// step AWAITING_ACK  item rev 2: claimed by worker-7
	// step FAILED_RETRY  item rev 3: stalled by ledger
	// step AWAITING_ACK  item rev 4: requeued by relay
	// step IN_PROGRESS   item rev 5: claimed by worker-8
	// step IN_PROGRESS   item rev 6: started by worker-8
	// running of job-1.0.1, claimed 2 times
	// step SUCCEEDED     item rev 7: succeeded by worker-8
}
