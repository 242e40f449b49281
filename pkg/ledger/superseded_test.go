package ledger_test

import (
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

// rerun reruns the job.
func (b *bundle) rerun(t *testing.T, jobID string, from ledger.RerunFrom) statemachine.Job {
	t.Helper()
	accepted, err := b.Rerun(t.Context(), ledger.Rerun{JobID: jobID, From: from})
	if err != nil {
		t.Fatalf("rerun: %v", err)
	}
	return accepted.Job
}

// supersededBy is the ended job's rerun, and the one that the index of its state lists.
func (b *bundle) supersededBy(t *testing.T, jobID string) (verified, listed string) {
	t.Helper()
	agg, err := b.Job(t.Context(), jobID)
	if err == nil {
		verified, err = b.SupersededBy(t.Context(), &agg.Job)
	}
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := b.Index(t.Context(), ledger.IndexQuery{
		TenantID: "tenant_a", Month: ledger.IDTime(jobID), State: agg.Job.State, Reruns: true, Limit: 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.JobID == jobID {
			listed = entry.SupersededBy
		}
	}
	return verified, listed
}

// reruns is the partition of the rows that list the reruns of this month's jobs.
func reruns() map[string][]string {
	return map[string][]string{"luciusjobindex": {"reruns:tenant_a:" + time.Now().Format("200601")}}
}

// The reruns of a job form one chain, whichever step they start at: only the last one can
// be open.
func TestRerun_TheLastOfAChainIsOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	other := b.Submit(command("other")) // It is between them in the index.
	b.failFinal(t)
	first := b.rerun(t, old, ledger.FromFailed)
	if by, listed := b.supersededBy(t, old); by != first.ID || listed != first.ID {
		t.Errorf("the job is superseded by %q, listed %q, want %s", by, listed, first.ID)
	}
	b.failFinal(t)
	second := b.rerun(t, old, ledger.FromStart)
	if second.RerunOf != old || second.Supersedes != first.ID {
		t.Errorf("the second rerun is of %s and supersedes %s, want %s and %s", second.RerunOf, second.Supersedes, old, first.ID)
	}
	if again := b.rerun(t, old, ledger.FromFailed); again.ID != first.ID {
		t.Errorf("a repeat made %s", again.ID)
	}
	b.failFinal(t)
	for job, want := range map[string]string{old: first.ID, first.ID: second.ID, second.ID: "", other: ""} {
		if by, listed := b.supersededBy(t, job); by != want || listed != want {
			t.Errorf("job %s is superseded by %q, listed %q, want %q", job, by, listed, want)
		}
	}
}

// If other jobs in the range of a page have many reruns, those of each entry are read instead.
func TestIndex_DoesNotReadTheRerunsOfManyOtherJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	other := b.Submit(command("other"))
	b.failFinal(t)
	b.Submit(command("last"))
	b.failFinal(t)
	rerun := b.rerun(t, old, ledger.FromFailed)
	for i := range 2000 {
		b.Put(tablestore.Key{
			Table: "luciusjobindex", Partition: "reruns:tenant_a:" + ledger.IDTime(other).Format("200601"), Row: fmt.Sprintf("%s:%04d", ledger.ListOrder(other), i),
		}, tablestore.Properties{
			{Name: "job_id", Value: tablestore.String("gone")}, {Name: "supersedes", Value: tablestore.String("gone")}, {Name: "cancelled", Value: tablestore.Bool(false)},
		})
	}
	entries, _, err := b.Index(t.Context(), ledger.IndexQuery{
		TenantID: "tenant_a", Month: ledger.IDTime(old), State: statemachine.JobFailedFinal, Reruns: true, Limit: 10,
	})
	if err != nil || len(entries) != 3 || entries[2].JobID != old || entries[2].SupersededBy != rerun.ID || entries[0].SupersededBy != "" {
		t.Errorf("the entries are %+v, %v", entries, err)
	}
}

// A cancelled rerun supersedes nothing, and its own rerun takes its place.
func TestRerun_ACancelledOneLeavesTheFailureOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	first := b.rerun(t, old, ledger.FromFailed)
	b.Apply(first.ID, statemachine.Cancel{})
	if by, listed := b.supersededBy(t, old); by != "" || listed != "" {
		t.Errorf("the job is superseded by %q, listed %q, and its rerun was cancelled", by, listed)
	}
	second := b.rerun(t, first.ID, ledger.FromFailed)
	if by, listed := b.supersededBy(t, old); by != second.ID || listed != second.ID || second.Supersedes != old {
		t.Errorf("the job is superseded by %q, listed %q, want %s", by, listed, second.ID)
	}
	if by, listed := b.supersededBy(t, first.ID); by != second.ID || listed != second.ID {
		t.Errorf("the cancelled rerun is superseded by %q, listed %q, want %s", by, listed, second.ID)
	}
	b.failFinal(t)
	third := b.rerun(t, old, ledger.FromStart)
	if by, listed := b.supersededBy(t, second.ID); by != third.ID || listed != third.ID {
		t.Errorf("the second rerun is superseded by %q, listed %q, want %s", by, listed, third.ID)
	}
}

