package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// stalled makes an item that an operator has taken from its worker.
func (b *bundle) stalled(t *testing.T) statemachine.Item {
	t.Helper()
	b.work()
	item := b.claim(t, "w1", "c1", 1, true)[0].Item
	view, err := b.Stall(t.Context(), item.WorkID, by("operator", "x1", item))
	musttest.NoError(t, err)
	return view.Item
}

func TestRequeue_OffersTheItemAtOnceInTheOperatorsName(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		stalled := b.stalled(t)
		view, err := b.Requeue(t.Context(), stalled.WorkID, by("olga", "x2", stalled))
		if err != nil || view.Item.Status != statemachine.StatusQueued || view.Item.AttemptNo != 2 {
			t.Fatalf("requeue: %v, item is %s", err, view.Item.Status)
		}
		events, _, err := b.Events(t.Context(), stalled.WorkID, 0, 100)
		musttest.NoError(t, err)
		last := events[len(events)-1]
		want := statemachine.ItemEvent{
			WorkID: stalled.WorkID, Rev: 5, Type: statemachine.ItemEventRequeued, From: statemachine.StatusStalled,
			To: statemachine.StatusQueued, At: last.At, Actor: "olga", RequestID: "x2", Attempt: 1,
		}
		if diff := cmp.Diff(want, last); diff != "" {
			t.Errorf("last event (-want +got):\n%s", diff)
		}
		again, err := b.Requeue(t.Context(), stalled.WorkID, by("olga", "x2", stalled))
		if err != nil || again.Item.Rev != view.Item.Rev {
			t.Errorf("the repeat: %v, rev %d, first %d", err, again.Item.Rev, view.Item.Rev)
		}
		if step := b.step(stalled.JobID); step.AttemptNo != 2 || step.Spent != (statemachine.Spent{}) {
			t.Errorf("step is at attempt %d and spent %+v", step.AttemptNo, step.Spent)
		}
	})
}

// If the next attempt already waits for the end of a pause, its later mark is still the
// operator's requeue.
func TestRequeue_OfAnAttemptThatIsPending(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		stalled := b.stalled(t)
		b.pending.Store(true)
		b.ledger.Apply(stalled.JobID, statemachine.Retry{})
		request := by("olga", "x2", stalled)
		var rev int64
		for n := range 2 {
			view, err := b.Requeue(t.Context(), stalled.WorkID, request)
			if err != nil || view.Item.Status != statemachine.StatusStalled || view.Item.Rev != stalled.Rev {
				t.Fatalf("requeue: %v, item is %s at rev %d", err, view.Item.Status, view.Item.Rev)
			}
			agg, err := b.ledger.Job(t.Context(), stalled.JobID)
			if err != nil || n > 0 && agg.Job.Rev != rev {
				t.Errorf("the repeat brought the job from rev %d to %d (%v)", rev, agg.Job.Rev, err)
			}
			rev = agg.Job.Rev
		}
		b.mark(b.ledger.MessageOf(stalled.JobID))
		if _, last := b.events(t, stalled.WorkID); last.Actor != "olga" || last.RequestID != "x2" {
			t.Errorf("last event is %+v", last)
		}
		if view, err := b.Requeue(t.Context(), stalled.WorkID, request); err != nil || view.Item.Status != statemachine.StatusQueued {
			t.Errorf("the repeat: %v, item is %s", err, view.Item.Status)
		}
	})
}

// A requeue that creates the next attempt is remembered, too, while that attempt waits for
// the end of a pause.
func TestRequeue_UnderAPauseIsTheOperatorsWhenThatEnds(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		stalled := b.stalled(t)
		b.pending.Store(true)
		request := by("olga", "x2", stalled)
		request.Reason = "it hangs"
		for range 2 {
			view, err := b.Requeue(t.Context(), stalled.WorkID, request)
			if err != nil || view.Item.Status != statemachine.StatusStalled || view.Item.Rev != stalled.Rev {
				t.Fatalf("requeue: %v, item is %s at rev %d", err, view.Item.Status, view.Item.Rev)
			}
		}
		if step := b.step(stalled.JobID); step.State != statemachine.StepDispatching || step.AttemptNo != 2 {
			t.Errorf("step is %s at attempt %d", step.State, step.AttemptNo)
		}
		b.mark(b.ledger.MessageOf(stalled.JobID))
		if _, last := b.events(t, stalled.WorkID); last.Type != statemachine.ItemEventRequeued || last.Actor != "olga" || last.Reason != "it hangs" {
			t.Errorf("last event is %+v", last)
		}
		if views := b.claim(t, "w2", "c2", 5, true); len(views) != 1 || views[0].Item.AttemptNo != 2 {
			t.Errorf("claimed %v", workIDs(views))
		}
	})
}

