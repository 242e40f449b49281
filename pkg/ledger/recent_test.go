package ledger

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// remembering is a process with one job of two steps, on the pull queue or the bus.
type remembering struct {
	*Ledger
	t     *testing.T
	jobID string
}

func newRemembering(t *testing.T, store tablestore.Store, bus statemachine.Bus) *remembering {
	t.Helper()
	l, err := Open(t.Context(), Config{Store: store, Bus: bus, Shards: 1, Retention: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return &remembering{Ledger: l, t: t}
}

func (r *remembering) accept() {
	r.t.Helper()
	policy := statemachine.Policy{
		AckTimeout: time.Minute, Lease: time.Minute, Dispatch: []time.Duration{0}, Ack: []time.Duration{0},
		Execution: []time.Duration{time.Second},
	}
	accepted, err := r.Accept(r.t.Context(), Command{
		Job: statemachine.Job{TenantID: "t", IdempotencyHash: "h", InputRef: []byte(`{"uri":"s3://b/in"}`)},
		Steps: []statemachine.Step{
			{ID: "one", Type: "ONE", Service: "ones", Policy: policy}, {ID: "two", Type: "TWO", Service: "twos", Policy: policy},
		},
		Payload: []byte(`{}`),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.jobID = accepted.Job.ID
}

func (r *remembering) change(event func(agg *statemachine.Aggregate, step *statemachine.Step) statemachine.Event) {
	r.t.Helper()
	agg, err := r.Job(r.t.Context(), r.jobID)
	if err != nil {
		r.t.Fatal(err)
	}
	step := &agg.Steps[0]
	if active, ok := agg.Active(); ok {
		step = &agg.Steps[active]
	}
	result, err := r.Change(r.t.Context(), r.jobID, event(agg, step))
	if err != nil || result.Outcome != statemachine.Applied {
		r.t.Fatal(result.Outcome, result.Reason, err)
	}
}

// TestRecent_RemembersWhatALoadWouldRead applies each kind of change to a job, and after
// each compares what the process remembers with what the store holds.
func TestRecent_RemembersWhatALoadWouldRead(t *testing.T) {
	t.Parallel()
	pairOf := func(step *statemachine.Step) statemachine.Pair {
		return statemachine.Pair{AttemptNo: step.AttemptNo, LeaseID: step.LeaseID}
	}
	published := func(_ *statemachine.Aggregate, step *statemachine.Step) statemachine.Event {
		return statemachine.Published{OutboxID: step.OutboxID, AttemptNo: step.AttemptNo}
	}
	ack := func(_ *statemachine.Aggregate, step *statemachine.Step) statemachine.Event {
		return statemachine.Ack{StepID: step.ID, Pair: pairOf(step)}
	}
	heartbeat := func(_ *statemachine.Aggregate, step *statemachine.Step) statemachine.Event {
		return statemachine.Heartbeat{StepID: step.ID, Pair: pairOf(step)}
	}
	result := func(status statemachine.ResultStatus) func(*statemachine.Aggregate, *statemachine.Step) statemachine.Event {
		return func(_ *statemachine.Aggregate, step *statemachine.Step) statemachine.Event {
			return statemachine.Result{
				StepID: step.ID, Pair: pairOf(step), Status: status, Product: statemachine.Product{OutputRef: []byte(`{"uri":"s3://b/out"}`)},
			}
		}
	}
	type do = func(r *remembering)
	event := func(e func(*statemachine.Aggregate, *statemachine.Step) statemachine.Event) do {
		return func(r *remembering) { r.change(e) }
	}
	claim := func(start bool) do {
		return func(r *remembering) {
			page, err := r.load(r.t.Context(), r.jobID)
			if err != nil {
				r.t.Fatal(err)
			}
			hint := r.hintOf(&page.agg, page.open)
			claimed, err := r.Claim(r.t.Context(), []Hint{hint}, &Claim{Owner: "w", RequestID: hint.Row(), Start: start})
			if err != nil || claimed[0].Standing != HintNamed || claimed[0].Err != nil {
				r.t.Fatal(claimed, err)
			}
		}
	}
	requeue := func(r *remembering) {
		s, err := r.load(r.t.Context(), r.jobID)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.Work(r.t.Context(), s.open.WorkID, Verb{
			Operation: statemachine.OpHeartbeat,
			Request:   statemachine.ItemRequest{Actor: "w", ID: "beat", ExpectedRev: s.open.Rev},
			Event: func(item *statemachine.Item, _ time.Time) statemachine.Event {
				return statemachine.Heartbeat{
					StepID: item.StepID, Pair: statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID},
				}
			},
		}); err != nil {
			r.t.Fatal(err)
		}
	}
	for name, lives := range map[string]struct {
		bus  statemachine.Bus
		life []do
	}{
		"service bus": {statemachine.BusServiceBus, []do{
			(*remembering).accept, event(published), event(ack), event(heartbeat), event(result(statemachine.ResultSucceeded)),
			event(published), event(ack), event(result(statemachine.ResultFailedRetry)),
		}},
		"pull queue": {statemachine.BusQueue, []do{
			(*remembering).accept, claim(false), event(ack), requeue, event(heartbeat),
			event(result(statemachine.ResultSucceeded)), claim(true), requeue, event(result(statemachine.ResultFailedRetry)),
		}},
	} {
		for _, split := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRemembering(t, memstore.New(memstore.Options{Split: split}), lives.bus)
				for i, do := range lives.life {
					do(r)
					remembered, _ := r.recent.jobs.Peek(r.jobID)
					if remembered == nil {
						t.Fatalf("change %d: the job is not remembered", i)
					}
					stored, err := r.load(t.Context(), r.jobID)
					if err != nil {
						t.Fatal(err)
					}
					for _, row := range []tablestore.Row{remembered.command, remembered.directive} {
						if got, err := r.store.Get(t.Context(), row.Key); err != nil || !got.Properties.Equal(row.Properties) {
							t.Errorf("change %d: remembers %v, stored is %v, %v", i, row, got, err)
						}
					}
					if diff := cmp.Diff(stored, remembered,
						cmp.AllowUnexported(snapshot{}, head{}, entryRef{}, slotRef{}),
						cmpopts.IgnoreFields(snapshot{}, "outboxes", "command", "directive"), cmpopts.EquateEmpty(),
					); diff != "" {
						t.Errorf("change %d (-stored +remembered):\n%s", i, diff)
					}
				}
			})
		}
	}
}

