package statemachine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

const (
	followAnna = "anna"
	followBert = "bert"
	olga       = "olga" // an operator
)

// t0 is when each job is accepted.
var followT0 = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// tester is what testing and rapid have in common.
type itemTester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// job is a job of two steps with its work items, as a ledger keeps them. Each event is
// decided, followed and checked (see [job.check]), and the job keeps the result.
type itemJob struct {
	t   itemTester
	agg statemachine.Aggregate
	now time.Time
	// The bus of the process that applies the next event, and whether it holds new rows
	// back.
	bus  statemachine.Bus
	held bool

	open    *statemachine.ItemRecord
	records map[string]*statemachine.ItemRecord // the latest record of each item, by work id
	events  map[string][]statemachine.ItemEvent
	last    statemachine.ItemMoves
	// What the checks know of the job besides its rows, and the table that they compare it
	// with.
	known knowledge
	table []itemRow

	leases, requests int
}

// newJob accepts a job in a process whose bus is the pull queue.
func newItemJob(t itemTester) *itemJob {
	t.Helper()
	j := itemDraft(t)
	j.applied(statemachine.Accept{})
	return j
}

// draft is a job before its accept.
func itemDraft(t itemTester) *itemJob {
	j := &itemJob{
		t: t, now: followT0, bus: statemachine.BusQueue,
		records: map[string]*statemachine.ItemRecord{}, events: map[string][]statemachine.ItemEvent{}, known: newKnowledge(),
		table: itemTable(),
	}
	j.agg.Job = statemachine.Job{ID: "job-1", TenantID: "tenant_a", State: statemachine.JobQueued, InputRef: itemRef("in")}
	for i, id := range []string{"one", "two"} {
		j.agg.Steps = append(j.agg.Steps, statemachine.Step{
			ID: id, Index: i, Type: "OCR", Service: "ocr", State: statemachine.StepPending, Input: statemachine.InputPrevious,
			Policy: statemachine.Policy{
				AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, Timeout: time.Hour,
				Dispatch: []time.Duration{time.Minute}, Ack: []time.Duration{time.Minute, time.Minute},
				Execution: []time.Duration{time.Minute, time.Minute},
			},
		})
	}
	return j
}

// ref is a reference to data.
func itemRef(name string) json.RawMessage { return json.RawMessage(`{"uri":"` + name + `"}`) }

func (j *itemJob) later(d time.Duration) *itemJob {
	j.now = j.now.Add(d)
	return j
}

// applyEvent applies an event to the job, with the verb of the queue that caused it if
// there is one.
func (j *itemJob) applyEvent(event statemachine.Event, ask statemachine.ItemAsk) statemachine.Decision {
	j.t.Helper()
	j.leases++
	d, err := statemachine.Decide(j.agg, event, statemachine.Env{
		Now: j.now, LeaseID: fmt.Sprint("lease-", j.leases), Hold: 15 * time.Second, Bus: j.bus,
		Prompt: func(statemachine.Target) bool { return !j.held },
	})
	if err != nil {
		j.t.Fatalf("%T: %v", event, err)
	}
	if d.Outcome != statemachine.Applied {
		return d
	}
	before := j.recordBefore()
	moves, err := statemachine.FollowItem(&j.agg, j.open, &d, ask, j.now)
	if err != nil {
		j.t.Fatalf("%T: %v", event, err)
	}
	j.check(event, ask, &d, before, &moves)
	j.agg, j.open, j.last = d.After, moves.Open, moves
	return d
}

// recordBefore returns a deep copy of the open record.
func (j *itemJob) recordBefore() *statemachine.ItemRecord {
	if j.open == nil {
		return nil
	}
	record := *j.open
	record.Requests = slices.Clone(record.Requests)
	return &record
}

// applied applies events that no verb of the queue caused; none may be refused.
func (j *itemJob) applied(events ...statemachine.Event) *itemJob {
	j.t.Helper()
	for _, event := range events {
		if d := j.applyEvent(event, statemachine.ItemAsk{}); d.Outcome != statemachine.Applied {
			j.t.Fatalf("%T is %s: %s", event, d.Outcome, d.Reason)
		}
	}
	return j
}

// verb is a worker's or an operator's request on the open item.
type itemVerb struct {
	operation statemachine.ItemOperation
	actor     string
	requestID string
	event     func(j *itemJob, item statemachine.Item) statemachine.Event
}

// request performs the verb as the queue does: it asks the lifecycle first, then the state
// machine. done is false for a repeat, which changes nothing.
func (j *itemJob) request(v itemVerb) (done bool, err error) {
	j.t.Helper()
	item := j.item()
	request := statemachine.ItemRequest{Actor: v.actor, ExpectedRev: item.Rev, ID: v.requestID}
	if request.ID == "" {
		j.requests++
		request.ID = fmt.Sprint("request-", j.requests)
	}
	repeat, err := statemachine.CheckItem(item, v.operation, request)
	asked := statemachine.ItemRequester{Actor: request.Actor, RequestID: request.ID}
	if err != nil || repeat || v.operation == statemachine.OpRequeueStalled && j.open.RequeuedBy == asked {
		return false, err
	}
	d := j.applyEvent(v.event(j, item), statemachine.ItemAsk{Operation: v.operation, Request: request})
	return d.Outcome == statemachine.Applied, nil
}