func TestRequeue_WithoutAnOperatorIsTheRelays(t *testing.T) {
	t.Parallel()
	for name, pending := range map[string]bool{"at once": false, "after a pause": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothStores(t, func(t *testing.T, b *bundle) {
				stalled := b.stalled(t)
				b.pending.Store(pending)
				b.ledger.Apply(stalled.JobID, statemachine.Retry{})
				b.mark(b.ledger.MessageOf(stalled.JobID))
				if _, last := b.events(t, stalled.WorkID); last.Type != statemachine.ItemEventRequeued || last.Actor != "relay" {
					t.Errorf("last event is %+v", last)
				}
			})
		})
	}
}

func TestRequeue_IsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	stalled := b.stalled(t)
	send := func(spoil func(*statemachine.ItemRequest)) error {
		request := by("olga", "x2", stalled)
		spoil(&request)
		_, err := b.Requeue(t.Context(), stalled.WorkID, request)
		return err
	}
	assertPointer(t, send(func(r *statemachine.ItemRequest) { r.Actor = "" }), "/actor")
	assertPointer(t, send(func(r *statemachine.ItemRequest) { r.ID = "" }), "/request_id")
	assertPointer(t, send(func(r *statemachine.ItemRequest) { r.ExpectedRev = 0 }), "/expected_rev")
	assertCode(t, send(func(r *statemachine.ItemRequest) { r.ExpectedRev-- }), apierror.RevConflict)
	b.ledger.Apply(stalled.JobID, statemachine.Pause{})
	assertCode(t, send(func(*statemachine.ItemRequest) {}), apierror.IllegalTransition)
	if step := b.step(stalled.JobID); step.AttemptNo != 1 {
		t.Errorf("a refused requeue made attempt %d", step.AttemptNo)
	}
	_, err := b.Requeue(t.Context(), "no-such-job.0.1", by("olga", "x2", stalled))
	assertCode(t, err, apierror.WorkNotFound)
}

// One of two operators in two processes is accepted, and the item names that operator.
func TestRequeue_OneOfTwoRacingOperatorsIsAccepted(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	stalled := b.stalled(t)
	store.on(ledgerTable, "", func() error {
		if _, err := reopen(t, store).Requeue(t.Context(), stalled.WorkID, by("otto", "o1", stalled)); err != nil {
			t.Error(err)
		}
		return nil
	})
	_, err := b.Requeue(t.Context(), stalled.WorkID, by("olga", "x2", stalled))
	assertCode(t, err, apierror.RevConflict)
	if _, last := b.events(t, stalled.WorkID); last.Actor != "otto" {
		t.Errorf("last event is %+v", last)
	}
}

// Under a pause the item does not move, so the second of two operators is accepted
// too, and the requeue is in its name.
func TestRequeue_OfTwoOperatorsUnderAPauseTheLastIsNamed(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	stalled := b.stalled(t)
	b.pending.Store(true)
	b.ledger.Apply(stalled.JobID, statemachine.Retry{})
	store.on(ledgerTable, "", func() error {
		if _, err := reopen(t, store).Requeue(t.Context(), stalled.WorkID, by("otto", "o1", stalled)); err != nil {
			t.Error(err)
		}
		return nil
	})
	if _, err := b.Requeue(t.Context(), stalled.WorkID, by("olga", "x2", stalled)); err != nil {
		t.Fatal(err)
	}
	b.mark(b.ledger.MessageOf(stalled.JobID))
	if _, last := b.events(t, stalled.WorkID); last.Actor != "olga" {
		t.Errorf("last event is %+v", last)
	}
}

