package statemachine_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

func TestEnqueueMakesAQueuedItem(t *testing.T) {
	t.Parallel()
	change, err := statemachine.EnqueueItem(nil, "work-1", "relay", itemMessage(1), itemT0)
	if err != nil {
		t.Fatal(err)
	}
	want := statemachine.ItemChange{
		Item: statemachine.Item{
			WorkID: "work-1", Status: "queued", Rev: 1, DedupeKey: "job-1.0/1",
			MessageID: "job-1.0/1", AttemptNo: 1, LeaseID: "lease-1",
			JobID: "job-1", StepID: "ocr", TenantID: "tenant_a", Service: "ocr", StepType: "OCR",
			CreatedAt: itemT0, UpdatedAt: itemT0,
		},
		Events: []statemachine.ItemEvent{{WorkID: "work-1", Rev: 1, Type: "enqueued", To: "queued", At: itemT0, Actor: "relay"}},
	}
	if diff := cmp.Diff(want, change); diff != "" {
		t.Errorf("change (-want +got):\n%s", diff)
	}
}

func TestEnqueueOfACoveredMessageIsARepeat(t *testing.T) {
	t.Parallel()
	for _, status := range statemachine.ItemStatuses() {
		item := in(t, status)
		change, err := statemachine.EnqueueItem(&item, "work-2", "relay", itemMessage(1), itemT0.Add(time.Hour))
		wantRepeat(t, item, change, err)
	}
}

func TestCovers(t *testing.T) {
	t.Parallel()
	item := in(t, statemachine.StatusStalled)
	item = itemMust(t)(statemachine.RequeueItem(item, by(sweeper, item), itemDirective(3), itemT0))
	other := func(change func(*statemachine.ItemMessage)) statemachine.ItemMessage {
		m := itemMessage(1)
		m.DedupeKey, m.MessageID, m.JobID, m.AttemptNo = "other", "other", "other", 9
		change(&m)
		return m
	}
	for name, c := range map[string]struct {
		message statemachine.ItemMessage
		want    bool
	}{
		"key it was enqueued under":       {other(func(m *statemachine.ItemMessage) { m.DedupeKey = "job-1.0/1" }), true},
		"message of the requeue":          {other(func(m *statemachine.ItemMessage) { m.MessageID = "job-1.0/3" }), true},
		"late message of an attempt past": {itemMessage(2), true},
		"message of the next attempt":     {itemMessage(4), false},
		"another step's": {other(func(m *statemachine.ItemMessage) {
			m.JobID, m.StepID, m.AttemptNo = "job-1", "translate", 1
		}), false},
		"copy under another name": {other(func(m *statemachine.ItemMessage) {
			m.JobID, m.AttemptNo = "job-1", 3
		}), true},
		"another job's":  {other(func(m *statemachine.ItemMessage) { m.AttemptNo = 1 }), false},
		"one of no job":  {other(func(m *statemachine.ItemMessage) { m.JobID, m.AttemptNo = "", 1 }), false},
		"something else": {other(func(*statemachine.ItemMessage) {}), false},
	} {
		if got := item.Covers(c.message); got != c.want {
			t.Errorf("%s: Covers = %t, want %t", name, got, c.want)
		}
	}
	item.JobID, item.StepID = "", ""
	if item.Covers(other(func(m *statemachine.ItemMessage) { m.JobID, m.StepID, m.AttemptNo = "", "", 1 })) {
		t.Error("two messages of no job are taken for one")
	}
}

func TestWorkersMovesSetOwnerAndLease(t *testing.T) {
	t.Parallel()
	now := itemT0.Add(time.Minute)
	for _, c := range []struct {
		from  statemachine.ItemStatus
		op    statemachine.ItemOperation
		owner string
		until time.Time
	}{
		{"queued", "claimNext", anna, now.Add(itemLease)},
		{"stalled", "claimNext", anna, now.Add(itemLease)},
		{"claimed", "start", anna, now.Add(itemLease)},
		{"claimed", "heartbeat", anna, now.Add(itemLease)},
		{"running", "heartbeat", anna, now.Add(itemLease)},
		{"running", "complete", "", time.Time{}},
		{"running", "fail", "", time.Time{}},
		{"claimed", "stall", "", time.Time{}},
		{"running", "stall", "", time.Time{}},
		{"stalled", "requeueStalled", "", time.Time{}},
	} {
		item := in(t, c.from)
		item = itemMust(t)(perform(c.op, item, by(actorOf(c.op), item), now))
		if item.Owner != c.owner || !item.LeaseExpiresAt.Equal(c.until) {
			t.Errorf("%s from %s: owner %q until %s, want %q until %s", c.op, c.from, item.Owner, item.LeaseExpiresAt, c.owner, c.until)
		}
	}
}

