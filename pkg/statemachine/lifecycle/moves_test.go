package lifecycle_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
)

func TestEnqueueMakesAQueuedItem(t *testing.T) {
	t.Parallel()
	change, err := lifecycle.Enqueue(nil, "work-1", "relay", message(1), t0)
	if err != nil {
		t.Fatal(err)
	}
	want := lifecycle.Change{
		Item: lifecycle.Item{
			WorkID: "work-1", Status: "queued", Rev: 1, DedupeKey: "job-1.0/1",
			MessageID: "job-1.0/1", AttemptNo: 1, LeaseID: "lease-1",
			JobID: "job-1", StepID: "ocr", TenantID: "tenant_a", Service: "ocr", StepType: "OCR",
			CreatedAt: t0, UpdatedAt: t0,
		},
		Events: []lifecycle.Event{{WorkID: "work-1", Rev: 1, Type: "enqueued", To: "queued", At: t0, Actor: "relay"}},
	}
	if diff := cmp.Diff(want, change); diff != "" {
		t.Errorf("change (-want +got):\n%s", diff)
	}
}

func TestEnqueueOfACoveredMessageIsARepeat(t *testing.T) {
	t.Parallel()
	for _, status := range lifecycle.Statuses() {
		item := in(t, status)
		change, err := lifecycle.Enqueue(&item, "work-2", "relay", message(1), t0.Add(time.Hour))
		wantRepeat(t, item, change, err)
	}
}

func TestCovers(t *testing.T) {
	t.Parallel()
	item := in(t, lifecycle.StatusStalled)
	item = must(t)(lifecycle.Requeue(item, by(sweeper, item), directive(3), t0))
	other := func(change func(*lifecycle.Message)) lifecycle.Message {
		m := message(1)
		m.DedupeKey, m.MessageID, m.JobID, m.AttemptNo = "other", "other", "other", 9
		change(&m)
		return m
	}
	for name, c := range map[string]struct {
		message lifecycle.Message
		want    bool
	}{
		"key it was enqueued under":       {other(func(m *lifecycle.Message) { m.DedupeKey = "job-1.0/1" }), true},
		"message of the requeue":          {other(func(m *lifecycle.Message) { m.MessageID = "job-1.0/3" }), true},
		"late message of an attempt past": {message(2), true},
		"message of the next attempt":     {message(4), false},
		"another step's": {other(func(m *lifecycle.Message) {
			m.JobID, m.StepID, m.AttemptNo = "job-1", "translate", 1
		}), false},
		"copy under another name": {other(func(m *lifecycle.Message) {
			m.JobID, m.AttemptNo = "job-1", 3
		}), true},
		"another job's":  {other(func(m *lifecycle.Message) { m.AttemptNo = 1 }), false},
		"one of no job":  {other(func(m *lifecycle.Message) { m.JobID, m.AttemptNo = "", 1 }), false},
		"something else": {other(func(*lifecycle.Message) {}), false},
	} {
		if got := item.Covers(c.message); got != c.want {
			t.Errorf("%s: Covers = %t, want %t", name, got, c.want)
		}
	}
	item.JobID, item.StepID = "", ""
	if item.Covers(other(func(m *lifecycle.Message) { m.JobID, m.StepID, m.AttemptNo = "", "", 1 })) {
		t.Error("two messages of no job are taken for one")
	}
}

func TestWorkersMovesSetOwnerAndLease(t *testing.T) {
	t.Parallel()
	now := t0.Add(time.Minute)
	for _, c := range []struct {
		from  lifecycle.Status
		op    lifecycle.Operation
		owner string
		until time.Time
	}{
		{"queued", "claimNext", anna, now.Add(lease)},
		{"stalled", "claimNext", anna, now.Add(lease)},
		{"claimed", "start", anna, now.Add(lease)},
		{"claimed", "heartbeat", anna, now.Add(lease)},
		{"running", "heartbeat", anna, now.Add(lease)},
		{"running", "complete", "", time.Time{}},
		{"running", "fail", "", time.Time{}},
		{"claimed", "stall", "", time.Time{}},
		{"running", "stall", "", time.Time{}},
		{"stalled", "requeueStalled", "", time.Time{}},
	} {
		item := in(t, c.from)
		item = must(t)(perform(c.op, item, by(actorOf(c.op), item), now))
		if item.Owner != c.owner || !item.LeaseExpiresAt.Equal(c.until) {
			t.Errorf("%s from %s: owner %q until %s, want %q until %s", c.op, c.from, item.Owner, item.LeaseExpiresAt, c.owner, c.until)
		}
	}
}

