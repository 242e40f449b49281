package workitem_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
	"github.com/lucius-project/lucius/pkg/statemachine/workitem"
)

// short formats the moves of one change: each event with its actor.
func short(events []lifecycle.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, string(e.Type)+" by "+e.Actor)
	}
	return strings.Join(out, ", ")
}

// TestFollow_VerbsOfTheQueue covers all that the queue can do to an item: the events
// before, the change, its moves, and the item's status after them. rev and claims are what
// the change adds to those of the previously open item; the zero status means no item.
func TestFollow_VerbsOfTheQueue(t *testing.T) {
	t.Parallel()
	const none = lifecycle.StatusNone
	reports := func(status statemachine.ResultStatus) func(*job) {
		return func(j *job) { j.applied(j.result(status)) }
	}
	nothing := func(*job) {}
	claimed := func(j *job) { j.does(claim(anna)) }
	running := func(j *job) { j.does(claimAndStart(anna)) }
	stalled := func(j *job) { j.does(claim(anna), stall()) }
	stalledHeld := func(j *job) { j.does(claim(anna), stall()).holding(true).does(requeue()) }
	cancelling := func(j *job) { j.does(claim(anna)).applied(statemachine.Cancel{}) }
	tests := []struct {
		name           string
		before, change func(*job)
		moves          string
		rev            int64
		claims         int
		status         lifecycle.Status
	}{
		// enqueue, and rows that must wait.
		{
			"enqueue by an accept", nil, func(j *job) { j.applied(statemachine.Accept{}) },
			"enqueued by relay", 1, 0, lifecycle.StatusQueued,
		},
		{"enqueue, held", nil, func(j *job) { j.holding(true).applied(statemachine.Accept{}) }, "", 0, 0, none},
		{"enqueue on Service Bus", nil, func(j *job) { j.on(statemachine.BusServiceBus).applied(statemachine.Accept{}) }, "", 0, 0, none},
		{
			"enqueue by the retry of a step that failed",
			func(j *job) { j.does(claimAndStart(anna), fail(anna, statemachine.ResultFailedRetry)) },
			func(j *job) { j.expire() }, "enqueued by relay", 1, 0, lifecycle.StatusQueued,
		},
		{
			"enqueue by a resume", func(j *job) { j.applied(statemachine.Pause{}) },
			func(j *job) { j.applied(statemachine.Resume{}) }, "enqueued by relay", 1, 0, lifecycle.StatusQueued,
		},
		{
			"mark of a held row",
			func(j *job) { j.applied(statemachine.Pause{}).holding(true).applied(statemachine.Resume{}) },
			func(j *job) { j.applied(j.mark()) }, "enqueued by relay", 1, 0, lifecycle.StatusQueued,
		},
		{
			"mark of a held row that another bus had",
			func(j *job) {
				j.on(statemachine.BusServiceBus).holding(true).applied(statemachine.DeadlinePassed{})
				j.on(statemachine.BusQueue).applied(statemachine.DispatchClaimed{})
			},
			func(j *job) { j.applied(j.mark()) }, "enqueued by relay", 1, 0, lifecycle.StatusQueued,
		},
		// claimNext.
		{"claimNext", nothing, claimed, "claimed by anna", 1, 1, lifecycle.StatusClaimed},
		{"claimNext with start", nothing, running, "claimed by anna, started by anna", 2, 1, lifecycle.StatusRunning},
		{
			"claimNext after a requeue", func(j *job) { j.does(claim(anna), stall(), requeue()) },
			func(j *job) { j.does(claim(bert)) }, "claimed by bert", 1, 1, lifecycle.StatusClaimed,
		},
		// start and heartbeat.
		{"start", claimed, func(j *job) { j.does(begin(anna)) }, "started by anna", 1, 0, lifecycle.StatusRunning},
		{"start, an ACK by callback", claimed, func(j *job) { j.applied(j.ack()) }, "started by anna", 1, 0, lifecycle.StatusRunning},
		{
			"start, a heartbeat by callback on a claimed item", claimed,
			func(j *job) { j.applied(j.heartbeat()) }, "started by anna", 1, 0, lifecycle.StatusRunning,
		},
		{"heartbeat", running, func(j *job) { j.does(beat(anna)) }, "heartbeat by anna", 1, 0, lifecycle.StatusRunning},
		{"heartbeat of a claim", claimed, func(j *job) { j.does(beat(anna)) }, "heartbeat by anna", 1, 0, lifecycle.StatusClaimed},
		{"heartbeat by callback", running, func(j *job) { j.applied(j.heartbeat()) }, "heartbeat by anna", 1, 0, lifecycle.StatusRunning},
		// complete and fail.
		{
			"complete, and the next step", running,
			func(j *job) { j.does(complete(anna)) }, "succeeded by anna, enqueued by relay", 1, 0, lifecycle.StatusQueued,
		},
		{
			"complete, the next step held", running,
			func(j *job) { j.holding(true).does(complete(anna)) }, "succeeded by anna", 1, 0, none,
		},
		{
			"complete, the last step", func(j *job) { lastStep(j).does(claimAndStart(anna)) },
			func(j *job) { j.does(complete(anna)) }, "succeeded by anna", 1, 0, none,
		},
		{
			"fail, to be retried", running,
			func(j *job) { j.does(fail(anna, statemachine.ResultFailedRetry)) }, "failed by anna", 1, 0, none,
		},
		{
			"fail, finally", running,
			func(j *job) { j.does(fail(anna, statemachine.ResultFailedFinal)) }, "failed by anna", 1, 0, none,
		},
		{
			"complete by callback on a running item", running, reports(statemachine.ResultSucceeded),
			"succeeded by anna, enqueued by relay", 1, 0, lifecycle.StatusQueued,
		},
		{
			"complete by callback on a claimed item", claimed, reports(statemachine.ResultSucceeded),
			"started by anna, succeeded by anna, enqueued by relay", 2, 0, lifecycle.StatusQueued,
		},
		{
			"fail by callback on a claimed item", claimed, reports(statemachine.ResultFailedRetry),
			"started by anna, failed by anna", 2, 0, none,
		},
		{
			"fail by callback while cancelling", cancelling, reports(statemachine.ResultFailedRetry),
			"started by anna, failed by anna", 2, 0, none,
		},
		// stall and requeueStalled.
		{"stall by the ACK deadline", claimed, func(j *job) { j.expire() }, "stalled by ledger", 1, 0, lifecycle.StatusStalled},
		{"stall by the lease's end", running, func(j *job) { j.expire() }, "stalled by ledger", 1, 0, lifecycle.StatusStalled},
		{"stall by an operator", running, func(j *job) { j.does(stall()) }, "stalled by olga", 1, 0, lifecycle.StatusStalled},
		{
			"stall by the ledger's own event", claimed,
			func(j *job) { j.applied(statemachine.Stall{StepID: "one", AttemptNo: 1}) }, "stalled by ledger", 1, 0, lifecycle.StatusStalled,
		},
		{
			"stall by the last deadline", func(j *job) { j.agg.Steps[0].Policy.Ack = nil; j.does(claim(anna)) },
			func(j *job) { j.expire() }, "stalled by ledger, removed by ledger", 1, 0, none,
		},
		{
			"stall by an operator while cancelling", cancelling,
			func(j *job) { j.does(stall()) }, "stalled by olga, removed by ledger", 1, 0, none,
		},
		{"requeueStalled by an operator", stalled, func(j *job) { j.does(requeue()) }, "requeued by olga", 1, 0, lifecycle.StatusQueued},
		{"requeueStalled by the retry", stalled, func(j *job) { j.expire() }, "requeued by relay", 1, 0, lifecycle.StatusQueued},
		{"requeueStalled, held", stalled, func(j *job) { j.holding(true).does(requeue()) }, "", 0, 0, lifecycle.StatusStalled},
		{
			"requeueStalled, held by the retry and then by an operator",
			func(j *job) { stalled(j); j.holding(true).expire() },
			func(j *job) { j.does(requeue()) }, "", 0, 0, lifecycle.StatusStalled,
		},
		{
			"requeueStalled by the mark of an operator's requeue", stalledHeld,
			func(j *job) { j.applied(j.mark()) }, "requeued by olga", 1, 0, lifecycle.StatusQueued,
		},
		{
			"requeueStalled by the retry, long after a held requeue",
			func(j *job) { stalledHeld(j); j.applied(j.mark()).holding(false).does(claim(bert)).expire() },
			func(j *job) { j.expire() }, "requeued by relay", 1, 0, lifecycle.StatusQueued,
		},
		{
			"requeueStalled by the mark of a retry", func(j *job) { stalled(j); j.holding(true).expire() },
			func(j *job) { j.applied(j.mark()) }, "requeued by relay", 1, 0, lifecycle.StatusQueued,
		},
		// remove.
		{"remove by a pause", nothing, func(j *job) { j.applied(statemachine.Pause{}) }, "removed by ledger", 0, 0, none},
		{
			"remove by a pause that withdraws a requeue", stalledHeld,
			func(j *job) { j.applied(statemachine.Pause{}) }, "removed by ledger", 0, 0, none,
		},
		{"remove by a cancel of a queued item", nothing, func(j *job) { j.applied(statemachine.Cancel{}) }, "removed by ledger", 0, 0, none},
		{"remove by a cancel of a stalled item", stalled, func(j *job) { j.applied(statemachine.Cancel{}) }, "removed by ledger", 0, 0, none},
		{
			"remove by a late success", stalled, reports(statemachine.ResultSucceeded),
			"removed by ledger, enqueued by relay", 0, 0, lifecycle.StatusQueued,
		},
		{"remove by a late final failure", stalled, reports(statemachine.ResultFailedFinal), "removed by ledger", 0, 0, none},
		{
			"remove by the change of the bus while queued", nothing,
			func(j *job) { j.on(statemachine.BusServiceBus).applied(statemachine.DeadlinePassed{}) }, "removed by ledger", 0, 0, none,
		},
		{
			"remove by the next attempt on another bus", stalled,
			func(j *job) { j.on(statemachine.BusServiceBus).expire() }, "removed by ledger", 0, 0, none,
		},
		{
			"remove by a held requeue that another bus takes", stalledHeld,
			func(j *job) { j.on(statemachine.BusServiceBus).applied(statemachine.DispatchClaimed{}) }, "removed by ledger", 0, 0, none,
		},
		{"remove by an ACK without a claim", nothing, func(j *job) { j.applied(j.ack()) }, "removed by ledger", 0, 0, none},
		// No move.
		{"a timer that finds nothing due", nothing, func(j *job) { j.expire() }, "", 0, 0, lifecycle.StatusQueued},
		{"a pause while held", claimed, func(j *job) { j.applied(statemachine.Pause{}) }, "", 0, 0, lifecycle.StatusClaimed},
		{"a cancel while held", running, func(j *job) { j.applied(statemachine.Cancel{}) }, "", 0, 0, lifecycle.StatusRunning},
		{
			"the grace after an outage", claimed,
			func(j *job) { j.later(time.Hour).applied(statemachine.DeadlinePassed{Outage: j.now}) }, "", 0, 0, lifecycle.StatusClaimed,
		},
		{"a pause while stalled", stalled, func(j *job) { j.applied(statemachine.Pause{}) }, "", 0, 0, lifecycle.StatusStalled},
		{"a late retryable failure", stalled, reports(statemachine.ResultFailedRetry), "", 0, 0, lifecycle.StatusStalled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := draft(t)
			if test.before != nil {
				j.applied(statemachine.Accept{})
				test.before(j)
			}
			was := workitem.Record{}
			if j.open != nil {
				was = *j.open
			}
			test.change(j)
			if got := short(j.last.Events); got != test.moves {
				t.Errorf("moves are %q, want %q", got, test.moves)
			}
			now := was
			for _, record := range []*workitem.Record{j.last.Open, j.last.Ended} {
				if record != nil && (was.WorkID == "" || record.WorkID == was.WorkID) {
					now = *record
				}
			}
			if rev, claims := now.Rev-was.Rev, now.Claims-was.Claims; rev != test.rev || claims != test.claims {
				t.Errorf("rev +%d, claims +%d; want +%d, +%d", rev, claims, test.rev, test.claims)
			}
			status := none
			if j.open != nil {
				status = j.item().Status
			}
			if status != test.status {
				t.Errorf("status is %q, want %q", status, test.status)
			}
		})
	}
}

