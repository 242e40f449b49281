package ledger_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// dated is a command whose job may begin, and expires, after that much time; 0 sets no date.
func dated(begins, expires time.Duration) ledger.Command {
	cmd, now := described(), time.Now().UTC().Truncate(time.Millisecond)
	if begins > 0 {
		cmd.Job.NotBefore = now.Add(begins)
	}
	if expires > 0 {
		cmd.Job.NotAfter = now.Add(expires)
	}
	return cmd
}

// Until its date, only one entry leads to the job, in the key range of the dates.
func TestDate_BeginsTheJob(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		synctest.Test(t, func(t *testing.T) {
			l := ledgertest.Open(t, ledger.Config{Store: store, Shards: 4})
			id := l.Submit(dated(30*24*time.Hour, 0))
			never := time.Now().Add(366 * 24 * time.Hour)
			if timers, dates := l.Entries(ledger.Timer, never), l.Entries(ledger.Date, never); len(timers) != 0 || len(dates) != 1 {
				t.Fatalf("%d timers and %d dates lead to the job", len(timers), len(dates))
			}
			time.Sleep(30*24*time.Hour - time.Second)
			if got := l.Expire(); len(got) != 0 {
				t.Errorf("before the date: fired %v", got)
			}
			time.Sleep(time.Second)
			if got := l.Expire(); got[ledger.Acted] != 1 {
				t.Errorf("at the date: fired %v", got)
			}
			if _, queued := l.Read(id).Queued(); !queued || len(l.Entries(ledger.Date, never)) != 0 {
				t.Errorf("the job is %s, and %d dates are left", l.Read(id).Job.State, len(l.Entries(ledger.Date, never)))
			}
		})
	})
}

// The accept of a job that waits is given up within seconds, whatever its date, because the entry of
// the date does not name what the accept reserved. Nothing is left of it once its date is past.
func TestDate_ALostAcceptIsAbandonedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		b.store.limit.Store(1)
		late := b.loseAccept(t, dated(72*time.Hour, 0))
		time.Sleep(11 * time.Second)
		if got := b.Expire(); got[ledger.Orphaned] != 1 {
			t.Errorf("after ten seconds: fired %v", got)
		}
		if got := b.Expire(); got[ledger.Stale] != 1 || len(b.LiveJobs()) != 0 {
			t.Errorf("after the tombstone: fired %v, live %v", got, b.LiveJobs())
		}
		if err := late(); err == nil {
			t.Error("the late commit came through")
		}
		if again := b.MustAccept(dated(0, 0)); again.Replayed {
			t.Error("the same command is answered with the job that was abandoned")
		}
		time.Sleep(4 * time.Hour)
		b.purgeDue(t)
		time.Sleep(68 * time.Hour)
		if got := b.Expire(ledger.Date); got[ledger.Early] != 1 {
			t.Errorf("at the date: fired %v", got)
		}
		time.Sleep(5 * time.Minute)
		if got := b.Expire(ledger.Date); got[ledger.Stale] != 1 || len(b.Entries(ledger.Date, time.Now())) != 0 {
			t.Errorf("after the grace: fired %v", got)
		}
	})
}

// An accept that is sent again may take the slot of its job after the first submission made the job, and
// the job has ended.
func TestDate_SlotOfAnAcceptThatIsSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pulling(t, split())
		var first commit
		var id string
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			switch {
			case commits(batch) && first == nil:
				first, id = commit, batch[0].Key.Partition
				return nil, tablestore.ErrUnknown
			case first != nil && batch[0].Key.Table == "luciusschedule":
				b.store.set(nil)
				if _, err := first(); err != nil {
					t.Error(err)
				}
				b.Apply(id, statemachine.Cancel{})
			}
			return commit()
		})
		b.MustAccept(dated(time.Hour, 0))
		if job := b.Read(id).Job; job.State != statemachine.JobCancelled {
			t.Fatalf("the job is %s", job.State)
		}
		time.Sleep(11 * time.Second)
		b.Expire()
		if live := b.LiveJobs(); len(live) != 0 {
			t.Errorf("slots are held by %v", live)
		}
	})
}