// TestRecent_ADecisionWithoutACommitReadsTheStore: a decision that commits nothing is based on the
// stored job, whatever this process remembers of it.
func TestRecent_ADecisionWithoutACommitReadsTheStore(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{})
	stale := newRemembering(t, store, statemachine.BusServiceBus)
	stale.accept()
	other := newRemembering(t, store, statemachine.BusServiceBus)
	other.jobID = stale.jobID
	other.change(func(_ *statemachine.Aggregate, step *statemachine.Step) statemachine.Event {
		return statemachine.Result{
			StepID: "one", Pair: statemachine.Pair{AttemptNo: step.AttemptNo, LeaseID: step.LeaseID}, Status: statemachine.ResultSucceeded,
		}
	})
	stored, err := other.Job(t.Context(), other.jobID)
	if err != nil {
		t.Fatal(err)
	}
	pair := statemachine.Pair{AttemptNo: stored.Steps[1].AttemptNo, LeaseID: stored.Steps[1].LeaseID}

	// The remembered job is at its first step, and would refuse the ACK of its second.
	got, err := stale.Change(t.Context(), stale.jobID, statemachine.Ack{StepID: "two", Pair: pair})
	if err != nil || got.Outcome != statemachine.Applied {
		t.Errorf("ACK: %s %s, %v; want it applied", got.Outcome, got.Reason, err)
	}
	other.change(func(*statemachine.Aggregate, *statemachine.Step) statemachine.Event { return statemachine.Cancel{} })

	// The remembered job still runs, and would accept a RESULT; its commit loses.
	got, err = stale.Change(t.Context(), stale.jobID, statemachine.Result{
		StepID: "two", Pair: pair, Status: statemachine.ResultSucceeded,
	})
	if err != nil || got.Job.Job.State != statemachine.JobCancelled {
		t.Errorf("result: %s %s, job %s, %v; want the cancelled job", got.Outcome, got.Reason, got.Job.Job.State, err)
	}
}

// TestRecent_ForgetsWhatMayHaveFailed: after a commit with an unknown outcome the job
// is read again.
func TestRecent_ForgetsWhatMayHaveFailed(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{Split: true}))
	r := newRemembering(t, store, statemachine.BusServiceBus)
	r.accept()
	faults.Plan(storetest.Fault{Call: storetest.CommitCall, Table: "luciusledger", After: true})
	r.change(func(_ *statemachine.Aggregate, step *statemachine.Step) statemachine.Event {
		return statemachine.Published{OutboxID: step.OutboxID, AttemptNo: step.AttemptNo}
	})
	if s := r.recent.take(r.jobID); s != nil {
		t.Errorf("remembers rev %d of the job without the versions of its rows", s.agg.Job.Rev)
	}
}
