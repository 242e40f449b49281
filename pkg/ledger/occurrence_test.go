package ledger_test

import (
	"errors"
	"testing"

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
	_, op, err := b.Settle(t.Context(), "s", key.Row, missed)
	if err != nil || op.Key != key {
		t.Fatalf("the write of the outcome is %v (%v)", op, err)
	}
	job := b.Submit(cmd)
	if _, err := b.store.Commit(t.Context(), tablestore.Batch{op}); !errors.Is(err, tablestore.ErrConflict) {
		t.Errorf("the outcome of what was fired: %v", err)
	}
	row, op, err := b.Settle(t.Context(), "s", key.Row, missed)
	if err != nil || op.Key.Row != "" || row.Properties.Get("job_id").String() != job {
		t.Errorf("the occurrence, whose job is %q, is %v, and %v is to be written (%v)", job, row.Properties, op, err)
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
