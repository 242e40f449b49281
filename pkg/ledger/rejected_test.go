package ledger_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// rejection is a refused ACK of a job's first step, with a lease of that name.
func rejection(lease string) ledger.Rejection {
	return ledger.Rejection{StepID: "one", Kind: "ACK", AttemptNo: 1, LeaseDigest: lease, Cause: "stale_attempt"}
}

// Each is kept under the revision that it found, and the oldest make room for the newest.
func TestReject_KeepsTheNewest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		job := b.Submit(command("k"))
		for i := range 100 {
			time.Sleep(time.Millisecond)
			if i == 60 {
				b.Apply(job, statemachine.Pause{})
			}
			if err := b.Reject(t.Context(), &b.Read(job).Job, rejection(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		got, err := b.Rejected(t.Context(), job)
		if err != nil || len(got) != 64 {
			t.Fatalf("%d are kept: %v", len(got), err)
		}
		for i := range got {
			rev := int64(1)
			if 36+i >= 60 {
				rev = 2
			}
			if got[i].LeaseDigest != fmt.Sprint(36+i) || got[i].Rev != rev {
				t.Errorf("the %d. is %+v, want lease %d at rev %d", i, got[i], 36+i, rev)
			}
		}
		rows, err := tablestore.ScanAll(t.Context(), b.store, tablestore.Query{Table: "luciusledger", Partition: job, From: "CALLBACK:", To: "CALLBACL"})
		if err != nil || len(rows) != 64 {
			t.Errorf("%d rows: %v", len(rows), err)
		}
		if entries := got.History(1, 0); len(entries) != 40 || entries[0].Index != ledger.FirstRejected+61 || entries[0].Type != statemachine.EventCallbackRejected {
			t.Errorf("%d entries after rev 1, beginning with %+v", len(entries), entries[0])
		}
		if entries := got.History(0, 1); len(entries) != 24 || entries[0].Detail != "ACK" {
			t.Errorf("%d entries of rev 1", len(entries))
		}
	})
}

// The archive has the history in the order of the API, though a rejection is recorded apart from the changes.
func TestReject_TheArchiveIsInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var archived *ledger.Archived
		b := keeper(t, split(), func(_ context.Context, job *ledger.Archived) error { archived = job; return nil })
		id := b.Submit(described())
		if err := b.Reject(t.Context(), &b.Read(id).Job, rejection("early")); err != nil {
			t.Fatal(err)
		}
		b.Apply(id, statemachine.Cancel{})
		time.Sleep(time.Until(b.Entries(ledger.Retention, time.Now().Add(1000*time.Hour))[0].Due))
		b.purgeDue(t)
		at := slices.IndexFunc(archived.History, func(e ledger.HistoryEntry) bool { return e.Type == statemachine.EventCallbackRejected })
		if at < 0 || !slices.IsSortedFunc(archived.History, func(a, b ledger.HistoryEntry) int { return cmp.Compare(a.EventID(), b.EventID()) }) {
			t.Errorf("the archive has the history %+v", archived.History)
		}
	})
}

// Two processes that record at the same time give their callbacks different numbers.
func TestReject_TwoAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	job := b.Read(b.Submit(command("k"))).Job
	other := reopen(t, &hooked{Store: b.store.Store})
	var met atomic.Bool
	b.store.set(func(_ tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if met.CompareAndSwap(false, true) {
			if err := other.Reject(t.Context(), &job, rejection("other")); err != nil {
				t.Error(err)
			}
		}
		return commit()
	})
	if err := b.Reject(t.Context(), &job, rejection("one")); err != nil {
		t.Fatal(err)
	}
	got, err := b.Rejected(t.Context(), job.ID)
	if err != nil || len(got) != 2 || got[0].LeaseDigest != "other" || got[1].LeaseDigest != "one" {
		t.Fatalf("recorded %+v: %v", got, err)
	}
	if entries := got.History(0, 0); entries[0].EventID() >= entries[1].EventID() {
		t.Errorf("the ids are %s and %s", entries[0].EventID(), entries[1].EventID())
	}
}

// purgeDue purges the job whose retention is over.
func (b *bundle) purgeDue(t *testing.T) {
	t.Helper()
	for _, entry := range b.Entries(ledger.Retention, time.Now()) {
		if outcome, err := b.Purge(t.Context(), entry); err != nil || outcome != ledger.PurgeDone {
			t.Fatalf("%s, %v", outcome, err)
		}
	}
}

// A rejection is purged with its job. In the last minute before that none is recorded, so
// that none is left, even if its write lands late.
func TestReject_APurgedJobLeavesNoRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := split()
		var archived *ledger.Archived
		b := keeper(t, store, func(_ context.Context, job *ledger.Archived) error { archived = job; return nil })
		id := b.ended(t)
		job := b.Read(id)
		due := b.Entries(ledger.Retention, time.Now().Add(1000*time.Hour))[0].Due
		for _, before := range []time.Duration{time.Hour, time.Minute + time.Second, 59 * time.Second, 0} {
			time.Sleep(time.Until(due.Add(-before)))
			err := b.Reject(t.Context(), &job.Job, rejection(before.String()))
			if (err == nil) != (before > time.Minute) {
				t.Errorf("%s before the purge: %v", before, err)
			}
		}
		if got, err := b.Rejected(t.Context(), id); err != nil || len(got) != 2 || got[1].LeaseDigest != "1m1s" {
			t.Errorf("recorded %+v: %v", got, err)
		}
		time.Sleep(time.Second)
		b.purgeDue(t)
		if err := b.Reject(t.Context(), &job.Job, rejection("late")); err == nil {
			t.Error("a record of a purged job was accepted")
		}
		rows, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{Table: "luciusledger", Partition: id})
		if err != nil || len(rows) != 0 {
			t.Errorf("%d rows are left: %v", len(rows), err)
		}
		if last := archived.History[len(archived.History)-1]; last.Type != statemachine.EventCallbackRejected || last.ID != "one" {
			t.Errorf("the archive ends with %+v", last)
		}
	})
}