// One request of a claim with start covers both moves, so its repeat is known.
func TestFollow_AClaimWithStartIsOneRequest(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	v := claimAndStart(anna)
	v.requestID = "same"
	j.does(v)
	if done, err := j.request(v); done || err != nil {
		t.Errorf("the repeat was carried out: %t, %v", done, err)
	}
	item := j.item()
	if len(item.Requests) != 1 || item.Requests[0].Rev != 3 || !item.HeldUnder(anna, "same") {
		t.Errorf("remembers %+v", item.Requests)
	}
}

// Each move of the worker extends the item's lease by as much as the claim asked for.
func TestFollow_TheClaimSaysForHowLong(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	for _, v := range []verb{claimFor(anna, 5*time.Minute), beat(anna), begin(anna), beat(anna)} {
		j.later(time.Minute).does(v)
		if item := j.item(); !item.LeaseExpiresAt.Equal(j.now.Add(5 * time.Minute)) {
			t.Errorf("after %s the lease ends at %s, and now is %s", v.operation, item.LeaseExpiresAt, j.now)
		}
	}
}

// An outage extends the lease of the step, and with it the item's, but is no move.
func TestView_AnOutageExtendsTheLeaseWithoutAMove(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.does(claimAndStart(anna))
	rev := j.item().Rev
	j.later(30 * time.Minute).applied(statemachine.DeadlinePassed{Outage: j.now})
	if item := j.item(); item.Rev != rev || !item.LeaseExpiresAt.Equal(j.now.Add(5*time.Minute)) {
		t.Errorf("rev %d after %d, the lease ends %s", item.Rev, rev, item.LeaseExpiresAt)
	}
}