func TestClaimAndStartIsTwoTransitions(t *testing.T) {
	t.Parallel()
	item := queued(t)
	request := lifecycle.Request{Actor: anna, ExpectedRev: 1, ID: "r1"}
	change, err := lifecycle.ClaimAndStart(item, request, t0.Add(lease), t0)
	running := must(t)(change, err)
	want := []lifecycle.Event{
		{WorkID: "work-1", Rev: 2, Type: "claimed", From: "queued", To: "claimed", At: t0, Actor: anna, RequestID: "r1", Attempt: 1},
		{WorkID: "work-1", Rev: 3, Type: "started", From: "claimed", To: "running", At: t0, Actor: anna, RequestID: "r1", Attempt: 1},
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
	remembered := []lifecycle.Remembered{{
		Actor: anna, RequestID: "r1", Operation: "claimNext", Rev: 3, Attempt: 1, ExpiresAt: t0.Add(lease),
	}}
	if diff := cmp.Diff(remembered, running.Requests); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	again, err := lifecycle.ClaimAndStart(running, request, t0.Add(2*lease), t0.Add(time.Second))
	wantRepeat(t, running, again, err)

	_, err = lifecycle.Start(running, lifecycle.Request{Actor: anna, ExpectedRev: 3, ID: "r1"}, t0.Add(lease), t0)
	wantField(t, err, "request_id")
	_, err = lifecycle.ClaimAndStart(running, by(bert, running), t0.Add(lease), t0)
	wantRefused(t, lifecycle.Change{}, err, lifecycle.ErrIllegalTransition)
}

func TestTheEndIsKeptAsGiven(t *testing.T) {
	t.Parallel()
	item := in(t, lifecycle.StatusRunning)
	given := json.RawMessage(` {"output_ref": {"uri":"s3://bucket/1e2.json"} }`)
	done := must(t)(lifecycle.Complete(item, by(anna, item), given, t0))
	given[1] = 'x'
	if got := string(done.Result); got != ` {"output_ref": {"uri":"s3://bucket/1e2.json"} }` {
		t.Errorf("result is %s", got)
	}
	empty := must(t)(lifecycle.Complete(item, by(anna, item), json.RawMessage(`{}`), t0))
	if string(empty.Result) != "{}" {
		t.Errorf("empty result is %s", empty.Result)
	}
	failure := lifecycle.Failure{Code: "corrupt_pdf", Message: "Page 3."}
	failed := must(t)(lifecycle.Fail(item, by(anna, item), failure, t0))
	if diff := cmp.Diff(&failure, failed.Error); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestRequeueCarriesTheNextDirectiveAndGoesOnCounting(t *testing.T) {
	t.Parallel()
	item := in(t, lifecycle.StatusStalled)
	again := must(t)(lifecycle.Requeue(item, by(sweeper, item), directive(4), t0))
	if got := (lifecycle.Directive{MessageID: again.MessageID, AttemptNo: again.AttemptNo, LeaseID: again.LeaseID}); got != directive(4) {
		t.Errorf("carries %+v, want %+v", got, directive(4))
	}
	if again.DedupeKey != item.DedupeKey || again.Attempt != item.Attempt || again.Rev != item.Rev+1 {
		t.Errorf("dedupe key %s, attempt %d, rev %d", again.DedupeKey, again.Attempt, again.Rev)
	}
	claimed := must(t)(lifecycle.Claim(again, by(bert, again), t0.Add(lease), t0))
	if claimed.Attempt != item.Attempt+1 {
		t.Errorf("attempt is %d after the second claim", claimed.Attempt)
	}
}

func TestRequeueRefusesADirectiveThatIsNotNewer(t *testing.T) {
	t.Parallel()
	item := in(t, lifecycle.StatusStalled)
	for _, c := range []struct {
		field string
		next  lifecycle.Directive
	}{
		{"attempt_no", lifecycle.Directive{MessageID: "m2", AttemptNo: 1, LeaseID: "lease-2"}},
		{"message_id", lifecycle.Directive{MessageID: item.MessageID, AttemptNo: 2, LeaseID: "lease-2"}},
		{"lease_id", lifecycle.Directive{MessageID: "m2", AttemptNo: 2, LeaseID: item.LeaseID}},
	} {
		_, err := lifecycle.Requeue(item, by(sweeper, item), c.next, t0)
		wantField(t, err, c.field)
	}
}

func TestRemoveIsRetentionAndNotATransition(t *testing.T) {
	t.Parallel()
	for _, status := range lifecycle.Statuses() {
		item := in(t, status)
		change, err := lifecycle.Remove(item, by(sweeper, item), t0.Add(time.Hour))
		if status == lifecycle.StatusRunning {
			wantRefused(t, change, err, lifecycle.ErrIllegalTransition)
			continue
		}
		want := lifecycle.Change{Item: item, Events: []lifecycle.Event{{
			WorkID: item.WorkID, Rev: item.Rev + 1, Type: "removed", From: status,
			At: t0.Add(time.Hour), Actor: sweeper, RequestID: by(sweeper, item).ID, Attempt: item.Attempt,
		}}}
		if diff := cmp.Diff(want, change); err != nil || diff != "" {
			t.Errorf("removal of a %s item (-want +got, %v):\n%s", status, err, diff)
		}
	}
}

func TestRemoveAsksForTheRev(t *testing.T) {
	t.Parallel()
	item := queued(t)
	request := by(sweeper, item)
	request.ExpectedRev++
	_, err := lifecycle.Remove(item, request, t0)
	wantRefused(t, lifecycle.Change{}, err, lifecycle.ErrRevConflict)
	_, err = lifecycle.Remove(item, lifecycle.Request{ExpectedRev: 1, ID: "r"}, t0)
	wantField(t, err, "actor")
}
