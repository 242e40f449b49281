package workqueue_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// swept is one verb of the sweep: the item it starts from, and the request,
// which is the same each time it is sent.
type swept struct {
	name  string
	until statemachine.ItemStatus
	send  func(ctx context.Context, s *scene) error
}

// scene is one item with its worker.
type scene struct {
	*bundle
	message ledger.Message
	item    statemachine.Item // as it was before the verb
}

// claimed makes the claim, which must hand out the one item.
func (s *scene) claimed(ctx context.Context, start bool) error {
	views, err := s.Claim(ctx, workqueue.ClaimRequest{Owner: "w1", RequestID: "verb", Max: 5, Start: start})
	if err == nil && (len(views) != 1 || string(views[0].Directive) != string(s.message.Directive)) {
		return fmt.Errorf("claimed %d items", len(views))
	}
	return err
}

// moved turns a verb of one item into one of the scene.
func moved(actor string, verb func(*scene) func(context.Context, string, statemachine.ItemRequest) (workqueue.View, error),
) func(context.Context, *scene) error {
	return func(ctx context.Context, s *scene) error {
		_, err := verb(s)(ctx, s.item.WorkID, by(actor, "verb", s.item))
		return err
	}
}

func sweep() []swept {
	type call = func(context.Context, string, statemachine.ItemRequest) (workqueue.View, error)
	start := moved("w1", func(s *scene) call { return s.Start })
	beat := moved("w1", func(s *scene) call { return beating(s.Queue) })
	return []swept{
		{"mark", statemachine.StatusNone, func(ctx context.Context, s *scene) error {
			event := statemachine.Published{OutboxID: s.message.OutboxID, AttemptNo: s.message.AttemptNo}
			_, err := s.ledger.Change(ctx, s.message.JobID, event)
			return err
		}},
		{"claim", statemachine.StatusQueued, func(ctx context.Context, s *scene) error { return s.claimed(ctx, false) }},
		{"claim and start", statemachine.StatusQueued, func(ctx context.Context, s *scene) error { return s.claimed(ctx, true) }},
		{"heartbeat before the start", statemachine.StatusClaimed, beat},
		{"start", statemachine.StatusClaimed, start},
		{"heartbeat", statemachine.StatusRunning, beat},
		{"complete", statemachine.StatusRunning, moved("w1", func(s *scene) call {
			return func(ctx context.Context, id string, r statemachine.ItemRequest) (workqueue.View, error) {
				return s.Complete(ctx, id, r, statemachine.Product{ResultRef: []byte(`{"uri":"s3://r"}`)})
			}
		})},
		{"fail", statemachine.StatusRunning, moved("w1", func(s *scene) call {
			return func(ctx context.Context, id string, r statemachine.ItemRequest) (workqueue.View, error) {
				return s.Fail(ctx, id, r, workqueue.Failure{Retryable: true, Code: "busy"})
			}
		})},
		{"stall", statemachine.StatusRunning, moved("operator", func(s *scene) call { return s.Stall })},
		{"requeue", statemachine.StatusStalled, moved("operator", func(s *scene) call { return s.Requeue })},
		{"requeue under a pause", statemachine.StatusStalled, moved("operator", func(s *scene) call {
			s.pending.Store(true)
			return s.Requeue
		})},
	}
}

// Each call of the store fails in turn, before it takes effect and after. When the request
// is sent again, it must have the same effect as without a fault, once.
func TestQueue_SurvivesAnySingleFault(t *testing.T) {
	t.Parallel()
	for _, verb := range sweep() {
		for name, split := range map[string]bool{"atomic": false, "split": true} {
			t.Run(verb.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				s, _, counter := stage(t, verb, split)
				counter.Reset()
				musttest.NoError(t, verb.send(t.Context(), s))
				counts := counter.Counts()
				want := s.outcome(t)
				for nth := range int(counts.Gets + counts.Scans + counts.Commits) {
					for _, after := range []bool{false, true} {
						faultOnce(t, verb, split, storetest.Fault{Nth: nth + 1, After: after}, want)
					}
				}
			})
		}
	}
}