// A requeue gives the item the directive of the next attempt, and a new hint.
func TestFollow_ARequeueKeepsTheItem(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	first := j.item()
	hint := j.open.ReadyRev
	j.later(time.Second).does(claim(anna), stall())
	if j.open.ReadyRev != hint || j.open.AttemptNo != 1 {
		t.Errorf("a stalled item names the hint of rev %d, attempt %d", j.open.ReadyRev, j.open.AttemptNo)
	}
	j.later(time.Second).does(requeue())
	item := j.item()
	if item.WorkID != first.WorkID || item.DedupeKey != first.DedupeKey || item.Attempt != 1 || !item.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("came back as %+v", item)
	}
	if item.AttemptNo != 2 || item.MessageID == first.MessageID || item.LeaseID == first.LeaseID || item.LeaseID != j.agg.Outbox.LeaseID {
		t.Errorf("carries attempt %d, message %s", item.AttemptNo, item.MessageID)
	}
	if j.open.ReadyRev != j.agg.Job.Rev || !j.open.ReadySince.Equal(j.now) || j.open.RequeuedBy != (workitem.Requester{}) {
		t.Errorf("names the hint of rev %d since %s, asked for by %+v", j.open.ReadyRev, j.open.ReadySince, j.open.RequeuedBy)
	}
}

