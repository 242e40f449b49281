package workqueue_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// A late report finds its item left behind, and while it catches up, the same
// worker claims the next attempt. The report is not for that one.
func TestTorn_ALateReportIsNotTakenForTheSameWorkersNextAttempt(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work(t)
	item := b.claim(t, "w1", "c1", 1, true)[0].Item
	store.on("ITEM:", 1, down) // The item never hears that it was stalled.
	if _, err := b.ledger.Change(t.Context(), item.JobID, statemachine.Stall{StepID: "step", AttemptNo: 1}); err != nil {
		t.Fatal(err)
	}
	store.on("ITEM:", 1, func() error {
		other := reopen(t, store)
		if _, err := other.ledger.Change(t.Context(), item.JobID, statemachine.Retry{}); err != nil {
			t.Error(err)
		}
		other.relay(t)
		if views := other.claim(t, "w1", "c2", 1, true); len(views) != 1 || views[0].Item.AttemptNo != 2 {
			t.Errorf("the next attempt was claimed as %+v", views)
		}
		return nil
	})
	_, err := b.Complete(t.Context(), item.WorkID, by("w1", "late", item), nil, json.RawMessage(`{"uri":"late"}`))
	assertCode(t, err, problem.RevConflict)
	if step := b.step(t, item.JobID); step.State != statemachine.StepInProgress || step.AttemptNo != 2 {
		t.Errorf("the step is %s at attempt %d", step.State, step.AttemptNo)
	}
}

// An item whose last write was lost is brought in line when its job ends, though
// its step has ended long ago: nobody looks at the job again.
func TestTorn_TheEndOfAJobBringsItemsOfEarlierStepsInLine(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*bundle, lifecycle.Item) error{
		"by the queue": func(b *bundle, item lifecycle.Item) error {
			_, err := b.Complete(b.ctx, item.WorkID, by("w1", "end", item), nil, nil)
			return err
		},
		"by a callback": func(b *bundle, item lifecycle.Item) error {
			_, err := b.ledger.Change(b.ctx, item.JobID, statemachine.Result{
				StepID: item.StepID, Pair: statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID},
				Status: statemachine.ResultSucceeded,
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := tap()
			b := reopen(t, store)
			b.acceptTwoSteps(t)
			b.relay(t)
			first := b.claim(t, "w1", "c1", 1, true)[0].Item
			store.fail(tablestore.ErrUnavailable, "ITEM:")
			_, err := b.Complete(t.Context(), first.WorkID, by("w1", "first", first), nil, nil)
			assertCode(t, err, problem.StoreUnavailable)
			store.set(nil)
			b.relay(t)
			if err := end(b, b.claim(t, "w1", "c2", 1, true)[0].Item); err != nil {
				t.Fatal(err)
			}
			if view, err := b.Get(t.Context(), first.WorkID); err != nil || view.Item.Status != lifecycle.StatusSucceeded {
				t.Errorf("the first step's item is %s, %v", view.Item.Status, err)
			}
		})
	}
}

// acceptTwoSteps makes a job of two steps.
func (b *bundle) acceptTwoSteps(t *testing.T) {
	t.Helper()
	policy := statemachine.Policy{AckTimeout: time.Minute, Lease: time.Minute}
	_, err := b.ledger.Accept(t.Context(), ledger.Command{
		Job: statemachine.Job{TenantID: "tenant_a", IdempotencyHash: t.Name()},
		Steps: []statemachine.Step{
			{ID: "one", Type: "ONE", Service: "s", Policy: policy}, {ID: "two", Type: "TWO", Service: "s", Policy: policy},
		},
		Payload: json.RawMessage(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
}

// While a job is purged, an item may still be there and its directive not.
func TestQueue_AnItemWithoutItsDirectiveIsNotThere(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	message := b.work(t)
	_, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Discard, Key: tablestore.Key{
		Table: workqueue.DefaultTable, Partition: message.JobID, Row: "MESSAGE:0000:000001",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Get(t.Context(), message.OutboxID)
	assertCode(t, err, problem.WorkNotFound)
	if views := b.claim(t, "w1", "c1", 1, false); len(views) != 0 {
		t.Errorf("claimed %+v", views)
	}
}

// A stall that ends a job which is being cancelled leaves no item behind.
func TestQueue_AnItemThatIsStalledWhileItsJobEndsIsGone(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		b.work(t)
		item := b.claim(t, "w1", "c1", 1, true)[0].Item
		if _, err := b.ledger.Change(t.Context(), item.JobID, statemachine.Cancel{}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Stall(t.Context(), item.WorkID, by("operator", "s1", item)); err != nil {
			t.Fatal(err)
		}
		if step := b.step(t, item.JobID); step.State != statemachine.StepCancelled {
			t.Errorf("the step is %s", step.State)
		}
		_, err := b.Get(t.Context(), item.WorkID)
		assertCode(t, err, problem.WorkNotFound)
	})
}

// An operator's request that is sent again to another replica may be carried out
// there while the first one decides. The first then finds it done, also where the
// step has failed once more meanwhile: it must not be dispatched a second time.
func TestRequeue_ARepeatThatOvertakesTheFirstIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	stalled := b.stalled(t)
	other := reopen(t, store.Store)
	request := by("olga", "x2", stalled)
	overtaken := false
	store.tap = func(batch tablestore.Batch) error {
		if overtaken || batch[0].Key.Table != "luciusledger" {
			return nil
		}
		overtaken = true
		if _, err := other.Requeue(t.Context(), stalled.WorkID, request); err != nil {
			t.Error(err)
		}
		item := other.claim(t, "w2", "c2", 1, true)[0].Item
		_, err := other.Fail(t.Context(), item.WorkID, by("w2", "f1", item), workqueue.Failure{Retryable: true, Code: "c"})
		return err
	}
	view, err := b.Requeue(t.Context(), stalled.WorkID, request)
	if err != nil || view.Item.Status != lifecycle.StatusFailed {
		t.Errorf("requeue: %v, item is %s", err, view.Item.Status)
	}
	if step := b.step(t, stalled.JobID); step.State != statemachine.StepFailedRetry || step.AttemptNo != 2 {
		t.Errorf("step is %s at attempt %d", step.State, step.AttemptNo)
	}
}
