package workqueue_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// runs is a limit of so many attempts of the service that run at once.
func runs(most int) admission.Limit { return admission.Limit{Scope: ocr, MaxRunning: most} }

// completes ends a held item.
func (l *limited) completes(t *testing.T, view workqueue.View) {
	t.Helper()
	_, err := l.Complete(t.Context(), view.Item.WorkID, by(view.Item.Owner, "done-"+view.Item.WorkID, view.Item), statemachine.Product{
		OutputRef: json.RawMessage(`{"uri":"s3://bucket/out"}`),
	})
	musttest.NoError(t, err)
}

// started claims and starts up to most items.
func (l *limited) started(t *testing.T, most int) []workqueue.View {
	t.Helper()
	l.claims++
	return l.claim(t, "w1", fmt.Sprintf("started-%d-%p", l.claims, l), most, true)
}

// taken returns the run slots that have a row, by number, each with its work id.
func (l *limited) taken(t *testing.T) map[int]string {
	t.Helper()
	rows, err := l.ledger.RunRows(t.Context(), ocr)
	musttest.NoError(t, err)
	taken := map[int]string{}
	for i := range rows {
		taken[rows[i].Slot.No] = rows[i].WorkID
	}
	return taken
}

// However many a claim asks for, no more attempts run than the limit allows; each that ends makes room
// for one.
func TestRunning_ClaimsGetNoMore(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := limitedTo(t, store, runs(2))
		l.accepts(5, "tenant_a")
		first := l.started(t, 5)
		if len(first) != 2 || len(l.taken(t)) != 2 {
			t.Fatalf("the first claim got %d items and %d slots, want 2", len(first), len(l.taken(t)))
		}
		if got := l.started(t, 5); len(got) != 0 {
			t.Errorf("a claim got %d items beyond the limit", len(got))
		}
		l.completes(t, first[0])
		if got := l.started(t, 5); len(got) != 1 {
			t.Errorf("a claim got %d items after one had ended, want 1", len(got))
		}
		if got := len(l.taken(t)); got != 2 {
			t.Errorf("%d slots are taken, want 2", got)
		}
	})
}

// A claim that waits gets the item as soon as an attempt ends.
func TestRunning_AnEndWakesAClaim(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := limitedTo(t, store, runs(1))
		l.accepts(2, "tenant_a")
		first := l.started(t, 1)
		answer := l.waitingFor(t, context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w2", RequestID: "waits", Max: 1, Wait: time.Minute,
		})
		l.completes(t, first[0])
		if got := answer(); len(got) != 1 {
			t.Errorf("the waiting claim got %d items, want 1", len(got))
		}
	})
}

// A lease that ends frees the slot, and the next attempt takes one.
func TestRunning_AStallFreesTheSlot(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := limitedTo(t, store, runs(1))
		m := l.accept("tenant_a", "ocr", "OCR")
		if got := l.started(t, 1); len(got) != 1 {
			t.Fatalf("claimed %d items, want 1", len(got))
		}
		time.Sleep(24 * time.Hour)
		_, err := l.ledger.Change(t.Context(), m.JobID, statemachine.DeadlinePassed{})
		musttest.NoError(t, err)
		if taken := l.taken(t); len(taken) != 0 {
			t.Errorf("slots %v are taken after the lease has ended", taken)
		}
	})
}

// Processes with views of their own share the slots of one limit.
func TestRunning_ProcessesShareTheSlots(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		a := limitedTo(t, store, runs(3))
		b := limitedTo(t, store, runs(3))
		a.accepts(10, "tenant_a")
		time.Sleep(10 * time.Second) // Both have read the index.
		got := len(a.started(t, 2)) + len(b.started(t, 10)) + len(a.started(t, 10))
		if got != 3 || len(a.taken(t)) != 3 {
			t.Errorf("claims of two processes got %d items and %d slots, want 3", got, len(a.taken(t)))
		}
	})
}

// Three of four limits may bound what runs; each that covers an item counts it.
func TestRunning_EachLimitCountsTheItem(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := limitedTo(t, store, runs(3), admission.Limit{Scope: ocrOfA, MaxRunning: 1})
		l.accepts(3, "tenant_a")
		l.accepts(3, "tenant_b")
		views := l.started(t, 10)
		of := map[string]int{}
		for i := range views {
			of[views[i].Item.TenantID]++
		}
		if of["tenant_a"] != 1 || of["tenant_b"] != 2 {
			t.Errorf("claimed %v, want 1 of tenant_a and 3 in all", of)
		}
	})
}