// A held requeue is remembered on the item until the mark, so that a repeat is recognized;
// the latest request counts.
func TestFollow_AHeldRequeueIsRemembered(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.does(claim(anna), stall())
	asked := requeue()
	asked.requestID = "first"
	j.holding(true).does(asked)
	if want := (workitem.Requester{Actor: olga, RequestID: "first"}); j.open.RequeuedBy != want || !j.last.Changed {
		t.Errorf("remembers %+v, to be written: %t", j.open.RequeuedBy, j.last.Changed)
	}
	if done, err := j.request(asked); done || err != nil {
		t.Errorf("the repeat was carried out: %t, %v", done, err)
	}
	asked.requestID = "second"
	j.does(asked).applied(j.mark())
	if e := j.last.Events[0]; e.Type != lifecycle.EventRequeued || e.RequestID != "second" {
		t.Errorf("the requeue is %+v", e)
	}
	if done, err := j.request(asked); done || err != nil {
		t.Errorf("the repeat after the mark was carried out: %t, %v", done, err)
	}
}

// An item that a RESULT ended shows that RESULT's references and error, even after later
// attempts have written to the step.
func TestView_AnEndedItemShowsItsOwnResult(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ output, result, want string }{
		"both":    {"o", "r", `{"output_ref":{"uri":"o"},"result_ref":{"uri":"r"}}`},
		"output":  {"o", "", `{"output_ref":{"uri":"o"}}`},
		"result":  {"", "r", `{"result_ref":{"uri":"r"}}`},
		"neither": {"", "", `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			j.does(claimAndStart(anna))
			failed := fail(anna, statemachine.ResultFailedRetry)
			j.does(failed)
			first := j.last.Ended
			j.expire().does(claimAndStart(bert))
			j.does(verb{operation: lifecycle.OpComplete, actor: bert, event: func(_ *job, item lifecycle.Item) statemachine.Event {
				event := statemachine.Result{StepID: item.StepID, Pair: pairOf(&item), Status: statemachine.ResultSucceeded}
				if test.output != "" {
					event.OutputRef = ref(test.output)
				}
				if test.result != "" {
					event.ResultRef = ref(test.result)
				}
				return event
			}})
			if got := string(workitem.View(&j.agg, j.last.Ended).Result); got != test.want {
				t.Errorf("result is %s, want %s", got, test.want)
			}
			want := &lifecycle.Failure{Code: "corrupt_pdf", Message: "Page 3."}
			if diff := cmp.Diff(want, workitem.View(&j.agg, first).Error); diff != "" {
				t.Errorf("error of the first item (-want +got):\n%s", diff)
			}
			if first.WorkID == j.last.Ended.WorkID {
				t.Error("the attempt after a RESULT came back as the same item")
			}
		})
	}
}

// A step forgets old attempts; then no digest of the lease id is left.
func TestView_ALeaseThatTheStepForgot(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.does(claim(anna), stall()).holding(true).does(requeue())
	first := j.item().LeaseID
	for range 40 { // Rejected again and again, each with a new pair.
		j.agg.Steps[0].Spent = statemachine.Spent{}
		j.applied(statemachine.PublishRejected{OutboxID: j.agg.Outbox.ID, AttemptNo: j.agg.Outbox.AttemptNo, Reason: "malformed"})
		j.later(time.Minute)
		j.applied(statemachine.DispatchClaimed{})
	}
	if item := j.item(); item.LeaseID == first || item.LeaseID == "" || lifecycle.Validate(item) != nil {
		t.Errorf("lease id %q: %v", item.LeaseID, lifecycle.Validate(item))
	}
}

// A worker may have the name of a part of the system, and may have used any
// request id. In neither case may a deadline or a callback fail.
func TestFollow_RequestIDsDoNotCollide(t *testing.T) {
	t.Parallel()
	t.Run("with the ledger's", func(t *testing.T) {
		t.Parallel()
		j := newJob(t)
		v := claim("ledger")
		v.requestID = "ledger-2" // the id of the ledger's move at the next rev
		j.does(v).expire()
		if got := short(j.last.Events); got != "stalled by ledger" {
			t.Errorf("moves are %q", got)
		}
	})
	t.Run("with the owner's own", func(t *testing.T) {
		t.Parallel()
		j := newJob(t)
		first, second := claim(anna), beat(anna)
		first.requestID, second.requestID = "ledger-2", "ledger-3"
		j.does(first, second).applied(j.result(statemachine.ResultSucceeded))
		if got := short(j.last.Events); got != "started by anna, succeeded by anna, enqueued by relay" {
			t.Errorf("moves are %q", got)
		}
	})
}

// If the lifecycle refuses the request of a verb, Follow returns an error.
func TestFollow_RefusesWhatTheLifecycleRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		before func(*job)
		ask    verb
		want   error
	}{
		{"a claim without an owner", func(*job) {}, claim(""), lifecycle.ErrInvalidRequest},
		{"a start by another worker", func(j *job) { j.does(claim(anna)) }, begin(bert), lifecycle.ErrNotOwner},
		{"a heartbeat by another worker", func(j *job) { j.does(claimAndStart(anna)) }, beat(bert), lifecycle.ErrNotOwner},
		{"a completion by another worker", func(j *job) { j.does(claimAndStart(anna)) }, complete(bert), lifecycle.ErrNotOwner},
		{
			"a failure by another worker", func(j *job) { j.does(claimAndStart(anna)) },
			fail(bert, statemachine.ResultFailedFinal), lifecycle.ErrNotOwner,
		},
		{
			"a stall without an actor while cancelling", func(j *job) { j.does(claim(anna)).applied(statemachine.Cancel{}) },
			verb{operation: lifecycle.OpStall, event: stall().event}, lifecycle.ErrInvalidRequest,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			test.before(j)
			item := j.item()
			_, err := follow(j, test.ask.event(j, item), workitem.Ask{
				Operation: test.ask.operation,
				Request:   lifecycle.Request{Actor: test.ask.actor, ExpectedRev: item.Rev, ID: "request"},
			})
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), item.WorkID) {
				t.Errorf("error is %v, want %v", err, test.want)
			}
		})
	}
}

// A state that no change can produce is an error, not a guess.
func TestFollow_RefusesACorruptJob(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*job)
		event func(*job) statemachine.Event
		want  string
	}{
		{
			"an item whose step no worker may work on", func(j *job) { j.open.Owner = anna },
			func(*job) statemachine.Event { return statemachine.Cancel{} },
			"work item job-1.0.1: the open item is neither queued, held nor stalled while its step is AWAITING_ACK",
		},
		{
			"a removal of an item that has no rev", func(j *job) { j.open.Rev = 0 },
			func(*job) statemachine.Event { return statemachine.Cancel{} }, "work item job-1.0.1: invalid request: expected_rev",
		},
		{
			"a requeue with an old attempt", func(j *job) { j.does(claim(anna), stall()).open.AttemptNo = 2 },
			func(*job) statemachine.Event { return statemachine.Retry{} }, "work item job-1.0.1: invalid request: attempt_no",
		},
		{
			"a message without a lease", func(j *job) {
				j.applied(statemachine.Pause{}).holding(true).applied(statemachine.Resume{}).agg.Outbox.LeaseID = ""
			},
			(*job).mark, "work item job-1.0.2: invalid request: lease_id",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			test.spoil(j)
			moves, err := follow(j, test.event(j), workitem.Ask{})
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error is %v, want %s", err, test.want)
			}
			if diff := cmp.Diff(workitem.Moves{}, moves); diff != "" {
				t.Errorf("moves all the same:\n%s", diff)
			}
		})
	}
}

// follow decides and follows an event without changing the job.
func follow(j *job, event statemachine.Event, ask workitem.Ask) (workitem.Moves, error) {
	j.t.Helper()
	d, err := statemachine.Decide(j.agg, event, statemachine.Env{
		Now: j.now, LeaseID: "lease-0", Bus: j.bus, Prompt: func(statemachine.Target) bool { return true },
	})
	if err != nil || d.Outcome != statemachine.Applied {
		j.t.Fatalf("%T is %s: %s %v", event, d.Outcome, d.Reason, err)
	}
	return workitem.Follow(&j.agg, j.open, &d, ask, j.now)
}
