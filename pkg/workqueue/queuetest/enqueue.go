package queuetest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

var enqueueChecks = []check{
	{
		"enqueue/makes a queued item",
		"Enqueue creates queued; attempt starts at 0 when created in queued.",
		func(t testing.TB, e *env) {
			message := e.message(t)
			before := e.now()
			item := e.enqueue(t, message)
			e.expectItem(t, item)
			if item.Status != lifecycle.StatusQueued || item.Attempt != 0 {
				t.Errorf("item is %s with attempt %d, want queued with attempt 0", item.Status, item.Attempt)
			}
			if item.CreatedAt.Before(before) || item.CreatedAt.After(e.Now()) {
				t.Errorf("created at %s, want the time of the enqueue, %s", item.CreatedAt, before)
			}
			if diff := cmp.Diff(message, messageOf(item)); diff != "" {
				t.Errorf("the item's message (-want +got):\n%s", diff)
			}
		},
	},
	{
		"enqueue/a duplicate returns the existing item in any status",
		"Enqueue returns the existing record by dedupe_key.",
		func(t testing.TB, e *env) {
			for _, status := range lifecycle.Statuses() {
				item := e.in(t, status)
				e.duplicates(t, messageOf(item), item)
			}
		},
	},
	{
		"enqueue/the message of a requeue is a duplicate, and so is the one before",
		"Enqueue returns the existing record by dedupe_key; requeueStalled is stalled to queued, not a new record.",
		func(t testing.TB, e *env) {
			stalled := e.in(t, lifecycle.StatusStalled)
			queued := e.must(t, lifecycle.OpRequeueStalled, stalled)
			republished := messageOf(queued)
			republished.DedupeKey = queued.MessageID
			e.duplicates(t, republished, queued)
			e.duplicates(t, messageOf(stalled), queued)
		},
	},
	{
		"enqueue/other messages are other items",
		"Enqueue creates queued, unless there is a record by dedupe_key.",
		func(t testing.TB, e *env) {
			first, second := e.in(t, lifecycle.StatusQueued), e.in(t, lifecycle.StatusQueued)
			if first.WorkID == second.WorkID {
				t.Errorf("two messages share the item %s", first.WorkID)
			}
		},
	},
	{
		"enqueue/what was never enqueued is not found",
		"Enqueue is the only operation that creates a record.",
		func(t testing.TB, e *env) {
			const nobody = "no-such-work"
			if _, err := e.Queue.Get(t.Context(), nobody); !errors.Is(err, lifecycle.ErrNotFound) {
				t.Errorf("get: error is %v, want ErrNotFound", err)
			}
			if _, err := e.Queue.Events(t.Context(), nobody); !errors.Is(err, lifecycle.ErrNotFound) {
				t.Errorf("events: error is %v, want ErrNotFound", err)
			}
			for _, op := range asked {
				item := lifecycle.Item{WorkID: nobody, Rev: 1, AttemptNo: 1}
				if _, err := e.ask(t, op, item, e.request(anna, item)); !errors.Is(err, lifecycle.ErrNotFound) {
					t.Errorf("%s: error is %v, want ErrNotFound", op, err)
				}
			}
		},
	},
}

// duplicates fails unless enqueueing the message returns that item unchanged,
// and adds nothing to claim.
func (e *env) duplicates(t testing.TB, message lifecycle.Message, item lifecycle.Item) {
	t.Helper()
	e.untouched(t, item.WorkID, "a duplicate", func() {
		again, err := e.Queue.Enqueue(t.Context(), message)
		if err != nil {
			t.Errorf("enqueue of a duplicate of a %s item: %v", item.Status, err)
			return
		}
		if diff := cmp.Diff(item, again, sameItem); diff != "" {
			t.Errorf("a duplicate of a %s item returned (-want +got):\n%s", item.Status, diff)
		}
	})
	if item.Status == lifecycle.StatusQueued || item.Status == lifecycle.StatusStalled {
		return
	}
	if items := e.claim(t, e.claimOf(item, bert)); len(items) > 0 {
		t.Errorf("a duplicate of a %s item left %v to be claimed", item.Status, workIDs(items))
	}
}

// messageOf is the message that the item stands for.
func messageOf(item lifecycle.Item) lifecycle.Message {
	return lifecycle.Message{
		Directive: directiveOf(item), DedupeKey: item.DedupeKey, JobID: item.JobID, StepID: item.StepID,
		TenantID: item.TenantID, Service: item.Service, StepType: item.StepType,
	}
}

func directiveOf(item lifecycle.Item) lifecycle.Directive {
	return lifecycle.Directive{MessageID: item.MessageID, AttemptNo: item.AttemptNo, LeaseID: item.LeaseID}
}