func TestClaimAndStartIsTwoTransitions(t *testing.T) {
	t.Parallel()
	item := queuedItem(t)
	request := statemachine.ItemRequest{Actor: anna, ExpectedRev: 1, ID: "r1"}
	change, err := statemachine.ClaimAndStartItem(item, request, itemT0.Add(itemLease), itemT0)
	running := itemMust(t)(change, err)
	want := []statemachine.ItemEvent{
		{WorkID: "work-1", Rev: 2, Type: "claimed", From: "queued", To: "claimed", At: itemT0, Actor: anna, RequestID: "r1", Attempt: 1},
		{WorkID: "work-1", Rev: 3, Type: "started", From: "claimed", To: "running", At: itemT0, Actor: anna, RequestID: "r1", Attempt: 1},
	}
	if diff := cmp.Diff(want, change.Events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if running.Status != "running" || running.Rev != 3 || running.Attempt != 1 || running.Owner != anna {
		t.Errorf("item is %+v", running)
	}
	if !running.HeldUnder(anna, "r1") {
		t.Error("the item is not held under the claim that started it")
	}
	remembered := []statemachine.Remembered{{
		Actor: anna, RequestID: "r1", Operation: "claimNext", Rev: 3, Attempt: 1, ExpiresAt: itemT0.Add(itemLease),
	}}
	if diff := cmp.Diff(remembered, running.Requests); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	again, err := statemachine.ClaimAndStartItem(running, request, itemT0.Add(2*itemLease), itemT0.Add(time.Second))
	wantRepeat(t, running, again, err)

	_, err = statemachine.StartItem(running, statemachine.ItemRequest{Actor: anna, ExpectedRev: 3, ID: "r1"}, itemT0.Add(itemLease), itemT0)
	wantField(t, err, "request_id")
	_, err = statemachine.ClaimAndStartItem(running, by(bert, running), itemT0.Add(itemLease), itemT0)
	wantRefused(t, statemachine.ItemChange{}, err, statemachine.ErrIllegalTransition)
}

func TestTheEndIsKeptAsGiven(t *testing.T) {
	t.Parallel()
	item := in(t, statemachine.StatusRunning)
	given := json.RawMessage(` {"output_ref": {"uri":"s3://bucket/1e2.json"} }`)
	done := itemMust(t)(statemachine.CompleteItem(item, by(anna, item), given, itemT0))
	given[1] = 'x'
	if got := string(done.Result); got != ` {"output_ref": {"uri":"s3://bucket/1e2.json"} }` {
		t.Errorf("result is %s", got)
	}
	empty := itemMust(t)(statemachine.CompleteItem(item, by(anna, item), json.RawMessage(`{}`), itemT0))
	if string(empty.Result) != "{}" {
		t.Errorf("empty result is %s", empty.Result)
	}
	failure := statemachine.ItemFailure{Code: "corrupt_pdf", Message: "Page 3."}
	failed := itemMust(t)(statemachine.FailItem(item, by(anna, item), failure, itemT0))
	if diff := cmp.Diff(&failure, failed.Error); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestRequeueCarriesTheNextDirectiveAndGoesOnCounting(t *testing.T) {
	t.Parallel()
	item := in(t, statemachine.StatusStalled)
	again := itemMust(t)(statemachine.RequeueItem(item, by(sweeper, item), itemDirective(4), itemT0))
	if got := (statemachine.ItemDirective{MessageID: again.MessageID, AttemptNo: again.AttemptNo, LeaseID: again.LeaseID}); got != itemDirective(4) {
		t.Errorf("carries %+v, want %+v", got, itemDirective(4))
	}
	if again.DedupeKey != item.DedupeKey || again.Attempt != item.Attempt || again.Rev != item.Rev+1 {
		t.Errorf("dedupe key %s, attempt %d, rev %d", again.DedupeKey, again.Attempt, again.Rev)
	}
	claimed := itemMust(t)(statemachine.ClaimItem(again, by(bert, again), itemT0.Add(itemLease), itemT0))
	if claimed.Attempt != item.Attempt+1 {
		t.Errorf("attempt is %d after the second claim", claimed.Attempt)
	}
}

func TestRequeueRefusesADirectiveThatIsNotNewer(t *testing.T) {
	t.Parallel()
	item := in(t, statemachine.StatusStalled)
	for _, c := range []struct {
		field string
		next  statemachine.ItemDirective
	}{
		{"attempt_no", statemachine.ItemDirective{MessageID: "m2", AttemptNo: 1, LeaseID: "lease-2"}},
		{"message_id", statemachine.ItemDirective{MessageID: item.MessageID, AttemptNo: 2, LeaseID: "lease-2"}},
		{"lease_id", statemachine.ItemDirective{MessageID: "m2", AttemptNo: 2, LeaseID: item.LeaseID}},
	} {
		_, err := statemachine.RequeueItem(item, by(sweeper, item), c.next, itemT0)
		wantField(t, err, c.field)
	}
}

func TestRemoveIsRetentionAndNotATransition(t *testing.T) {
	t.Parallel()
	for _, status := range statemachine.ItemStatuses() {
		item := in(t, status)
		change, err := statemachine.RemoveItem(item, by(sweeper, item), itemT0.Add(time.Hour))
		if status == statemachine.StatusRunning {
			wantRefused(t, change, err, statemachine.ErrIllegalTransition)
			continue
		}
		want := statemachine.ItemChange{Item: item, Events: []statemachine.ItemEvent{{
			WorkID: item.WorkID, Rev: item.Rev + 1, Type: "removed", From: status,
			At: itemT0.Add(time.Hour), Actor: sweeper, RequestID: by(sweeper, item).ID, Attempt: item.Attempt,
		}}}
		if diff := cmp.Diff(want, change); err != nil || diff != "" {
			t.Errorf("removal of a %s item (-want +got, %v):\n%s", status, err, diff)
		}
	}
}

func TestRemoveAsksForTheRev(t *testing.T) {
	t.Parallel()
	item := queuedItem(t)
	request := by(sweeper, item)
	request.ExpectedRev++
	_, err := statemachine.RemoveItem(item, request, itemT0)
	wantRefused(t, statemachine.ItemChange{}, err, statemachine.ErrRevConflict)
	_, err = statemachine.RemoveItem(item, statemachine.ItemRequest{ExpectedRev: 1, ID: "r"}, itemT0)
	wantField(t, err, "actor")
}
