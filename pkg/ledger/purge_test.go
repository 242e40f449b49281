package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// wholly returns a process on an atomic store that keeps ended jobs for an hour.
func wholly(t *testing.T, store tablestore.Store, cfg ledger.Config) *bundle {
	t.Helper()
	cfg.Store, cfg.Shared, cfg.Shards = store, true, 1
	if cfg.Retention == 0 {
		cfg.Retention = time.Hour
	}
	return &bundle{Ledger: ledgertest.Open(t, cfg)}
}

// memory is an empty atomic store.
func memory() tablestore.AtomicStore {
	return ledgertest.Atomic().(tablestore.AtomicStore)
}

// endedJobs are n jobs that ended just now.
func (b *bundle) endedJobs(t *testing.T, n int) (ids []string) {
	t.Helper()
	for i := range n {
		cmd := command(fmt.Sprint("many ", i))
		cmd.Job.CallbackURLs, cmd.Job.CorrelationID = []string{"https://a.example/hook"}, "corr"
		cmd.Job.DocID, cmd.Job.Tags = "doc", "customer=42\nenv=prod"
		id := b.Submit(cmd)
		b.Apply(id, statemachine.Cancel{})
		ids = append(ids, id)
	}
	return ids
}

// outcomes of a purge, which must have no error.
func outcomes(t *testing.T, results []ledger.PurgeResult) []ledger.Purged {
	t.Helper()
	found := make([]ledger.Purged, len(results))
	for i, result := range results {
		if result.Err != nil {
			t.Errorf("result %d: %v", i, result.Err)
		}
		found[i] = result.Outcome
	}
	return found
}

// everything returns the keys of all rows but those that belong to no job.
func everything(t *testing.T, store tablestore.Store) (keys []string) {
	t.Helper()
	walker, _ := tablestore.As[tablestore.Walker](store)
	for _, table := range []string{"luciusledger", "jobidempotency", "luciusschedule", "luciusjobindex", "luciusqueue"} {
		rows, err := walker.Walk(t.Context(), tablestore.Walk{Table: table})
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			if key := rows[i].Key; !slices.Contains([]string{"meta", "tenants", "catalog"}, key.Partition) {
				keys = append(keys, key.String())
			}
		}
	}
	return keys
}

// On an atomic store the purge of many jobs is one write, and leaves no row.
func TestPurge_OfManyJobsIsOneWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		counted, counter := storetest.Counting(store)
		b := wholly(t, counted, ledger.Config{})
		b.endedJobs(t, 50)
		live := b.Submit(command("live"))
		b.fireWebhooks(t)
		kept := len(everything(t, store))
		time.Sleep(2 * time.Hour)
		due := b.Entries(ledger.Retention, time.Now())
		counter.Reset()
		got := outcomes(t, b.Ledger.Purge(t.Context(), due))
		if len(got) != 50 || slices.ContainsFunc(got, func(p ledger.Purged) bool { return p != ledger.PurgeDone }) {
			t.Errorf("outcomes %v", got)
		}
		if spent := counter.Counts(); spent.Commits != 1 || spent.Gets > 2 || spent.Scans != 0 {
			t.Errorf("50 jobs cost %+v", spent)
		}
		if _, err := b.Job(t.Context(), live); err != nil {
			t.Errorf("the live job: %v", err)
		}
		b.Apply(live, statemachine.Cancel{})
		b.fireWebhooks(t)
		time.Sleep(2 * time.Hour)
		b.Ledger.Purge(t.Context(), b.Entries(ledger.Retention, time.Now()))
		if left := everything(t, store); len(left) != 0 {
			t.Errorf("of %d rows are left: %q", kept, left)
		}
	})
}

// fireWebhooks gives up the webhooks that are due.
func (b *bundle) fireWebhooks(t *testing.T) {
	t.Helper()
	for _, entry := range b.Entries(ledger.Webhook, time.Now()) {
		row, _, err := b.TakeWebhook(t.Context(), entry, time.Minute)
		if err != nil || row == nil {
			t.Fatalf("webhook of job %s: %v", entry.JobID, err)
		}
		next := *row
		next.State, next.NextAttemptAt = ledger.WebhookExhausted, time.Time{}
		if _, err := b.RecordWebhookAttempt(t.Context(), row, &next); err != nil {
			t.Fatal(err)
		}
	}
}