// faultOnce sends the verb while one call fails, and again until it is answered.
func faultOnce(t *testing.T, verb swept, split bool, fault storetest.Fault, want outcome) {
	t.Helper()
	s, faults, _ := stage(t, verb, split)
	faults.Plan(fault)
	err := verb.send(t.Context(), s)
	if err != nil && verb.name != "mark" {
		assertCode(t, err, apierror.StoreUnavailable)
	}
	faults.Clear()
	what := fmt.Sprintf("call %d, applied %t (%v)", fault.Nth, fault.After, err)
	for range 2 { // A request that was answered may be sent again too: the answer may be lost.
		if err := verb.send(t.Context(), s); err != nil {
			t.Errorf("%s: sent again: %v", what, err)
			return
		}
	}
	if diff := cmp.Diff(want, s.outcome(t)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Only the rows justify a refusal. If they cannot be read, no request is refused: it may
// have been applied.
func TestQueue_RefusesNoRequestWithoutItsRows(t *testing.T) {
	t.Parallel()
	stall := statemachine.Stall{StepID: "step", AttemptNo: 1}
	tests := map[string]struct {
		seen   int64                // the rev of the request, from the item's
		events []statemachine.Event // before the request, bypassing the queue
		want   apierror.Code
	}{
		"by its rev":            {-1, nil, apierror.RevConflict},
		"by the item's move":    {0, []statemachine.Event{stall}, apierror.RevConflict},
		"by the item's status":  {1, []statemachine.Event{stall}, apierror.IllegalTransition},
		"by the next attempt":   {2, []statemachine.Event{stall, statemachine.Retry{}}, apierror.IllegalTransition},
		"by the item's removal": {0, []statemachine.Event{stall, statemachine.Cancel{}}, apierror.WorkNotFound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for nth, calls := 0, 1; nth <= calls; nth++ { // Run 0 has no fault, and counts the calls.
				faulty, faults := storetest.Faulty(ledgertest.Split())
				counting, counter := storetest.Counting(faulty)
				s := &scene{bundle: reopen(t, counting)}
				s.message = s.work()
				s.item = s.claim(t, "w1", "c1", 1, true)[0].Item
				for _, event := range test.events {
					s.ledger.Apply(s.item.JobID, event)
				}
				request := by("w1", "verb", s.item)
				request.ExpectedRev += test.seen
				complete := func() error {
					_, err := s.Complete(t.Context(), s.item.WorkID, request, statemachine.Product{})
					return err
				}
				if nth == 0 {
					counter.Reset()
					assertCode(t, complete(), test.want)
					counts := counter.Counts()
					calls = int(counts.Gets + counts.Scans + counts.Commits)
					continue
				}
				faults.Plan(storetest.Fault{Nth: nth})
				assertCode(t, complete(), apierror.StoreUnavailable)
				faults.Clear()
				assertCode(t, complete(), test.want)
			}
		})
	}
}

// stage sets the scene, on a store with a plan of faults.
func stage(t *testing.T, verb swept, split bool) (*scene, *storetest.Faults, *storetest.Counter) {
	t.Helper()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{Split: split}))
	store, counter := storetest.Counting(store)
	s := &scene{bundle: reopen(t, store)}
	s.pending.Store(verb.until == statemachine.StatusNone)
	s.message = s.work()
	if verb.until == statemachine.StatusNone || verb.until == statemachine.StatusQueued {
		return s, faults, counter
	}
	s.item = s.claim(t, "w1", "c1", 1, verb.until != statemachine.StatusClaimed)[0].Item
	if verb.until == statemachine.StatusStalled {
		view, err := s.Stall(t.Context(), s.item.WorkID, by("operator", "stall", s.item))
		musttest.NoError(t, err)
		s.item = view.Item
	}
	return s, faults, counter
}

// outcome is the effect of a verb.
type outcome struct {
	Item  statemachine.Item
	Types []statemachine.ItemEventType
	By    []string
	Step  statemachine.StepState
	Rev   int64 // the job's: each effect on the ledger raises it
	Spent statemachine.Spent
	Ready int // how many items another process finds to claim
}

func (s *scene) outcome(t *testing.T) outcome {
	t.Helper()
	if step := s.step(s.message.JobID); step.State == statemachine.StepDispatching {
		s.mark(s.bundle.ledger.MessageOf(s.message.JobID)) // As the relay does with a row that the ledger left to it.
	}
	view, err := s.Get(t.Context(), s.message.OutboxID)
	musttest.NoError(t, err)
	events, _, err := s.Events(t.Context(), s.message.OutboxID, 0, 100)
	musttest.NoError(t, err)
	if err := statemachine.ValidateItemHistory(view.Item, events); err != nil {
		t.Error(err)
	}
	agg, err := s.ledger.Job(t.Context(), s.message.JobID)
	musttest.NoError(t, err)
	out := outcome{
		Item: statemachine.Item{
			Status: view.Item.Status, Attempt: view.Item.Attempt, Rev: view.Item.Rev, Owner: view.Item.Owner,
			Result: view.Item.Result, Error: view.Item.Error, AttemptNo: view.Item.AttemptNo,
		},
		Step: agg.Steps[0].State, Rev: agg.Job.Rev, Spent: agg.Steps[0].Spent,
		Ready: len(reopen(t, s.store).claim(t, "w9", "c9", 5, false)),
	}
	for _, e := range events {
		out.Types, out.By = append(out.Types, e.Type), append(out.By, e.Actor)
	}
	return out
}