func TestCaller_SeesNoItemOfOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	message := b.work()
	item := b.claim(t, "w1", "c1", 1, false)[0].Item
	type verb = func(context.Context, string, statemachine.ItemRequest) (workqueue.View, error)
	verbs := func(q *workqueue.Queue) map[string]verb {
		return map[string]verb{
			"heartbeat": beating(q), "start": q.Start, "stall": q.Stall, "requeue": q.Requeue,
			"complete": func(ctx context.Context, id string, r statemachine.ItemRequest) (workqueue.View, error) {
				return q.Complete(ctx, id, r, statemachine.Product{})
			},
			"fail": func(ctx context.Context, id string, r statemachine.ItemRequest) (workqueue.View, error) {
				return q.Fail(ctx, id, r, workqueue.Failure{})
			},
			"get": func(ctx context.Context, id string, _ statemachine.ItemRequest) (workqueue.View, error) {
				return q.Get(ctx, id)
			},
			"events": func(ctx context.Context, id string, _ statemachine.ItemRequest) (workqueue.View, error) {
				_, _, err := q.Events(ctx, id, 0, 10)
				return workqueue.View{}, err
			},
		}
	}
	for _, caller := range []workqueue.Caller{
		{Tenants: []string{"tenant_b"}},
		{Services: []string{"embed"}},
		{Tenants: []string{"tenant_a"}, Services: []string{"embed"}},
	} {
		for name, verb := range verbs(b.As(caller)) {
			_, err := verb(t.Context(), item.WorkID, by("w1", name, item))
			if known := asKnown(err); known == nil || known.Code != apierror.WorkNotFound {
				t.Errorf("%s as %+v: %v", name, caller, err)
			}
		}
		views, err := b.As(caller).Claim(t.Context(), workqueue.ClaimRequest{Owner: "w1", RequestID: "c1", Max: 1})
		if assertPointer(t, err, "/request_id"); len(views) != 0 {
			t.Errorf("the claim, sent again as %+v, answered %d items", caller, len(views))
		}
	}
	mine := b.As(workqueue.Caller{Tenants: []string{"tenant_b", "tenant_a"}, Services: []string{"ocr"}})
	if view, err := mine.Start(t.Context(), message.OutboxID, by("w1", "s1", item)); err != nil || view.Item.Status != statemachine.StatusRunning {
		t.Errorf("start by who may: %v", err)
	}
}

// Columns of the next schema version survive every rewrite of the item, including its end.
func TestItem_CarriesColumnsThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		b.work()
		item := b.claim(t, "w1", "c1", 1, false)[0].Item
		key := tablestore.Key{Table: ledgerTable, Partition: item.JobID, Row: "OPENITEM:0000:000001"}
		row := b.ledger.Row(key)
		newer := append(row.Properties, tablestore.Property{Name: "of_tomorrow", Value: tablestore.Int(7)})
		op := tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: row.ETag, Properties: newer}
		if _, err := b.store.Commit(t.Context(), tablestore.Batch{op}); err != nil {
			t.Fatal(err)
		}
		kept := func(row, when string) {
			at := key
			at.Row = row
			got, err := b.store.Get(t.Context(), at)
			if err != nil || got.Properties.Get("of_tomorrow").Int() != 7 {
				t.Errorf("the column is lost when the item %s (%v)", when, err)
			}
		}
		for n, move := range []func(context.Context, string, statemachine.ItemRequest) (workqueue.View, error){
			beating(b.Queue), b.Start, b.Stall, b.Requeue,
		} {
			actor := item.Owner
			if item.Status != statemachine.StatusClaimed {
				actor = "olga"
			}
			view, err := move(t.Context(), item.WorkID, by(actor, fmt.Sprint("r", n), item))
			musttest.NoError(t, err)
			item = view.Item
			kept(key.Row, "becomes "+string(item.Status))
		}
		item = b.claim(t, "w1", "c2", 1, true)[0].Item
		if _, err := b.Fail(t.Context(), item.WorkID, by("w1", "f", item), workqueue.Failure{}); err != nil {
			t.Fatal(err)
		}
		kept("ITEM:0000:000001", "ends")
	})
}

// If another request changes the item first, the overtaken request is re-evaluated on the
// changed item.
func TestQueue_AnOvertakenRequestIsReevaluated(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work()
	item := b.claim(t, "w1", "c1", 1, true)[0].Item
	store.on(ledgerTable, "", func() error {
		if _, err := reopen(t, store).Stall(t.Context(), item.WorkID, by("olga", "x1", item)); err != nil {
			t.Error(err)
		}
		return nil
	})
	_, err := b.Heartbeat(t.Context(), item.WorkID, by("w1", "h1", item), nil)
	assertCode(t, err, apierror.RevConflict)
	if types, last := b.events(t, item.WorkID); last.Type != statemachine.ItemEventStalled {
		t.Errorf("events are %v", types)
	}
}

// asKnown returns the problem that the error wraps, nil for any other error.
func asKnown(err error) *apierror.Error {
	known, _ := errors.AsType[*apierror.Error](err)
	return known
}
