package statemachine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// short formats the moves of one change: each event with its actor.
func shortLease(events []statemachine.ItemEvent) string {
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
	const none = statemachine.StatusNone
	reports := func(status statemachine.ResultStatus) func(*itemJob) {
		return func(j *itemJob) { j.applied(j.result(status)) }
	}
	nothing := func(*itemJob) {}
	claimed := func(j *itemJob) { j.does(claimItem(followAnna)) }
	running := func(j *itemJob) { j.does(claimAndStartItem(followAnna)) }
	stalled := func(j *itemJob) { j.does(claimItem(followAnna), stallItem()) }
	stalledHeld := func(j *itemJob) { j.does(claimItem(followAnna), stallItem()).holding(true).does(requeueItem()) }
	cancelling := func(j *itemJob) { j.does(claimItem(followAnna)).applied(statemachine.Cancel{}) }
	tests := []struct {
		name           string
		before, change func(*itemJob)
		moves          string
		rev            int64
		claims         int
		status         statemachine.ItemStatus
	}{
		// enqueue, and rows that must wait.
		{
			"enqueue by an accept", nil, func(j *itemJob) { j.applied(statemachine.Accept{}) },
			"enqueued by relay", 1, 0, statemachine.StatusQueued,
		},
		{"enqueue, held", nil, func(j *itemJob) { j.holding(true).applied(statemachine.Accept{}) }, "", 0, 0, none},
		{"enqueue on Service Bus", nil, func(j *itemJob) { j.on(statemachine.BusServiceBus).applied(statemachine.Accept{}) }, "", 0, 0, none},
		{
			"enqueue by the retry of a step that failed",
			func(j *itemJob) {
				j.does(claimAndStartItem(followAnna), failItem(followAnna, statemachine.ResultFailedRetry))
			},
			func(j *itemJob) { j.expire() }, "enqueued by relay", 1, 0, statemachine.StatusQueued,
		},
		{
			"enqueue by a resume", func(j *itemJob) { j.applied(statemachine.Pause{}) },
			func(j *itemJob) { j.applied(statemachine.Resume{}) }, "enqueued by relay", 1, 0, statemachine.StatusQueued,
		},
		{
			"mark of a held row",
			func(j *itemJob) { j.applied(statemachine.Pause{}).holding(true).applied(statemachine.Resume{}) },
			func(j *itemJob) { j.applied(j.mark()) }, "enqueued by relay", 1, 0, statemachine.StatusQueued,
		},
		{
			"mark of a held row that another bus had",
			func(j *itemJob) {
				j.on(statemachine.BusServiceBus).holding(true).applied(statemachine.DeadlinePassed{})
				j.on(statemachine.BusQueue).applied(statemachine.DispatchClaimed{})
			},
			func(j *itemJob) { j.applied(j.mark()) }, "enqueued by relay", 1, 0, statemachine.StatusQueued,
		},
		// claimNext.
		{"claimNext", nothing, claimed, "claimed by anna", 1, 1, statemachine.StatusClaimed},
		{"claimNext with start", nothing, running, "claimed by anna, started by anna", 2, 1, statemachine.StatusRunning},
		{
			"claimNext after a requeue", func(j *itemJob) { j.does(claimItem(followAnna), stallItem(), requeueItem()) },
			func(j *itemJob) { j.does(claimItem(followBert)) }, "claimed by bert", 1, 1, statemachine.StatusClaimed,
		},
		// start and heartbeat.
		{"start", claimed, func(j *itemJob) { j.does(beginItem(followAnna)) }, "started by anna", 1, 0, statemachine.StatusRunning},
		{"start, an ACK by callback", claimed, func(j *itemJob) { j.applied(j.ack()) }, "started by anna", 1, 0, statemachine.StatusRunning},
		{
			"start, a heartbeat by callback on a claimed item", claimed,
			func(j *itemJob) { j.applied(j.heartbeat()) }, "started by anna", 1, 0, statemachine.StatusRunning,
		},
		{"heartbeat", running, func(j *itemJob) { j.does(beatItem(followAnna)) }, "heartbeat by anna", 1, 0, statemachine.StatusRunning},
		{"heartbeat of a claim", claimed, func(j *itemJob) { j.does(beatItem(followAnna)) }, "heartbeat by anna", 1, 0, statemachine.StatusClaimed},
		{"heartbeat by callback", running, func(j *itemJob) { j.applied(j.heartbeat()) }, "heartbeat by anna", 1, 0, statemachine.StatusRunning},
		// complete and fail.
		{
			"complete, and the next step", running,
			func(j *itemJob) { j.does(completeItem(followAnna)) }, "succeeded by anna, enqueued by relay", 1, 0, statemachine.StatusQueued,
		},
		{
			"complete, the next step held", running,
			func(j *itemJob) { j.holding(true).does(completeItem(followAnna)) }, "succeeded by anna", 1, 0, none,
		},
		{
			"complete, the last step", func(j *itemJob) { lastItemStep(j).does(claimAndStartItem(followAnna)) },
			func(j *itemJob) { j.does(completeItem(followAnna)) }, "succeeded by anna", 1, 0, none,
		},
		{
			"fail, to be retried", running,
			func(j *itemJob) { j.does(failItem(followAnna, statemachine.ResultFailedRetry)) }, "failed by anna", 1, 0, none,
		},
		{
			"fail, finally", running,
			func(j *itemJob) { j.does(failItem(followAnna, statemachine.ResultFailedFinal)) }, "failed by anna", 1, 0, none,
		},
		{
			"complete by callback on a running item", running, reports(statemachine.ResultSucceeded),
			"succeeded by anna, enqueued by relay", 1, 0, statemachine.StatusQueued,
		},
		{
			"complete by callback on a claimed item", claimed, reports(statemachine.ResultSucceeded),
			"started by anna, succeeded by anna, enqueued by relay", 2, 0, statemachine.StatusQueued,
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
		{"stall by the ACK deadline", claimed, func(j *itemJob) { j.expire() }, "stalled by ledger", 1, 0, statemachine.StatusStalled},
		{"stall by the lease's end", running, func(j *itemJob) { j.expire() }, "stalled by ledger", 1, 0, statemachine.StatusStalled},
		{"stall by an operator", running, func(j *itemJob) { j.does(stallItem()) }, "stalled by olga", 1, 0, statemachine.StatusStalled},
		{
			"stall by the ledger's own event", claimed,
			func(j *itemJob) { j.applied(statemachine.Stall{StepID: "one", AttemptNo: 1}) }, "stalled by ledger", 1, 0, statemachine.StatusStalled,
		},
		{
			"stall by the last deadline", func(j *itemJob) { j.agg.Steps[0].Policy.Ack = nil; j.does(claimItem(followAnna)) },
			func(j *itemJob) { j.expire() }, "stalled by ledger, removed by ledger", 1, 0, none,
		},
		{
			"stall by an operator while cancelling", cancelling,
			func(j *itemJob) { j.does(stallItem()) }, "stalled by olga, removed by ledger", 1, 0, none,
		},
		{"requeueStalled by an operator", stalled, func(j *itemJob) { j.does(requeueItem()) }, "requeued by olga", 1, 0, statemachine.StatusQueued},
		{"requeueStalled by the retry", stalled, func(j *itemJob) { j.expire() }, "requeued by relay", 1, 0, statemachine.StatusQueued},
		{"requeueStalled, held", stalled, func(j *itemJob) { j.holding(true).does(requeueItem()) }, "", 0, 0, statemachine.StatusStalled},
		{
			"requeueStalled, held by the retry and then by an operator",
			func(j *itemJob) { stalled(j); j.holding(true).expire() },
			func(j *itemJob) { j.does(requeueItem()) }, "", 0, 0, statemachine.StatusStalled,
		},
		{
			"requeueStalled by the mark of an operator's requeue", stalledHeld,
			func(j *itemJob) { j.applied(j.mark()) }, "requeued by olga", 1, 0, statemachine.StatusQueued,
		},
		{
			"requeueStalled by the retry, long after a held requeue",
			func(j *itemJob) {
				stalledHeld(j)
				j.applied(j.mark()).holding(false).does(claimItem(followBert)).expire()
			},
			func(j *itemJob) { j.expire() }, "requeued by relay", 1, 0, statemachine.StatusQueued,
		},
		{
			"requeueStalled by the mark of a retry", func(j *itemJob) { stalled(j); j.holding(true).expire() },
			func(j *itemJob) { j.applied(j.mark()) }, "requeued by relay", 1, 0, statemachine.StatusQueued,
		},
		// remove.
		{"remove by a pause", nothing, func(j *itemJob) { j.applied(statemachine.Pause{}) }, "removed by ledger", 0, 0, none},
		{
			"remove by a pause that withdraws a requeue", stalledHeld,
			func(j *itemJob) { j.applied(statemachine.Pause{}) }, "removed by ledger", 0, 0, none,
		},
		{"remove by a cancel of a queued item", nothing, func(j *itemJob) { j.applied(statemachine.Cancel{}) }, "removed by ledger", 0, 0, none},
		{"remove by a cancel of a stalled item", stalled, func(j *itemJob) { j.applied(statemachine.Cancel{}) }, "removed by ledger", 0, 0, none},
		{
			"remove by a late success", stalled, reports(statemachine.ResultSucceeded),
			"removed by ledger, enqueued by relay", 0, 0, statemachine.StatusQueued,
		},
		{"remove by a late final failure", stalled, reports(statemachine.ResultFailedFinal), "removed by ledger", 0, 0, none},
		{
			"remove by the change of the bus while queued", nothing,
			func(j *itemJob) { j.on(statemachine.BusServiceBus).applied(statemachine.DeadlinePassed{}) }, "removed by ledger", 0, 0, none,
		},
		{
			"remove by the next attempt on another bus", stalled,
			func(j *itemJob) { j.on(statemachine.BusServiceBus).expire() }, "removed by ledger", 0, 0, none,
		},
		{
			"remove by a held requeue that another bus takes", stalledHeld,
			func(j *itemJob) { j.on(statemachine.BusServiceBus).applied(statemachine.DispatchClaimed{}) }, "removed by ledger", 0, 0, none,
		},
		{"remove by an ACK without a claim", nothing, func(j *itemJob) { j.applied(j.ack()) }, "removed by ledger", 0, 0, none},
		// No move.
		{"a timer that finds nothing due", nothing, func(j *itemJob) { j.expire() }, "", 0, 0, statemachine.StatusQueued},
		{"a pause while held", claimed, func(j *itemJob) { j.applied(statemachine.Pause{}) }, "", 0, 0, statemachine.StatusClaimed},
		{"a cancel while held", running, func(j *itemJob) { j.applied(statemachine.Cancel{}) }, "", 0, 0, statemachine.StatusRunning},
		{
			"the grace after an outage", claimed,
			func(j *itemJob) { j.later(time.Hour).applied(statemachine.DeadlinePassed{Outage: j.now}) }, "", 0, 0, statemachine.StatusClaimed,
		},
		{"a pause while stalled", stalled, func(j *itemJob) { j.applied(statemachine.Pause{}) }, "", 0, 0, statemachine.StatusStalled},
		{"a late retryable failure", stalled, reports(statemachine.ResultFailedRetry), "", 0, 0, statemachine.StatusStalled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := itemDraft(t)
			if test.before != nil {
				j.applied(statemachine.Accept{})
				test.before(j)
			}
			was := statemachine.ItemRecord{}
			if j.open != nil {
				was = *j.open
			}
			test.change(j)
			if got := shortLease(j.last.Events); got != test.moves {
				t.Errorf("moves are %q, want %q", got, test.moves)
			}
			now := was
			for _, record := range []*statemachine.ItemRecord{j.last.Open, j.last.Ended} {
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
	j := newItemJob(t)
	v := claimAndStartItem(followAnna)
	v.requestID = "same"
	j.does(v)
	if done, err := j.request(v); done || err != nil {
		t.Errorf("the repeat was carried out: %t, %v", done, err)
	}
	item := j.item()
	if len(item.Requests) != 1 || item.Requests[0].Rev != 3 || !item.HeldUnder(followAnna, "same") {
		t.Errorf("remembers %+v", item.Requests)
	}
}

// Each move of the worker extends the item's lease by as much as the claim asked for.
func TestFollow_TheClaimSaysForHowLong(t *testing.T) {
	t.Parallel()
	j := newItemJob(t)
	for _, v := range []itemVerb{claimItemFor(followAnna, 5*time.Minute), beatItem(followAnna), beginItem(followAnna), beatItem(followAnna)} {
		j.later(time.Minute).does(v)
		if item := j.item(); !item.LeaseExpiresAt.Equal(j.now.Add(5 * time.Minute)) {
			t.Errorf("after %s the lease ends at %s, and now is %s", v.operation, item.LeaseExpiresAt, j.now)
		}
	}
}

// An outage extends the lease of the step, and with it the item's, but is no move.
func TestView_AnOutageExtendsTheLeaseWithoutAMove(t *testing.T) {
	t.Parallel()
	j := newItemJob(t)
	j.does(claimAndStartItem(followAnna))
	rev := j.item().Rev
	j.later(30 * time.Minute).applied(statemachine.DeadlinePassed{Outage: j.now})
	if item := j.item(); item.Rev != rev || !item.LeaseExpiresAt.Equal(j.now.Add(5*time.Minute)) {
		t.Errorf("rev %d after %d, the lease ends %s", item.Rev, rev, item.LeaseExpiresAt)
	}
}

// A requeue gives the item the directive of the next attempt, and a new hint.
func TestFollow_ARequeueKeepsTheItem(t *testing.T) {
	t.Parallel()
	j := newItemJob(t)
	first := j.item()
	hint := j.open.ReadyRev
	j.later(time.Second).does(claimItem(followAnna), stallItem())
	if j.open.ReadyRev != hint || j.open.AttemptNo != 1 {
		t.Errorf("a stalled item names the hint of rev %d, attempt %d", j.open.ReadyRev, j.open.AttemptNo)
	}
	j.later(time.Second).does(requeueItem())
	item := j.item()
	if item.WorkID != first.WorkID || item.DedupeKey != first.DedupeKey || item.Attempt != 1 || !item.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("came back as %+v", item)
	}
	if item.AttemptNo != 2 || item.MessageID == first.MessageID || item.LeaseID == first.LeaseID || item.LeaseID != j.agg.Outbox.LeaseID {
		t.Errorf("carries attempt %d, message %s", item.AttemptNo, item.MessageID)
	}
	if j.open.ReadyRev != j.agg.Job.Rev || !j.open.ReadySince.Equal(j.now) || j.open.RequeuedBy != (statemachine.ItemRequester{}) {
		t.Errorf("names the hint of rev %d since %s, asked for by %+v", j.open.ReadyRev, j.open.ReadySince, j.open.RequeuedBy)
	}
}

// A held requeue is remembered on the item until the mark, so that a repeat is recognized;
// the latest request counts.
func TestFollow_AHeldRequeueIsRemembered(t *testing.T) {
	t.Parallel()
	j := newItemJob(t)
	j.does(claimItem(followAnna), stallItem())
	asked := requeueItem()
	asked.requestID = "first"
	j.holding(true).does(asked)
	if want := (statemachine.ItemRequester{Actor: olga, RequestID: "first"}); j.open.RequeuedBy != want || !j.last.Changed {
		t.Errorf("remembers %+v, to be written: %t", j.open.RequeuedBy, j.last.Changed)
	}
	if done, err := j.request(asked); done || err != nil {
		t.Errorf("the repeat was carried out: %t, %v", done, err)
	}
	asked.requestID = "second"
	j.does(asked).applied(j.mark())
	if e := j.last.Events[0]; e.Type != statemachine.ItemEventRequeued || e.RequestID != "second" {
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
			j := newItemJob(t)
			j.does(claimAndStartItem(followAnna))
			failed := failItem(followAnna, statemachine.ResultFailedRetry)
			j.does(failed)
			first := j.last.Ended
			j.expire().does(claimAndStartItem(followBert))
			j.does(itemVerb{operation: statemachine.OpComplete, actor: followBert, event: func(_ *itemJob, item statemachine.Item) statemachine.Event {
				event := statemachine.Result{StepID: item.StepID, Pair: itemPairOf(&item), Status: statemachine.ResultSucceeded}
				if test.output != "" {
					event.OutputRef = itemRef(test.output)
				}
				if test.result != "" {
					event.ResultRef = itemRef(test.result)
				}
				return event
			}})
			if got := string(statemachine.ViewItem(&j.agg, j.last.Ended).Result); got != test.want {
				t.Errorf("result is %s, want %s", got, test.want)
			}
			want := &statemachine.ItemFailure{Code: "corrupt_pdf", Message: "Page 3."}
			if diff := cmp.Diff(want, statemachine.ViewItem(&j.agg, first).Error); diff != "" {
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
	j := newItemJob(t)
	j.does(claimItem(followAnna), stallItem()).holding(true).does(requeueItem())
	first := j.item().LeaseID
	for range 40 { // Rejected again and again, each with a new pair.
		j.agg.Steps[0].Spent = statemachine.Spent{}
		j.applied(statemachine.PublishRejected{OutboxID: j.agg.Outbox.ID, AttemptNo: j.agg.Outbox.AttemptNo, Reason: "malformed"})
		j.later(time.Minute)
		j.applied(statemachine.DispatchClaimed{})
	}
	if item := j.item(); item.LeaseID == first || item.LeaseID == "" || statemachine.ValidateItem(item) != nil {
		t.Errorf("lease id %q: %v", item.LeaseID, statemachine.ValidateItem(item))
	}
}

// A worker may have the name of a part of the system, and may have used any
// request id. In neither case may a deadline or a callback fail.
func TestFollow_RequestIDsDoNotCollide(t *testing.T) {
	t.Parallel()
	t.Run("with the ledger's", func(t *testing.T) {
		t.Parallel()
		j := newItemJob(t)
		v := claimItem("ledger")
		v.requestID = "ledger-2" // the id of the ledger's move at the next rev
		j.does(v).expire()
		if got := shortLease(j.last.Events); got != "stalled by ledger" {
			t.Errorf("moves are %q", got)
		}
	})
	t.Run("with the owner's own", func(t *testing.T) {
		t.Parallel()
		j := newItemJob(t)
		first, second := claimItem(followAnna), beatItem(followAnna)
		first.requestID, second.requestID = "ledger-2", "ledger-3"
		j.does(first, second).applied(j.result(statemachine.ResultSucceeded))
		if got := shortLease(j.last.Events); got != "started by anna, succeeded by anna, enqueued by relay" {
			t.Errorf("moves are %q", got)
		}
	})
}

// If the lifecycle refuses the request of a verb, FollowItem returns an error.
func TestFollow_RefusesWhatTheLifecycleRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		before func(*itemJob)
		ask    itemVerb
		want   error
	}{
		{"a claim without an owner", func(*itemJob) {}, claimItem(""), statemachine.ErrInvalidRequest},
		{"a start by another worker", func(j *itemJob) { j.does(claimItem(followAnna)) }, beginItem(followBert), statemachine.ErrNotOwner},
		{"a heartbeat by another worker", func(j *itemJob) { j.does(claimAndStartItem(followAnna)) }, beatItem(followBert), statemachine.ErrNotOwner},
		{"a completion by another worker", func(j *itemJob) { j.does(claimAndStartItem(followAnna)) }, completeItem(followBert), statemachine.ErrNotOwner},
		{
			"a failure by another worker", func(j *itemJob) { j.does(claimAndStartItem(followAnna)) },
			failItem(followBert, statemachine.ResultFailedFinal), statemachine.ErrNotOwner,
		},
		{
			"a stall without an actor while cancelling", func(j *itemJob) { j.does(claimItem(followAnna)).applied(statemachine.Cancel{}) },
			itemVerb{operation: statemachine.OpStall, event: stallItem().event}, statemachine.ErrInvalidRequest,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := newItemJob(t)
			test.before(j)
			item := j.item()
			_, err := followItem(j, test.ask.event(j, item), statemachine.ItemAsk{
				Operation: test.ask.operation,
				Request:   statemachine.ItemRequest{Actor: test.ask.actor, ExpectedRev: item.Rev, ID: "request"},
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
		spoil func(*itemJob)
		event func(*itemJob) statemachine.Event
		want  string
	}{
		{
			"an item whose step no worker may work on", func(j *itemJob) { j.open.Owner = followAnna },
			func(*itemJob) statemachine.Event { return statemachine.Cancel{} },
			"work item job-1.0.1: the open item is neither queued, held nor stalled while its step is AWAITING_ACK",
		},
		{
			"a removal of an item that has no rev", func(j *itemJob) { j.open.Rev = 0 },
			func(*itemJob) statemachine.Event { return statemachine.Cancel{} }, "work item job-1.0.1: invalid request: expected_rev",
		},
		{
			"a requeue with an old attempt", func(j *itemJob) { j.does(claimItem(followAnna), stallItem()).open.AttemptNo = 2 },
			func(*itemJob) statemachine.Event { return statemachine.Retry{} }, "work item job-1.0.1: invalid request: attempt_no",
		},
		{
			"a message without a lease", func(j *itemJob) {
				j.applied(statemachine.Pause{}).holding(true).applied(statemachine.Resume{}).agg.Outbox.LeaseID = ""
			},
			(*itemJob).mark, "work item job-1.0.2: invalid request: lease_id",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := newItemJob(t)
			test.spoil(j)
			moves, err := followItem(j, test.event(j), statemachine.ItemAsk{})
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error is %v, want %s", err, test.want)
			}
			if diff := cmp.Diff(statemachine.ItemMoves{}, moves); diff != "" {
				t.Errorf("moves all the same:\n%s", diff)
			}
		})
	}
}

// follow decides and follows an event without changing the job.
func followItem(j *itemJob, event statemachine.Event, ask statemachine.ItemAsk) (statemachine.ItemMoves, error) {
	j.t.Helper()
	d, err := statemachine.Decide(j.agg, event, statemachine.Env{
		Now: j.now, LeaseID: "lease-0", Bus: j.bus, Prompt: func(statemachine.Target) bool { return true },
	})
	if err != nil || d.Outcome != statemachine.Applied {
		j.t.Fatalf("%T is %s: %s %v", event, d.Outcome, d.Reason, err)
	}
	return statemachine.FollowItem(&j.agg, j.open, &d, ask, j.now)
}
