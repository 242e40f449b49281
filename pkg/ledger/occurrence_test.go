package ledger_test

import (
	"errors"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// occurrence is the command of an occurrence, whose claim is the row FIRE:1 of a schedule, and the key of that row.
func occurrence(with *tablestore.Op) (ledger.Command, tablestore.Key) {
	cmd := command("h")
	cmd.Claim = &ledger.OccurrenceClaim{Row: "FIRE:1", With: with}
	cmd.Job.Occurrence = statemachine.Occurrence{ScheduleID: "s", Version: 1}
	return cmd, tablestore.Key{Table: "luciuscron", Partition: "s", Row: "FIRE:1"}
}

// An occurrence that is fired before the outcome of [ledger.Ledger.Settle] is written keeps its job.
func TestSettle_LeavesWhatIsFiredMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd, key := occurrence(nil)
	missed := tablestore.Properties{{Name: "outcome", Value: tablestore.String("missed")}}
	_, op, err := b.Settle(t.Context(), "t", "s", key.Row, missed)
	if err != nil || op.Key != key {
		t.Fatalf("the write of the outcome is %v (%v)", op, err)
	}
	job := b.Submit(cmd)
	if _, err := b.store.Commit(t.Context(), tablestore.Batch{op}); !errors.Is(err, tablestore.ErrConflict) {
		t.Errorf("the outcome of what was fired: %v", err)
	}
	row, op, err := b.Settle(t.Context(), "t", "s", key.Row, missed)
	if err != nil || op.Key.Row != "" || row.Properties.Get("job_id").String() != job {
		t.Errorf("the occurrence, whose job is %q, is %v, and %v is to be written (%v)", job, row.Properties, op, err)
	}
}

// A job whose accept ended after it was listed, and before anything else led to it, is listed no more once its occurrence is decided.
func TestSettle_UnlistsAnAbandonedAccept(t *testing.T) {
	t.Parallel()
	store := split()
	b := open(t, store, ledger.Config{})
	cmd, key := occurrence(nil)
	cmd.Job.CorrelationID = "c"
	store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if table := batch[0].Key.Table; table == "luciusledger" || table == "luciusschedule" {
			return nil, tablestore.ErrUnavailable
		}
		return commit()
	})
	if _, err := b.Accept(t.Context(), cmd); err == nil {
		t.Fatal("the command was accepted")
	}
	store.set(nil)
	listed := func() (found int) {
		for _, q := range []ledger.IndexQuery{
			{TenantID: cmd.Job.TenantID, Month: time.Now(), Limit: 10}, {TenantID: cmd.Job.TenantID, CorrelationID: "c", Limit: 10},
		} {
			entries, _, err := b.Index(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			found += len(entries)
		}
		return found
	}
	if before := listed(); before != 2 {
		t.Fatalf("the job is in %d lists, want 2", before)
	}
	if _, _, err := b.Settle(t.Context(), cmd.Job.TenantID, "s", key.Row, nil); err != nil {
		t.Fatal(err)
	}
	if after := listed(); after != 0 {
		t.Errorf("the job is still in %d lists", after)
	}
}

// A claim is written only as long as the row that goes with it is unchanged.
func TestAccept_ClaimsAnOccurrenceWithAnotherRow(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		b := reopen(t, &hooked{Store: store})
		other := tablestore.Key{Table: "luciuscron", Partition: "s", Row: "BACKFILL:1"}
		b.Put(other, tablestore.Properties{{Name: "due", Value: tablestore.Int(1)}})
		with := &tablestore.Op{Verb: tablestore.Replace, Key: other, ETag: b.Row(other).ETag}
		b.Put(other, tablestore.Properties{{Name: "due", Value: tablestore.Int(2)}})

		cmd, key := occurrence(with)
		if _, err := b.Accept(t.Context(), cmd); !errors.Is(err, ledger.ErrClaimConflict) {
			t.Errorf("after a change of the other row: %v", err)
		}
		if _, err := store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrNotFound) || len(b.LiveJobs()) > 0 {
			t.Errorf("the refused claim is written (%v), jobs %v", err, b.LiveJobs())
		}
		with.ETag, with.Properties = b.Row(other).ETag, b.Row(other).Properties
		id := b.Submit(cmd)
		if row := b.Row(key); row.Properties.Get("job_id").String() != id {
			t.Errorf("the claim of job %s: %v", id, row.Properties)
		}
		if with.ETag != b.Row(other).ETag {
			t.Errorf("the version of the other row is %s, and the accept says %s", b.Row(other).ETag, with.ETag)
		}
	})
}
