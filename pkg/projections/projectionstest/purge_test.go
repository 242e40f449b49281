package projectionstest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// rowsOf counts the rows of a table.
func (b *bundle) rowsOf(t *testing.T, table string) int {
	t.Helper()
	rows, err := b.memory.(tablestore.Walker).Walk(t.Context(), tablestore.Walk{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	return len(rows)
}

// purge purges what is due, and returns the first error.
func (b *bundle) purge(t *testing.T) error {
	t.Helper()
	for shard := range b.Shards() {
		entries, _, err := b.Due(t.Context(), ledger.Retention, shard, time.Now(), 100, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if _, err := b.Purge(t.Context(), entry); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestForget_LeavesNothingOfTheJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		gone := b.Submit(command("gone"))
		b.live(t, gone, "rejected")
		b.live(t, gone, "cancel")
		time.Sleep(30 * time.Minute)
		stays := b.Submit(command("stays")) // Of the same tenant and month.
		b.live(t, stays, "cancel")
		time.Sleep(31 * time.Minute)
		before := b.rowsOf(t, "luciusjobs") + b.rowsOf(t, "luciusoutbox")
		if err := b.purge(t); err != nil {
			t.Fatal(err)
		}
		if after := b.rowsOf(t, "luciusjobs") + b.rowsOf(t, "luciusoutbox"); before != 4 || after != 2 {
			t.Errorf("%d rows of two jobs became %d", before, after)
		}
		b.assertShown(t, "one is purged")
		time.Sleep(time.Hour)
		if err := b.purge(t); err != nil {
			t.Fatal(err)
		}
		for table := range projected {
			if n := b.rowsOf(t, table); n != 0 {
				t.Errorf("%d rows are left in %s", n, table)
			}
		}
	})
}

// After an interrupted purge the job is gone, and the next purge continues.
func TestForget_GoesOnAfterAFault(t *testing.T) {
	t.Parallel()
	for table := range projected {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t)
				jobID := b.Submit(command("c"))
				b.live(t, jobID, "cancel")
				time.Sleep(2 * time.Hour)
				b.store.set(func(batch tablestore.Batch) error {
					if batch[0].Key.Table == table {
						return tablestore.ErrUnavailable
					}
					return nil
				})
				if err := b.purge(t); !errors.Is(err, tablestore.ErrUnavailable) {
					t.Fatalf("answered %v", err)
				}
				if _, err := b.Job(t.Context(), jobID); !errors.Is(err, ledger.ErrJobNotFound) {
					t.Errorf("the job is %v", err)
				}
				b.store.set(nil)
				time.Sleep(time.Minute) // Until then, the purge may still be under way elsewhere.
				if err := b.purge(t); err != nil {
					t.Fatal(err)
				}
				b.assertShown(t, "purged again")
			})
		})
	}
}

// An entry that fires after the purge projects no row of the job.
func TestProject_APurgedJobStaysForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		jobID := b.Submit(command("c"))
		var left []ledger.Entry
		b.store.set(func(batch tablestore.Batch) error {
			if batch[0].Key.Table == "luciusevents" {
				return tablestore.ErrUnavailable
			}
			return nil
		})
		b.Send(jobID, lives("published", b.Handoff.Last()))
		b.store.set(nil)
		time.Sleep(6 * time.Second)
		for shard := range b.Shards() {
			entries, _, err := b.Due(t.Context(), ledger.Timer, shard, time.Now(), 100, "")
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, entries...)
		}
		b.live(t, jobID, "cancel")
		b.Expire(ledger.Timer)
		b.Expire(ledger.Timer)
		time.Sleep(2 * time.Hour)
		if err := b.purge(t); err != nil {
			t.Fatal(err)
		}
		for _, entry := range left {
			if _, _, err := b.Fire(t.Context(), entry, verbs["deadline"](b.Handoff.Last())); err != nil {
				t.Error(err)
			}
		}
		if n := b.rowsOf(t, "luciusjobs"); n != 0 || len(left) == 0 {
			t.Errorf("%d rows came back, by %d entries", n, len(left))
		}
	})
}