// Another replica purges some of the jobs between the reads and the write: these have been
// purged elsewhere, which is no error, and the others are purged nevertheless.
func TestPurge_AConflictLosesNoOtherJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, meanwhile := memory(), func() {}
		store := storetest.BeforeCommit(memory, func(tablestore.Batch) error {
			defer meanwhile()
			meanwhile = func() {}
			return nil
		})
		b, replica := wholly(t, store, ledger.Config{}), wholly(t, store, ledger.Config{})
		b.endedJobs(t, 6)
		time.Sleep(2 * time.Hour)
		b.fireWebhooks(t)
		due := b.Entries(ledger.Retention, time.Now())
		meanwhile = func() { replica.Ledger.Purge(t.Context(), due[1:3]) }
		got := outcomes(t, b.Ledger.Purge(t.Context(), due))
		want := []ledger.Purged{
			ledger.PurgeDone, ledger.PurgeElsewhere, ledger.PurgeElsewhere, ledger.PurgeDone, ledger.PurgeDone, ledger.PurgeDone,
		}
		if !slices.Equal(got, want) {
			t.Errorf("outcomes %v, want %v", got, want)
		}
		if left := everything(t, memory); len(left) != 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// A job may have two entries, if two replicas put its purge off at the same time. They purge the job once,
// and keep no other job of the page.
func TestPurge_OfAJobWithTwoEntries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		var archived atomic.Int64
		b := wholly(t, store, ledger.Config{Archive: func(context.Context, *ledger.Archived) error {
			archived.Add(1)
			return nil
		}})
		b.endedJobs(t, 3)
		time.Sleep(2 * time.Hour)
		b.fireWebhooks(t)
		due := b.Entries(ledger.Retention, time.Now())
		again := due[0]
		again.Due = again.Due.Add(5 * time.Millisecond)
		b.Put(entryKey(&again), b.Row(entryKey(&due[0])).Properties)
		due = append(due, again)
		want := []ledger.Purged{ledger.PurgeElsewhere, ledger.PurgeDone, ledger.PurgeDone, ledger.PurgeDone}
		if got := outcomes(t, b.Ledger.Purge(t.Context(), due)); !slices.Equal(got, want) {
			t.Errorf("outcomes %v, want %v", got, want)
		}
		if left := everything(t, store); len(left) != 0 || archived.Load() != 3 {
			t.Errorf("%d jobs are archived; left: %q", archived.Load(), left)
		}
	})
}

// Only some jobs of a page may be purged. The entry of each job that needs no further try is
// deleted.
func TestPurge_DecidesOnEachJobOfAPage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, full := memory(), errors.New("no space")
		var unfit string
		b := wholly(t, store, ledger.Config{Archive: func(_ context.Context, job *ledger.Archived) error {
			if job.Job.ID == unfit {
				return full
			}
			return nil
		}})
		longer := wholly(t, store, ledger.Config{Retention: 4 * time.Hour})
		ids := b.endedJobs(t, 3)
		unfit = ids[2]
		live := b.Submit(command("live"))
		time.Sleep(2 * time.Hour)
		due := b.Entries(ledger.Retention, time.Now())
		due = append(due, ledger.Entry{Kind: ledger.Retention, JobID: live, Due: time.Now(), Nonce: "0"},
			ledger.Entry{Kind: ledger.Retention, JobID: "gone", Due: time.Now(), Nonce: "0"})
		if got := outcomes(t, longer.Ledger.Purge(t.Context(), due[:1])); got[0] != ledger.PurgeLater {
			t.Errorf("with a longer retention: %s", got[0])
		}
		b.fireWebhooks(t)
		results := b.Ledger.Purge(t.Context(), due[1:])
		if !errors.Is(results[1].Err, full) {
			t.Errorf("without its archive: %v", results[1].Err)
		}
		results[1].Err = nil
		want := []ledger.Purged{ledger.PurgeDone, ledger.PurgeDone, ledger.PurgeNever, ledger.PurgeElsewhere}
		if got := outcomes(t, results); !slices.Equal(got, want) {
			t.Errorf("outcomes %v, want %v", got, want)
		}
		for i, id := range ids {
			if _, err := b.Job(t.Context(), id); (err == nil) != (i != 1) {
				t.Errorf("job %d: %v", i, err)
			}
		}
		if left := b.Entries(ledger.Retention, time.Now()); len(left) != 1 || left[0].JobID != unfit {
			t.Errorf("due: %v", left)
		}
		time.Sleep(2 * time.Hour)
		if left := b.Entries(ledger.Retention, time.Now()); len(left) != 2 {
			t.Errorf("due after the longer retention: %v", left)
		}
	})
}

