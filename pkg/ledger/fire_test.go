package ledger_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestFire_ADeadlineIsActedOnOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		id := b.Submit(command("h"))
		message := b.Handoff.Last()
		b.Apply(id, ledgertest.Sent(message))
		time.Sleep(2 * time.Second)
		if got := b.Expire(); got[ledger.Acted] != 1 {
			t.Errorf("fired %v", got)
		}
		agg := b.Read(id)
		if agg.Steps[0].State != statemachine.StepFailedRetry {
			t.Errorf("step is %s", agg.Steps[0].State)
		}
		if got := b.Expire(); len(got) != 0 {
			t.Errorf("fired again: %v", got)
		}
	})
}

// The entry of a short job is kept until its end; an entry that is due much later is
// replaced.
func TestFire_FinishesAnEndWithinHalfAMinuteOfACrash(t *testing.T) {
	t.Parallel()
	for name, waited := range map[string]time.Duration{"of a short job": 0, "of a long one": 2 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := open(t, split(), ledger.Config{Bus: statemachine.BusServiceBus, Hold: 15 * time.Second})
				id := b.Submit(ordinary("h"))
				m := b.Handoff.Last()
				b.Apply(id, ledgertest.Sent(m))
				b.Apply(id, ledgertest.Started(m))
				time.Sleep(waited)
				b.Expire() // A timer that is due early is replaced by that of the lease.
				b.Apply(id, statemachine.Cancel{})
				var committed atomic.Bool // The batches of a stage are committed concurrently.
				b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
					if committed.Load() {
						return nil, tablestore.ErrUnavailable
					}
					if commits(batch) {
						committed.Store(true)
					}
					return commit()
				})
				end := ledgertest.Ended(m, statemachine.ResultSucceeded, "")
				if result := b.Send(id, end); result.PostErr == nil {
					t.Fatal("the end was meant to be left undone")
				}
				b.store.set(nil)
				time.Sleep(31 * time.Second)
				if got := b.Expire(); got[ledger.Finished] != 1 || len(b.LiveJobs()) != 0 {
					t.Errorf("fired %v, the live set is %v", got, b.LiveJobs())
				}
			})
		})
	}
}

func TestFire_AnEntryThatTheJobDoesNotNameIsDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		id := b.Submit(command("h"))
		old := b.entries()
		b.Apply(id, statemachine.Retry{})
		if _, err := b.store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Put, Key: entryKey(&old[0])}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if got := b.Expire(); got[ledger.Stale] != 1 {
			t.Errorf("fired %v", got)
		}
	})
}

func TestFire_RepeatsTheWorkAfterAJobsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		cmd := command("h")
		b.store.limit.Store(1)
		id := b.Submit(cmd)
		var crashed atomic.Bool // The batches of a stage are committed concurrently.
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if crashed.Load() && !commits(batch) {
				return nil, tablestore.ErrUnavailable
			}
			if commits(batch) {
				crashed.Store(true)
			}
			return commit()
		})
		if result := b.Send(id, statemachine.Cancel{}); result.PostErr == nil {
			t.Fatal("the post stage was meant to fail")
		}
		b.store.set(nil)
		if live := b.LiveJobs(); len(live) != 1 {
			t.Fatalf("live set is %v", live)
		}
		time.Sleep(6 * time.Second)
		if got := b.Expire(); got[ledger.Finished] != 1 {
			t.Errorf("fired %v", got)
		}
		if live := b.LiveJobs(); len(live) != 0 {
			t.Errorf("the ended job still holds a slot: %v", live)
		}
		time.Sleep(10 * time.Minute)
		b.Expire()
		if entries := b.entries(); len(entries) != 0 {
			t.Errorf("left in the schedule: %v", entries)
		}
	})
}

func TestFire_AbandonsAnAcceptThatNeverCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		late := b.loseAccept(t, command("h"))
		time.Sleep(2 * time.Minute)
		if got := b.Expire(); got[ledger.Early] != 1 {
			t.Errorf("within the grace: fired %v", got)
		}
		time.Sleep(10 * time.Minute)
		if got := b.Expire(); got[ledger.Orphaned] != 1 {
			t.Errorf("past the grace: fired %v", got)
		}
		if got := b.Expire(); got[ledger.Stale] != 1 {
			t.Errorf("at the next pass: fired %v", got)
		}
		if live := b.LiveJobs(); len(live) != 0 {
			t.Errorf("it still holds a slot: %v", live)
		}
		if late() == nil {
			t.Error("the late commit came through")
		}
		if again := b.MustAccept(command("h")); again.Replayed {
			t.Error("the command was answered as a replay")
		}
	})
}

// Without projections nothing of a purged job can still land: its entry is deleted when
// it is due.
func TestFire_AnEntryOfAPurgedJobIsDeletedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, split(), ledger.Config{Bus: statemachine.BusServiceBus, Shards: 1})
		b.Submit(command("h"))
		m := b.Handoff.Last()
		b.Apply(m.JobID, ledgertest.Sent(m))
		time.Sleep(2 * time.Minute)
		b.Expire() // The attempt timed out, and the retry has a separate entry.
		if err := b.purge(t, m.JobID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if got := b.Expire(); got[ledger.Stale] != 1 || len(b.entries()) != 0 {
			t.Errorf("fired %v, left %v", got, b.entries())
		}
	})
}

// If the accept commits while the sweeper abandons it, its entry stays: the head names
// it.
func TestFire_AnAcceptThatCommitsLateKeepsItsEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		late := b.loseAccept(t, command("h"))
		time.Sleep(12 * time.Minute)
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if batch[0].Key.Row == "JOB" { // the tombstone
				b.store.set(nil)
				if err := late(); err != nil {
					t.Error(err)
				}
			}
			return commit()
		})
		if got := b.Expire(); got[ledger.Orphaned] != 1 {
			t.Errorf("past the grace: fired %v", got)
		}
		if got := b.Expire(); got[ledger.Acted] != 1 {
			t.Errorf("at the next pass: fired %v", got)
		}
	})
}

// TestSchedule_EachChangeLeavesAnEntryInTime walks a job through its life and checks
// after each change that there is an entry at or before its next deadline.
func TestSchedule_EachChangeLeavesAnEntryInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		id := b.Submit(command("h"))
		check := func() {
			t.Helper()
			agg := b.Read(id)
			wake := statemachine.NextWake(agg)
			if wake.Kind == statemachine.WakeNone {
				return
			}
			for _, entry := range b.entries() {
				if entry.JobID == id && !entry.Due.After(wake.At) {
					return
				}
			}
			t.Errorf("no entry at or before %s: %v", wake.At, b.entries())
		}
		check()
		for _, event := range []func(m ledger.Message) statemachine.Event{
			func(m ledger.Message) statemachine.Event {
				return ledgertest.Sent(m)
			},
			func(m ledger.Message) statemachine.Event { return ledgertest.Started(m) },
			func(m ledger.Message) statemachine.Event {
				return statemachine.Heartbeat{StepID: m.StepID, Pair: ledgertest.Pair(m)}
			},
			func(m ledger.Message) statemachine.Event {
				return ledgertest.Ended(m, statemachine.ResultFailedRetry, "")
			},
			func(ledger.Message) statemachine.Event { return statemachine.Pause{} },
			func(ledger.Message) statemachine.Event { return statemachine.Resume{} },
			func(ledger.Message) statemachine.Event { return statemachine.Retry{} },
		} {
			b.Apply(id, event(b.Handoff.Last()))
			check()
			time.Sleep(100 * time.Millisecond)
		}
	})
}
