package statemachine_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The life of an item whose first worker is lost.
func Example_workItem() {
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	var item statemachine.Item
	record := func(change statemachine.ItemChange, err error) {
		if err != nil {
			fmt.Println("refused:", err)
			return
		}
		if change.Repeat {
			fmt.Println("repeat: nothing to write")
		}
		for _, event := range change.Events {
			fmt.Printf("rev %d: %s by %s, now %s, attempt %d\n", event.Rev, event.Type, event.Actor, event.To, event.Attempt)
		}
		item = change.Item
	}
	by := func(actor, id string) statemachine.ItemRequest {
		return statemachine.ItemRequest{Actor: actor, ExpectedRev: item.Rev, ID: id}
	}

	first := statemachine.ItemDirective{MessageID: "job-1.0/1", AttemptNo: 1, LeaseID: "6f3a"}
	second := statemachine.ItemDirective{MessageID: "job-1.0/2", AttemptNo: 2, LeaseID: "9d0e"}
	message := statemachine.ItemMessage{ItemDirective: first, DedupeKey: first.MessageID, TenantID: "tenant_a"}

	record(statemachine.EnqueueItem(nil, "work-1", "relay", message, now))
	record(statemachine.EnqueueItem(&item, "work-1", "relay", message, now))
	record(statemachine.ClaimItem(item, by("worker-7", "a1"), now.Add(30*time.Second), now))
	start := by("worker-7", "a2")
	record(statemachine.StartItem(item, start, now.Add(15*time.Minute), now))
	record(statemachine.StartItem(item, start, now.Add(15*time.Minute), now))

	now = now.Add(16 * time.Minute)
	record(statemachine.StallItem(item, by("sweeper", "lease of 6f3a expired"), now))
	record(statemachine.RequeueItem(item, by("relay", second.MessageID), second, now))
	record(statemachine.ClaimAndStartItem(item, by("worker-8", "b1"), now.Add(15*time.Minute), now))
	record(statemachine.CompleteItem(item, by("worker-7", "a3"), json.RawMessage(`{}`), now))
	record(statemachine.CompleteItem(item, by("worker-8", "b2"), json.RawMessage(`{}`), now))
	// Output:
	// rev 1: enqueued by relay, now queued, attempt 0
	// repeat: nothing to write
	// rev 2: claimed by worker-7, now claimed, attempt 1
	// rev 3: started by worker-7, now running, attempt 1
	// repeat: nothing to write
	// rev 4: stalled by sweeper, now stalled, attempt 1
	// rev 5: requeued by relay, now queued, attempt 1
	// rev 6: claimed by worker-8, now claimed, attempt 2
	// rev 7: started by worker-8, now running, attempt 2
	// refused: not the owner: complete of work item work-1 by "worker-7"
	// rev 8: succeeded by worker-8, now succeeded, attempt 2
}

// The whole policy as a table: the status after each operation, by the status before.
func ExampleLookupItemTransition() {
	row := func(first string, cell func(statemachine.ItemStatus) string) {
		line := fmt.Sprintf("%-14s", first)
		for _, from := range statemachine.ItemStatuses() {
			line += fmt.Sprintf("  %-9s", cell(from))
		}
		fmt.Println(strings.TrimRight(line, " "))
	}
	row("", func(from statemachine.ItemStatus) string { return string(from) })
	for _, operation := range statemachine.ItemOperations()[1:] {
		row(string(operation), func(from statemachine.ItemStatus) string {
			transition, ok := statemachine.LookupItemTransition(operation, from)
			if !ok {
				return "-"
			}
			return string(transition.To)
		})
	}
	// Output:
	//                 queued     claimed    running    succeeded  failed     stalled
	// claimNext       claimed    -          -          -          -          claimed
	// start           -          running    -          -          -          -
	// heartbeat       -          claimed    running    -          -          -
	// complete        -          -          succeeded  -          -          -
	// fail            -          -          failed     -          -          -
	// stall           -          stalled    stalled    -          -          -
	// requeueStalled  -          -          -          -          -          queued
}

func ExampleValidateItem() {
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	item := statemachine.Item{
		WorkID: "work-1", DedupeKey: "job-1.0/1", Status: statemachine.StatusStalled, Attempt: 1, Rev: 3,
		MessageID: "job-1.0/1", AttemptNo: 1, LeaseID: "6f3a", CreatedAt: now, UpdatedAt: now,
		Owner: "worker-7", LeaseExpiresAt: now,
	}
	fmt.Println(statemachine.ValidateItem(item))
	// Output:
	// invalid work item: "work-1", stalled: owner must be absent when stalled; lease must be absent when stalled
}
