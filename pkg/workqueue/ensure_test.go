package workqueue_test

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// rowsOf are the keys of a partition of the queue's table.
func (b *bundle) rowsOf(t *testing.T, partition string) []tablestore.Key {
	t.Helper()
	page, err := b.store.Scan(t.Context(), tablestore.Query{Table: "luciusqueue", Partition: partition})
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]tablestore.Key, len(page.Rows))
	for i := range page.Rows {
		keys[i] = page.Rows[i].Key
	}
	return keys
}

// lose deletes rows behind the queue's back.
func (b *bundle) lose(t *testing.T, keys ...tablestore.Key) {
	t.Helper()
	for _, key := range keys {
		if _, err := b.store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Discard, Key: key}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEnsure_PutsRightWhatWasLost(t *testing.T) {
	t.Parallel()
	for _, split := range []bool{false, true} {
		b := setup(t, split)
		m := b.work(t)
		if missing, err := b.Ensure(t.Context(), &m); err != nil || missing {
			t.Fatalf("of a queued item: %t, %v", missing, err)
		}
		hints := b.rowsOf(t, tablestore.Join("ready", m.Service, m.StepType))
		if len(hints) != 1 {
			t.Fatalf("hints %v", hints)
		}
		b.lose(t, hints...)
		if missing, err := b.Ensure(t.Context(), &m); err != nil || !missing {
			t.Errorf("without its hint: %t, %v", missing, err)
		}
		for _, key := range b.rowsOf(t, tablestore.Escape(m.JobID)) {
			if key.Row[:4] == "ITEM" {
				b.lose(t, key)
			}
		}
		if missing, err := b.Ensure(t.Context(), &m); err != nil || !missing {
			t.Errorf("without the item: %t, %v", missing, err)
		}
		other := reopen(t, b.store) // Another process finds it too.
		if views := other.claim(t, "w", "r", 1, true); len(views) != 1 || views[0].Item.LeaseID != m.LeaseID {
			t.Errorf("claimed %+v", views)
		}
		if missing, err := b.Ensure(t.Context(), &m); err != nil || missing {
			t.Errorf("of a running item: %t, %v", missing, err)
		}
	}
}

func TestEnsure_LeavesAloneWhatMovedOn(t *testing.T) {
	t.Parallel()
	b := setup(t, true)
	m := b.work(t)
	b.claim(t, "w", "r", 1, true)
	for _, key := range b.rowsOf(t, tablestore.Escape(m.JobID)) {
		b.lose(t, key)
	}
	if missing, err := b.Ensure(t.Context(), &m); err != nil || missing {
		t.Errorf("of a step that runs: %t, %v", missing, err)
	}
	m.JobID = "gone"
	if missing, err := b.Ensure(t.Context(), &m); err != nil || missing {
		t.Errorf("of a job that is not there: %t, %v", missing, err)
	}
}

func TestClaim_LeavesOutATenantWhoseDispatchIsPaused(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	held := b.accept(t, "held", "ocr", "OCR")
	free := b.accept(t, "free", "ocr", "OCR")
	b.relay(t, held, free)
	b.held = "held"
	if views := b.claim(t, "w", "r1", 10, false); len(views) != 1 || views[0].Item.TenantID != "free" {
		t.Errorf("claimed %+v", views)
	}
	b.held = ""
	if views := b.claim(t, "w", "r2", 10, false); len(views) != 1 || views[0].Item.TenantID != "held" {
		t.Errorf("claimed %+v", views)
	}
}
