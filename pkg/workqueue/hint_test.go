package workqueue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// readyKey addresses a row among the hints to work of service ocr.
func readyKey(row string) tablestore.Key {
	return tablestore.Key{Table: queueTable, Partition: tablestore.Join("ready", "ocr", "OCR", "000"), Row: row}
}

// hints returns the hints to work of service ocr.
func hints(t testing.TB, store tablestore.Store) []tablestore.Row {
	t.Helper()
	key := readyKey("")
	page, err := store.Scan(t.Context(), tablestore.Query{Table: key.Table, Partition: key.Partition})
	musttest.NoError(t, err)
	return page.Rows
}

// leaveHints makes the deletion of hints fail while do runs, as a crash would.
func (s *tapped) leaveHints(do func()) {
	s.set(func(batch tablestore.Batch) error {
		if writes(batch, queueTable, "ready") && batch[0].Verb == tablestore.Discard {
			return tablestore.ErrUnavailable
		}
		return nil
	})
	do()
	s.set(nil)
}

// An attempt that was withdrawn while its item waited is not handed out, and its hint is
// deleted.
func TestClaim_DropsAnItemWhoseAttemptIsGone(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	message := b.work()
	store.leaveHints(func() {
		for _, event := range []statemachine.Event{statemachine.Pause{}, statemachine.Resume{}} {
			b.ledger.Send(message.JobID, event)
		}
	})
	if left := hints(t, store); len(left) != 2 {
		t.Fatalf("there are %d hints, want those of both attempts", len(left))
	}
	if views := reopen(t, store).claim(t, "w", "c1", 5, false); len(views) != 1 || views[0].Item.AttemptNo != 2 {
		t.Errorf("claimed %v", workIDs(views))
	}
	if left := hints(t, store); len(left) != 0 {
		t.Errorf("there are %d hints left", len(left))
	}
}

// A hint that a crash left after a claim is deleted by the next claim that reads it.
func TestClaim_DeletesVoidHints(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.work()
	store.leaveHints(func() { b.claim(t, "w1", "c1", 1, true) })
	if views := reopen(t, store).claim(t, "w2", "c2", 1, true); len(views) != 0 {
		t.Errorf("claimed %v", workIDs(views))
	}
	if left := hints(t, store); len(left) != 0 {
		t.Errorf("there are %d hints left", len(left))
	}
}

// A hint whose commit is under way is left alone, hides no other item, and is read again
// soon.
func TestClaim_LeavesAnEarlyHint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		b := reopen(t, store)
		var late tablestore.Batch
		store.set(func(batch tablestore.Batch) error {
			if batch[0].Key.Table != ledgerTable {
				return nil
			}
			late = batch
			return tablestore.ErrUnavailable
		})
		if _, err := b.ledger.Accept(t.Context(), b.command("tenant_a", "ocr", "OCR")); err == nil {
			t.Fatal("accepted")
		}
		store.set(nil)
		time.Sleep(time.Millisecond)
		other := b.work()
		if views := b.claim(t, "w", "c1", 1, false); len(views) != 1 || views[0].Item.WorkID != other.OutboxID {
			t.Errorf("claimed %v, want %s", workIDs(views), other.OutboxID)
		}
		if views := b.claim(t, "w", "c2", 1, false); len(views) != 0 || len(hints(t, store)) != 1 {
			t.Errorf("claimed %v, and there are %d hints", workIDs(views), len(hints(t, store)))
		}
		claimed := make(chan int, 1)
		go func() {
			views, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "c3", Max: 1, Wait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			claimed <- len(views)
		}()
		time.Sleep(5 * time.Second)
		if _, err := store.Commit(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if len(claimed) != 1 || <-claimed != 1 {
			t.Error("the item was not handed out within two seconds of its commit")
		}
	})
}

// An item that cannot be claimed is set aside for the others. Its hint is tried again when
// there is nothing else, so that the claim's answer is not empty.
func TestClaim_AnItemThatFailsHidesNoOther(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	failing := b.work()
	fine := b.accept("tenant_b", "ocr", "OCR")
	store.set(func(batch tablestore.Batch) error {
		if batch[0].Key.Partition == failing.JobID {
			return tablestore.ErrUnavailable
		}
		return nil
	})
	claim := func(id string) ([]workqueue.View, error) {
		return b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: id, Max: 1})
	}
	_, err := claim("c1")
	assertCode(t, err, apierror.StoreUnavailable)
	if views, err := claim("c2"); err != nil || len(views) != 1 || views[0].Item.WorkID != fine.OutboxID {
		t.Errorf("claimed %v (%v), want %s", workIDs(views), err, fine.OutboxID)
	}
	_, err = claim("c3")
	assertCode(t, err, apierror.StoreUnavailable)
	store.set(nil)
	if views, err := claim("c4"); err != nil || len(views) != 1 || views[0].Item.WorkID != failing.OutboxID {
		t.Errorf("claimed %v (%v), want %s", workIDs(views), err, failing.OutboxID)
	}
}

func TestClaim_SkipsAnInvalidHint(t *testing.T) {
	t.Parallel()
	b := setup(t, true)
	b.work()
	for _, key := range []tablestore.Key{
		readyKey("0"), readyKey("a:b"), readyKey("a:0000000000001:x:1:1"), readyKey("a:now:x.0.1:1:1"),
		readyKey("a:0000000000001:x.0.1:one:1"), readyKey("a:0000000000001:x.0.1:1:one"), readyKey("a:=:x:1:1"),
	} {
		b.ledger.Put(key, nil)
	}
	if views := reopen(t, b.store).claim(t, "w", "1", 1, true); len(views) != 1 {
		t.Errorf("claimed %d items", len(views))
	}
}

// A row of the catalog that cannot be read, perhaps of a class that a newer server knows, hides no others.
func TestClaim_GoesPastABadRowOfTheCatalog(t *testing.T) {
	t.Parallel()
	store := tap()
	b := reopen(t, store)
	b.ledger.Put(tablestore.Key{Table: queueTable, Partition: "catalog", Row: "a:b:urgent"}, tablestore.Properties{})
	b.work()
	if got := reopen(t, store).claim(t, "w", "c", 1, true); len(got) != 1 {
		t.Errorf("claimed %v", got)
	}
}