// The entry of an earlier date leads to the job at a later one. A date that comes back gets another
// entry, so that a late deletion of its first one deletes nothing else.
func TestReschedule_ADateThatComesBackHasAnotherEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		id := b.Submit(dated(2*time.Hour, 0))
		first := b.Entries(ledger.Date, time.Now().Add(3*time.Hour))[0]
		later, earlier := first.Due, first.Due.Add(-time.Hour)
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if batch[0].Verb == tablestore.Discard {
				return nil, tablestore.ErrUnavailable // The obsolete entry stays.
			}
			return commit()
		})
		for _, at := range []*time.Time{&earlier, &later} {
			if result := b.Send(id, statemachine.Reschedule{NotBefore: at}); result.Outcome != statemachine.Applied {
				t.Fatalf("rescheduled to %s: %+v", at, result)
			}
		}
		b.store.set(nil)
		time.Sleep(time.Hour)
		if got := b.Expire(ledger.Date); got[ledger.Acted] != 1 || !b.Read(id).Job.Parked {
			t.Errorf("at the earlier date: fired %v", got)
		}
		entries := b.Entries(ledger.Date, later)
		if len(entries) != 2 || entries[0].Nonce == entries[1].Nonce {
			t.Fatalf("the entries are %+v", entries)
		}
		time.Sleep(time.Hour)
		if got := b.Expire(ledger.Date); got[ledger.Acted] != 1 || got[ledger.Stale] != 1 || b.Read(id).Job.Parked {
			t.Errorf("at the later date: fired %v", got)
		}
	})
}

// A job that no worker claims by its not_after is taken out of the pull queue.
func TestExpiry_TakesTheItemOutOfTheQueue(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		synctest.Test(t, func(t *testing.T) {
			l := ledgertest.Open(t, ledger.Config{Store: store, Shards: 1})
			id := l.Submit(dated(0, time.Minute))
			for range 3 { // On a split store, an entry checks once whether the hint exists.
				time.Sleep(20 * time.Second)
				l.Expire()
			}
			l.Expire()
			job := l.Read(id).Job
			if job.State != statemachine.JobFailedFinal || job.ErrorCode != statemachine.ErrorExpired || len(l.LiveJobs()) != 0 {
				t.Errorf("the job is %s %s; live are %v", job.State, job.ErrorCode, l.LiveJobs())
			}
			kind := ledger.WorkKind{Service: "ones", StepType: "ONE"}
			if hints, _, _, err := l.ReadyHints(t.Context(), ledger.WorkClass{WorkKind: kind}, 0, "", "", 10); err != nil || len(hints) != 0 {
				t.Errorf("the queue has %v, %v", hints, err)
			}
		})
	})
}

// An accept may be so slow that it writes index rows after the sweeper has deleted those of its abandoned
// job, and may end before it finds the tombstone. The schedule deletes them after the grace.
func TestAccept_LeavesNoRowsOfAnAbandonedJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		var mu sync.Mutex // an accept commits its index rows at the same time
		var lost string
		var slow []commit // of index rows
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			mu.Lock()
			defer mu.Unlock()
			if lost == "" && batch[0].Key.Table == "luciusjobindex" && batch[0].Key.Partition != "tenants" {
				slow = append(slow, commit)
			}
			if commits(batch) && lost == "" {
				lost = batch[0].Key.Partition
				_, err := b.store.Store.Commit(t.Context(), tablestore.Batch{{
					Verb: tablestore.Insert, Key: tablestore.Key{Table: "luciusledger", Partition: lost, Row: "JOB"},
					Properties: tablestore.Properties{{Name: "tombstone", Value: tablestore.Bool(true)}},
				}})
				if err != nil {
					t.Error(err)
				}
			}
			return commit()
		})
		if accepted := b.MustAccept(described()); accepted.Job.ID == lost {
			t.Fatal("the job has the id of the tombstone")
		}
		listed := func(when string, want int) {
			t.Helper()
			if n := b.rows(t, map[string][]string{"luciusjobindex": lists()}); n != want {
				t.Errorf("%s: %d rows list jobs, want %d", when, n, want)
			}
		}
		listed("at first", 8)
		time.Sleep(2 * time.Minute)
		b.Expire()
		listed("after the entry of the accept", 4)
		for _, late := range slow {
			if _, err := late(); err != nil {
				t.Error(err)
			}
		}
		listed("after the late writes", 8)
		time.Sleep(6 * time.Minute)
		b.Expire()
		listed("after the grace", 4)
	})
}