// A process that dies after it has taken a slot and before its claim's commit keeps the slot for less
// than a minute.
func TestRunning_ACrashBeforeTheCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		l := limitedTo(t, store, runs(1))
		m := l.accept("tenant_a", "ocr", "OCR")
		rev := l.ledger.Read(m.JobID).Job.Rev
		dead := false
		store.set(func(batch tablestore.Batch) error { // From the claim's commit on, nothing of it is written.
			if dead = dead || writes(batch, ledgerTable, "EVENT"); dead {
				return tablestore.ErrUnavailable
			}
			return nil
		})
		got := l.started(t, 1)
		if len(got) != 0 || len(l.taken(t)) != 1 {
			t.Fatalf("the claim got %d items, and %d slots are taken; want none and 1", len(got), len(l.taken(t)))
		}
		store.set(nil)
		next := limitedTo(t, store, runs(1))
		views, err := next.Claim(context.WithoutCancel(t.Context()), workqueue.ClaimRequest{
			Owner: "w2", RequestID: "next", Max: 1, Wait: time.Minute,
		})
		if err != nil || len(views) != 1 {
			t.Fatalf("the next claim got %d items, %v; want 1 within a minute", len(views), err)
		}
		if got := l.ledger.Read(m.JobID).Job.Rev; got != rev+2 {
			t.Errorf("the job is at rev %d, want %d: its rev was raised, and then it was claimed", got, rev+2)
		}
	})
}

// A claim that lost a race names the slot's row for its next revision before it commits that: the row of
// the first one is void to all others.
func TestRunning_ALostRaceKeepsTheRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		l := limitedTo(t, store, runs(1))
		m := l.accept("tenant_a", "ocr", "OCR")
		judges := func() {
			rows, err := l.ledger.RunRows(t.Context(), ocr)
			musttest.NoError(t, err)
			for i := range rows {
				_, err := l.ledger.JudgeRun(t.Context(), &rows[i])
				musttest.NoError(t, err)
			}
		}
		tries := 0
		store.set(func(batch tablestore.Batch) error {
			if !writes(batch, ledgerTable, "EVENT") || !strings.Contains(fmt.Sprint(batch), "OPENITEM") {
				return nil
			}
			tries++
			tap := store.tap
			store.set(nil)
			if tries == 1 { // Another change comes first.
				_, err := l.ledger.Change(t.Context(), m.JobID, statemachine.DeadlinePassed{})
				musttest.NoError(t, err)
			} else {
				judges()
			}
			store.set(tap)
			return nil
		})
		if got := l.started(t, 1); len(got) != 1 || tries != 2 {
			t.Fatalf("claimed %d items in %d tries, want 1 in 2", len(got), tries)
		}
		store.set(nil)
		if taken := l.taken(t); taken[0] == "" {
			t.Errorf("an item is held without its slot: taken are %v", taken)
		}
	})
}

// A slot is freed under its version: another claim may have it by then.
func TestRunning_ALateEndFreesNoOtherSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		l := limitedTo(t, store, runs(1))
		l.accepts(2, "tenant_a")
		first, second := l.started(t, 1), []workqueue.View(nil)
		store.set(func(batch tablestore.Batch) error {
			if !writes(batch, queueTable, "run:") {
				return nil
			}
			store.set(nil) // Before the row is deleted, another process judges it, and claims.
			rows, err := l.ledger.RunRows(t.Context(), ocr)
			musttest.NoError(t, err)
			for i := range rows {
				_, err := l.ledger.JudgeRun(t.Context(), &rows[i])
				musttest.NoError(t, err)
			}
			musttest.NoError(t, l.gate.RefreshRuns(t.Context()))
			second = l.started(t, 1)
			return nil
		})
		l.completes(t, first[0])
		if len(second) != 1 || l.taken(t)[0] != second[0].Item.WorkID {
			t.Errorf("%d items are held, and the slots taken are %v", len(second), l.taken(t))
		}
	})
}

// A lowered limit counts what runs: nothing starts until fewer run than it allows.
func TestRunning_ALoweredLimitCountsWhatRuns(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		l := limitedTo(t, store, runs(4))
		l.accepts(8, "tenant_a")
		held := l.started(t, 4)
		_, err := l.stored.SetLimit(t.Context(), runs(2))
		musttest.NoError(t, err)
		musttest.NoError(t, l.gate.Refresh(t.Context()))
		for i := range held {
			got := l.started(t, 8)
			if i < 3 && len(got) != 0 || i == 3 && len(got) != 1 {
				t.Errorf("%d run, and a claim got %d items more under a limit of 2", len(held)-i, len(got))
			}
			l.completes(t, held[i])
		}
	})
}

// A slot whose row cannot be read stays taken, and keeps no claim from the others.
func TestRunning_ADamagedRow(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, store *tapped) {
		_, err := store.Commit(t.Context(), tablestore.Batch{{
			Verb: tablestore.Insert, Key: tablestore.Key{Table: queueTable, Partition: tablestore.Join("limit", "ocr", "", ""), Row: "run:0000000"},
			Properties: tablestore.Properties{{Name: "rev", Value: tablestore.String("not a number")}},
		}})
		musttest.NoError(t, err)
		l := limitedTo(t, store, runs(2))
		l.accepts(3, "tenant_a")
		if got := l.started(t, 3); len(got) != 1 {
			t.Errorf("a claim got %d items, want 1: one of two slots is taken", len(got))
		}
		if taken := l.taken(t); len(taken) != 2 {
			t.Errorf("slots %v are taken, want 2", taken)
		}
	})
}
