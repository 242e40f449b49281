package workitem_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
	"github.com/lucius-project/lucius/pkg/statemachine/workitem"
)

const (
	anna = "anna"
	bert = "bert"
	olga = "olga" // an operator
)

// t0 is when each job is accepted.
var t0 = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// tester is what testing and rapid have in common.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// job is a job of two steps with its work items, as a ledger keeps them. Each event is
// decided, followed and checked (see [job.check]), and the job keeps the result.
type job struct {
	t   tester
	agg statemachine.Aggregate
	now time.Time
	// The bus of the process that applies the next event, and whether it holds new rows
	// back.
	bus  statemachine.Bus
	held bool

	open    *workitem.Record
	records map[string]*workitem.Record // the latest record of each item, by work id
	events  map[string][]lifecycle.Event
	last    workitem.Moves
	// What the checks know of the job besides its rows, and the table that they compare it
	// with.
	known knowledge
	table []row

	leases, requests int
}

// newJob accepts a job in a process whose bus is the pull queue.
func newJob(t tester) *job {
	t.Helper()
	j := draft(t)
	j.applied(statemachine.Accept{})
	return j
}

// draft is a job before its accept.
func draft(t tester) *job {
	j := &job{
		t: t, now: t0, bus: statemachine.BusQueue,
		records: map[string]*workitem.Record{}, events: map[string][]lifecycle.Event{}, known: newKnowledge(),
		table: table(),
	}
	j.agg.Job = statemachine.Job{ID: "job-1", TenantID: "tenant_a", State: statemachine.JobQueued, InputRef: ref("in")}
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
func ref(name string) json.RawMessage { return json.RawMessage(`{"uri":"` + name + `"}`) }

func (j *job) later(d time.Duration) *job {
	j.now = j.now.Add(d)
	return j
}

// applyEvent applies an event to the job, with the verb of the queue that caused it if
// there is one.
func (j *job) applyEvent(event statemachine.Event, ask workitem.Ask) statemachine.Decision {
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
	moves, err := workitem.Follow(&j.agg, j.open, &d, ask, j.now)
	if err != nil {
		j.t.Fatalf("%T: %v", event, err)
	}
	j.check(event, ask, &d, before, &moves)
	j.agg, j.open, j.last = d.After, moves.Open, moves
	return d
}

// recordBefore returns a deep copy of the open record.
func (j *job) recordBefore() *workitem.Record {
	if j.open == nil {
		return nil
	}
	record := *j.open
	record.Requests = slices.Clone(record.Requests)
	return &record
}

// applied applies events that no verb of the queue caused; none may be refused.
func (j *job) applied(events ...statemachine.Event) *job {
	j.t.Helper()
	for _, event := range events {
		if d := j.applyEvent(event, workitem.Ask{}); d.Outcome != statemachine.Applied {
			j.t.Fatalf("%T is %s: %s", event, d.Outcome, d.Reason)
		}
	}
	return j
}

// verb is a worker's or an operator's request on the open item.
type verb struct {
	operation lifecycle.Operation
	actor     string
	requestID string
	event     func(j *job, item lifecycle.Item) statemachine.Event
}

// request performs the verb as the queue does: it asks the lifecycle first, then the state
// machine. done is false for a repeat, which changes nothing.
func (j *job) request(v verb) (done bool, err error) {
	j.t.Helper()
	item := j.item()
	request := lifecycle.Request{Actor: v.actor, ExpectedRev: item.Rev, ID: v.requestID}
	if request.ID == "" {
		j.requests++
		request.ID = fmt.Sprint("request-", j.requests)
	}
	repeat, err := lifecycle.Check(item, v.operation, request)
	asked := workitem.Requester{Actor: request.Actor, RequestID: request.ID}
	if err != nil || repeat || v.operation == lifecycle.OpRequeueStalled && j.open.RequeuedBy == asked {
		return false, err
	}
	d := j.applyEvent(v.event(j, item), workitem.Ask{Operation: v.operation, Request: request})
	return d.Outcome == statemachine.Applied, nil
}

// does performs verbs, which must not be refused.
func (j *job) does(verbs ...verb) *job {
	j.t.Helper()
	for _, v := range verbs {
		if done, err := j.request(v); err != nil || !done {
			j.t.Fatalf("%s by %s of %+v: %v", v.operation, v.actor, j.item(), err)
		}
	}
	return j
}

// item returns the open item as callers see it.
func (j *job) item() lifecycle.Item {
	j.t.Helper()
	if j.open == nil {
		j.t.Fatalf("the job has no open item, its steps are %s and %s", j.agg.Steps[0].State, j.agg.Steps[1].State)
	}
	return workitem.View(&j.agg, j.open)
}

// step returns the active step, or else the last one.
func (j *job) step() *statemachine.Step {
	if i, ok := j.agg.Active(); ok {
		return &j.agg.Steps[i]
	}
	return &j.agg.Steps[len(j.agg.Steps)-1]
}

func (j *job) pair() statemachine.Pair {
	return statemachine.Pair{AttemptNo: j.step().AttemptNo, LeaseID: j.step().LeaseID}
}

func pairOf(item *lifecycle.Item) statemachine.Pair {
	return statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID}
}