// A second rerun, from another starting point, still counts after the first was cancelled.
func TestRerun_ACancelledOneDoesNotAffectAnother(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	first := b.rerun(t, old, ledger.FromFailed)
	second := b.rerun(t, old, ledger.FromStart)
	b.Apply(first.ID, statemachine.Cancel{})
	for _, id := range []string{old, first.ID} {
		if by, listed := b.supersededBy(t, id); by != second.ID || listed != second.ID {
			t.Errorf("%s is superseded by %q, listed %q, want %s", id, by, listed, second.ID)
		}
	}
}

// A write of the accept that lands after the cancellation removes the mark of the rerun's row.
func TestIndex_ACancelledRerunDoesNotSupersedeItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	first := b.rerun(t, old, ledger.FromFailed)
	key := tablestore.Key{
		Table: "luciusjobindex", Partition: "reruns:tenant_a:" + ledger.IDTime(old).Format("200601"),
		Row: ledger.ListOrder(old) + ":" + ledger.ListOrder(first.ID),
	}
	before := b.Row(key).Properties
	b.Apply(first.ID, statemachine.Cancel{})
	b.Put(key, before)
	if by, listed := b.supersededBy(t, first.ID); by != "" || listed != "" {
		t.Errorf("the cancelled rerun is superseded by %q, listed %q", by, listed)
	}
}

// The row is marked before the cancellation is committed: without that commit the rerun
// still supersedes its job.
func TestRerun_ACancellationThatCrashedLeavesItUnderWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	first := b.rerun(t, old, ledger.FromFailed)
	b.lose(t, func() {
		if _, err := b.Change(t.Context(), first.ID, statemachine.Cancel{}); err == nil {
			t.Fatal("the cancellation was meant to fail")
		}
	})
	if by, listed := b.supersededBy(t, old); by != first.ID || listed != first.ID {
		t.Errorf("the job is superseded by %q, listed %q, want %s", by, listed, first.ID)
	}
}

// A rerun whose accept crashed before its commit supersedes nothing. The next rerun rolls
// the accept forward; without one, its schedule entry deletes the row that lists it.
func TestRerun_AnAcceptThatCrashedSupersedesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, repeated := range []bool{true, false} {
			b := setup(t)
			old := b.failedAtTwo(t)
			b.lose(t, func() {
				if _, err := b.Rerun(t.Context(), ledger.Rerun{JobID: old, From: ledger.FromFailed}); err == nil {
					t.Fatal("the accept was meant to fail")
				}
			})
			by, listed := b.supersededBy(t, old)
			if by != "" || listed == "" {
				t.Errorf("after the crash: superseded by %q, listed %q", by, listed)
			}
			if repeated {
				want := b.rerun(t, old, ledger.FromFailed).ID
				if by, now := b.supersededBy(t, old); by != want || now != want || listed != want {
					t.Errorf("after the repeat: superseded by %q, listed %q, want %s", by, now, want)
				}
				continue
			}
			time.Sleep(ledger.RerunGrace)
			b.Expire()
			b.Expire()
			if by, listed := b.supersededBy(t, old); by != "" || listed != "" || b.rows(t, reruns()) != 0 {
				t.Errorf("after the grace: superseded by %q, listed %q", by, listed)
			}
		}
	})
}

// A row without the schedule entry that deletes it would hide the failure forever.
func TestRerun_IsListedAfterItsEntry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if batch[0].Key.Table == "luciusschedule" {
			return nil, tablestore.ErrUnavailable
		}
		return commit()
	})
	if _, err := b.Rerun(t.Context(), ledger.Rerun{JobID: old, From: ledger.FromFailed}); err == nil {
		t.Fatal("the accept was meant to fail")
	}
	b.store.set(nil)
	if by, listed := b.supersededBy(t, old); by != "" || listed != "" {
		t.Errorf("superseded by %q, listed %q", by, listed)
	}
}

// After an unknown outcome the accept is sent again, with its entry and its row.
func TestRerun_IsListedWhenItIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"jobidempotency", "luciusschedule", "luciusjobindex", "luciusledger"} {
		b := setup(t)
		old := b.failedAtTwo(t)
		var met atomic.Bool // The writes before a commit are made concurrently.
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			tags, err := commit()
			if batch[0].Key.Table == table && met.CompareAndSwap(false, true) {
				return nil, tablestore.ErrUnknown
			}
			return tags, err
		})
		first := b.rerun(t, old, ledger.FromFailed)
		if by, listed := b.supersededBy(t, old); !met.Load() || by != first.ID || listed != first.ID {
			t.Errorf("%s: superseded by %q, listed %q, want %s", table, by, listed, first.ID)
		}
		if !slices.ContainsFunc(b.entries(), func(e ledger.Entry) bool { return e.JobID == first.ID }) {
			t.Errorf("%s: the rerun has no schedule entry", table)
		}
	}
}

func TestPurge_OfARerunLeavesNoRowOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		old := b.ended(t)
		b.Apply(b.rerun(t, old, ledger.FromStart).ID, statemachine.Cancel{})
		if n := b.rows(t, reruns()); n != 1 {
			t.Errorf("%d rows list the rerun", n)
		}
		time.Sleep(3 * time.Hour)
		b.purgeDue(t)
		if n := b.rows(t, reruns()); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}