// A store that does not answer leaves every job and every entry, also if only the reply is lost.
func TestPurge_AFaultOfTheStoreIsRepeatedByTheNextPass(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]storetest.Fault{
		"the first read fails": {Call: storetest.GetCall}, "the second read fails": {Call: storetest.GetCall, Nth: 2},
		"the write fails": {Call: storetest.CommitCall}, "its reply is lost": {Call: storetest.CommitCall, After: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := memory()
				faulty, faults := storetest.Faulty(store)
				b := wholly(t, faulty, ledger.Config{})
				b.endedJobs(t, 3)
				time.Sleep(2 * time.Hour)
				b.fireWebhooks(t)
				due := b.Entries(ledger.Retention, time.Now())
				faults.Plan(fault)
				for i, result := range b.Ledger.Purge(t.Context(), due) {
					if !errors.Is(result.Err, storetest.ErrInjected) {
						t.Errorf("result %d: %+v", i, result)
					}
				}
				if left := len(b.Entries(ledger.Retention, time.Now())); left != 3 && !fault.After {
					t.Errorf("%d entries are left", left)
				}
				b.Ledger.Purge(t.Context(), b.Entries(ledger.Retention, time.Now()))
				if left := everything(t, store); len(left) != 0 {
					t.Errorf("left: %q", left)
				}
			})
		})
	}
}

// The key of a job may have come to name another command, whose record stays.
func TestPurge_LeavesAForeignRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := wholly(t, memory(), ledger.Config{Retention: 10 * time.Hour, KeyTTL: time.Hour})
		old := b.Submit(keyed("first"))
		b.Apply(old, statemachine.Cancel{})
		time.Sleep(2 * time.Hour)
		fresh := b.MustAccept(keyed("second"))
		time.Sleep(9 * time.Hour)
		if got := outcomes(t, b.Ledger.Purge(t.Context(), b.Entries(ledger.Retention, time.Now()))); !slices.Equal(got, []ledger.Purged{ledger.PurgeDone}) {
			t.Fatalf("outcomes %v", got)
		}
		if again := b.MustAccept(keyed("second")); !again.Replayed || again.Job.ID != fresh.Job.ID {
			t.Errorf("after the purge of the old job: %+v", again)
		}
	})
}

// On a store that is not atomic, a process leaves a job to the one that purges it, until that
// must have crashed.
func TestPurge_LeavesAJobToTheProcessThatPurgesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := split()
		cfg := ledger.Config{Shards: 1, Retention: time.Hour}
		b, replica := open(t, store, cfg), open(t, store, cfg)
		b.ended(t)
		time.Sleep(2 * time.Hour)
		entry := b.Entries(ledger.Retention, time.Now())[0]
		var seen []ledger.Purged
		look := func() {
			outcome, err := replica.Purge(t.Context(), entry)
			if err != nil {
				t.Error(err)
			}
			seen = append(seen, outcome)
		}
		writes := 0
		store.set(func(_ tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if writes++; writes == 1 { // The claim: the other process is before this one.
				store.set(nil)
				look()
			}
			return commit()
		})
		if outcome, err := b.Purge(t.Context(), entry); err != nil || outcome != ledger.PurgeElsewhere {
			t.Errorf("behind another process: %s, %v", outcome, err)
		}

		b.ended(t)
		time.Sleep(2 * time.Hour)
		entry = b.Entries(ledger.Retention, time.Now())[0]
		away := func(tablestore.Batch, commit) ([]tablestore.ETag, error) { return nil, tablestore.ErrUnavailable }
		store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if commits(batch) { // The tombstone is the last write before this process crashes.
				defer store.set(away)
			}
			return commit()
		})
		if _, err := b.Purge(t.Context(), entry); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("the crash: %v", err)
		}
		store.set(nil)
		look()
		time.Sleep(time.Minute)
		look()
		if want := []ledger.Purged{ledger.PurgeDone, ledger.PurgeElsewhere, ledger.PurgeDone}; !slices.Equal(seen, want) {
			t.Errorf("the other process saw %v, want %v", seen, want)
		}
	})
}

// An entry that is not due any more, because the clock has gone back, stays.
func TestPurge_AClockThatGoesBackLosesNoEntry(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]tablestore.Store{"atomic": memory(), "split": split()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := wholly(t, store, ledger.Config{})
				id := b.endedJobs(t, 1)[0]
				job := b.Read(id)
				entry := ledger.Entry{Kind: ledger.Retention, JobID: id, Due: job.Job.CompletedAt.Add(time.Hour), Nonce: "0"}
				if got := outcomes(t, b.Ledger.Purge(t.Context(), []ledger.Entry{entry})); !slices.Equal(got, []ledger.Purged{ledger.PurgeLater}) {
					t.Errorf("outcomes %v", got)
				}
				time.Sleep(2 * time.Hour)
				if due := b.Entries(ledger.Retention, time.Now()); len(due) != 1 {
					t.Errorf("due: %v", due)
				}
			})
		})
	}
}