// The verbs of workers.

func claim(owner string) verb {
	return verb{operation: lifecycle.OpClaimNext, actor: owner, event: func(_ *job, item lifecycle.Item) statemachine.Event {
		return statemachine.Claimed{StepID: item.StepID, Pair: pairOf(&item)}
	}}
}

func claimFor(owner string, lease time.Duration) verb {
	v := claim(owner)
	v.event = func(_ *job, item lifecycle.Item) statemachine.Event {
		return statemachine.Claimed{StepID: item.StepID, Pair: pairOf(&item), Lease: lease}
	}
	return v
}

func claimAndStart(owner string) verb {
	v := begin(owner)
	v.operation = lifecycle.OpClaimNext
	return v
}

func begin(owner string) verb {
	return verb{operation: lifecycle.OpStart, actor: owner, event: func(_ *job, item lifecycle.Item) statemachine.Event {
		return statemachine.Ack{StepID: item.StepID, Pair: pairOf(&item)}
	}}
}

func beat(owner string) verb {
	return verb{operation: lifecycle.OpHeartbeat, actor: owner, event: func(_ *job, item lifecycle.Item) statemachine.Event {
		if item.Status == lifecycle.StatusClaimed {
			return statemachine.ClaimExtended{StepID: item.StepID, Pair: pairOf(&item)}
		}
		return statemachine.Heartbeat{StepID: item.StepID, Pair: pairOf(&item)}
	}}
}

func complete(owner string) verb {
	return verb{operation: lifecycle.OpComplete, actor: owner, event: func(_ *job, item lifecycle.Item) statemachine.Event {
		return statemachine.Result{
			StepID: item.StepID, Pair: pairOf(&item), Status: statemachine.ResultSucceeded, OutputRef: ref("output"),
			ResultRef: ref("result"),
		}
	}}
}

func fail(owner string, status statemachine.ResultStatus) verb {
	return verb{operation: lifecycle.OpFail, actor: owner, event: func(_ *job, item lifecycle.Item) statemachine.Event {
		return statemachine.Result{
			StepID: item.StepID, Pair: pairOf(&item), Status: status, ErrorCode: "corrupt_pdf", ErrorMessage: "Page 3.",
		}
	}}
}

// The verbs of operators.

func stall() verb {
	return verb{operation: lifecycle.OpStall, actor: olga, event: func(_ *job, item lifecycle.Item) statemachine.Event {
		return statemachine.Stall{StepID: item.StepID, AttemptNo: item.AttemptNo}
	}}
}

func requeue() verb {
	return verb{operation: lifecycle.OpRequeueStalled, actor: olga, event: func(_ *job, item lifecycle.Item) statemachine.Event {
		return statemachine.Retry{StepID: item.StepID}
	}}
}

// Not through the queue: callbacks of the active attempt, and the relay.

func (j *job) ack() statemachine.Event {
	return statemachine.Ack{StepID: j.step().ID, Pair: j.pair()}
}

func (j *job) heartbeat() statemachine.Event {
	return statemachine.Heartbeat{StepID: j.step().ID, Pair: j.pair()}
}

func (j *job) result(status statemachine.ResultStatus) statemachine.Event {
	return statemachine.Result{StepID: j.step().ID, Pair: j.pair(), Status: status, OutputRef: ref("output")}
}

func (j *job) mark() statemachine.Event {
	return statemachine.Published{OutboxID: j.agg.Outbox.ID, AttemptNo: j.agg.Outbox.AttemptNo}
}

// expire lets the next deadline pass.
func (j *job) expire() *job {
	return j.later(time.Hour).applied(statemachine.DeadlinePassed{})
}

// holding sets whether new rows are held back from now on.
func (j *job) holding(held bool) *job {
	j.held = held
	return j
}

// on continues with a process that publishes to that bus.
func (j *job) on(bus statemachine.Bus) *job {
	j.bus = bus
	return j
}