// does performs verbs, which must not be refused.
func (j *itemJob) does(verbs ...itemVerb) *itemJob {
	j.t.Helper()
	for _, v := range verbs {
		if done, err := j.request(v); err != nil || !done {
			j.t.Fatalf("%s by %s of %+v: %v", v.operation, v.actor, j.item(), err)
		}
	}
	return j
}

// item returns the open item as callers see it.
func (j *itemJob) item() statemachine.Item {
	j.t.Helper()
	if j.open == nil {
		j.t.Fatalf("the job has no open item, its steps are %s and %s", j.agg.Steps[0].State, j.agg.Steps[1].State)
	}
	return statemachine.ViewItem(&j.agg, j.open)
}

// step returns the active step, or else the last one.
func (j *itemJob) step() *statemachine.Step {
	if i, ok := j.agg.Active(); ok {
		return &j.agg.Steps[i]
	}
	return &j.agg.Steps[len(j.agg.Steps)-1]
}

func (j *itemJob) pair() statemachine.Pair {
	return statemachine.Pair{AttemptNo: j.step().AttemptNo, LeaseID: j.step().LeaseID}
}

func itemPairOf(item *statemachine.Item) statemachine.Pair {
	return statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID}
}

// The verbs of workers.

func claimItem(owner string) itemVerb {
	return itemVerb{operation: statemachine.OpClaimNext, actor: owner, event: func(_ *itemJob, item statemachine.Item) statemachine.Event {
		return statemachine.Claimed{StepID: item.StepID, Pair: itemPairOf(&item)}
	}}
}

func claimItemFor(owner string, lease time.Duration) itemVerb {
	v := claimItem(owner)
	v.event = func(_ *itemJob, item statemachine.Item) statemachine.Event {
		return statemachine.Claimed{StepID: item.StepID, Pair: itemPairOf(&item), Lease: lease}
	}
	return v
}

func claimAndStartItem(owner string) itemVerb {
	v := beginItem(owner)
	v.operation = statemachine.OpClaimNext
	return v
}

func beginItem(owner string) itemVerb {
	return itemVerb{operation: statemachine.OpStart, actor: owner, event: func(_ *itemJob, item statemachine.Item) statemachine.Event {
		return statemachine.Ack{StepID: item.StepID, Pair: itemPairOf(&item)}
	}}
}

func beatItem(owner string) itemVerb {
	return itemVerb{operation: statemachine.OpHeartbeat, actor: owner, event: func(_ *itemJob, item statemachine.Item) statemachine.Event {
		if item.Status == statemachine.StatusClaimed {
			return statemachine.ClaimExtended{StepID: item.StepID, Pair: itemPairOf(&item)}
		}
		return statemachine.Heartbeat{StepID: item.StepID, Pair: itemPairOf(&item)}
	}}
}

func completeItem(owner string) itemVerb {
	return itemVerb{operation: statemachine.OpComplete, actor: owner, event: func(_ *itemJob, item statemachine.Item) statemachine.Event {
		return statemachine.Result{
			StepID: item.StepID, Pair: itemPairOf(&item), Status: statemachine.ResultSucceeded,
			Product: statemachine.Product{OutputRef: itemRef("output"), ResultRef: itemRef("result")},
		}
	}}
}

func failItem(owner string, status statemachine.ResultStatus) itemVerb {
	return itemVerb{operation: statemachine.OpFail, actor: owner, event: func(_ *itemJob, item statemachine.Item) statemachine.Event {
		return statemachine.Result{
			StepID: item.StepID, Pair: itemPairOf(&item), Status: status, ErrorCode: "corrupt_pdf", ErrorMessage: "Page 3.",
		}
	}}
}

// The verbs of operators.

func stallItem() itemVerb {
	return itemVerb{operation: statemachine.OpStall, actor: olga, event: func(_ *itemJob, item statemachine.Item) statemachine.Event {
		return statemachine.Stall{StepID: item.StepID, AttemptNo: item.AttemptNo}
	}}
}

func requeueItem() itemVerb {
	return itemVerb{operation: statemachine.OpRequeueStalled, actor: olga, event: func(_ *itemJob, item statemachine.Item) statemachine.Event {
		return statemachine.Retry{StepID: item.StepID}
	}}
}

// Not through the queue: callbacks of the active attempt, and the relay.

func (j *itemJob) ack() statemachine.Event {
	return statemachine.Ack{StepID: j.step().ID, Pair: j.pair()}
}

func (j *itemJob) heartbeat() statemachine.Event {
	return statemachine.Heartbeat{StepID: j.step().ID, Pair: j.pair()}
}

func (j *itemJob) result(status statemachine.ResultStatus) statemachine.Event {
	return statemachine.Result{StepID: j.step().ID, Pair: j.pair(), Status: status, Product: statemachine.Product{OutputRef: itemRef("output")}}
}

func (j *itemJob) mark() statemachine.Event {
	return statemachine.Published{OutboxID: j.agg.Outbox.ID, AttemptNo: j.agg.Outbox.AttemptNo}
}

// expire lets the next deadline pass.
func (j *itemJob) expire() *itemJob {
	return j.later(time.Hour).applied(statemachine.DeadlinePassed{})
}

// holding sets whether new rows are held back from now on.
func (j *itemJob) holding(held bool) *itemJob {
	j.held = held
	return j
}

// on continues with a process that publishes to that bus.
func (j *itemJob) on(bus statemachine.Bus) *itemJob {
	j.bus = bus
	return j
}
