package ledger_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// described is a command with a document and tags.
func described() ledger.Command {
	cmd := command("h")
	cmd.Job.DocID, cmd.Job.Tags = "the: doc", "customer=42\nenv=prod"
	return cmd
}

// lists are the partitions of the lists of this month in which described is accepted and cancelled.
func lists() []string {
	month, sum := time.Now().Format("200601"), sha256.Sum256([]byte(tablestore.Join("tenant_a", "the: doc")))
	return []string{
		"jobs:tenant_a:" + month, "tags:tenant_a:" + month, "doc:" + hex.EncodeToString(sum[:]), "ended:tenant_a:" + month + ":CANCELLED",
	}
}

// ended is a job that ended just now.
func (b *bundle) ended(t *testing.T) string {
	t.Helper()
	cmd := described()
	cmd.Job.CallbackURLs = []string{"https://a.example/hook"}
	id := b.Submit(cmd)
	b.Apply(id, statemachine.Cancel{})
	return id
}

// rows counts the rows of these partitions.
func (b *bundle) rows(t *testing.T, partitions map[string][]string) int {
	t.Helper()
	n := 0
	for table, names := range partitions {
		for _, partition := range names {
			page, err := b.store.Scan(t.Context(), tablestore.Query{Table: table, Partition: partition})
			if err != nil {
				t.Fatal(err)
			}
			n += len(page.Rows)
		}
	}
	return n
}

// The tombstone of an accept that never committed is purged as a job is. Until then a late
// commit finds it.
func TestPurge_LeavesNothingOfAnAbandonedAccept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		cmd := described()
		cmd.Job.CorrelationID = "corr"
		late := b.loseAccept(t, cmd)
		id := b.entries()[0].JobID
		partitions := map[string][]string{"luciusledger": {id}, "luciusjobindex": append(lists(), "correlation:corr")}
		if n := b.rows(t, partitions); n != 5 {
			t.Errorf("the accept has left %d rows, want those by month, correlation id, document and two tags", n)
		}
		time.Sleep(10 * time.Minute)
		b.Expire()
		b.Expire()
		if n := b.rows(t, partitions); n != 1 {
			t.Errorf("%d rows are left, want the tombstone", n)
		}
		time.Sleep(time.Hour)
		if err := late(); err == nil {
			t.Error("the late commit came through")
		}
		time.Sleep(time.Hour)
		b.purgeDue(t)
		if n := b.rows(t, partitions); n != 0 || len(b.entries()) != 0 {
			t.Errorf("%d rows and %d entries are left", n, len(b.entries()))
		}
	})
}

func TestPurge_LeavesNothingOfTheJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var archived *ledger.Archived
		b := keeper(t, split(),
			func(_ context.Context, job *ledger.Archived) error { archived = job; return nil })
		id := b.ended(t)
		where := map[string][]string{
			"luciusledger": {id}, "jobidempotency": {"tenant_a"}, "luciusschedule": {"shard:000"},
			"luciusjobindex": append(lists(), "undelivered", "undelivered:tenant_a"),
		}
		if n := b.rows(t, map[string][]string{"luciusjobindex": lists()}); n != 5 {
			t.Errorf("the job has %d rows, want those by month, document, two tags and end", n)
		}
		b.givenUp(t)
		if given, _, _, err := b.Undelivered(t.Context(), "tenant_a", 10, ""); err != nil || len(given) != 1 {
			t.Fatalf("given up: %+v, %v", given, err)
		}
		time.Sleep(119 * time.Minute)
		if due := b.Entries(ledger.Retention, time.Now()); len(due) != 0 {
			t.Fatalf("%v is due while the key is kept", due)
		}
		time.Sleep(2 * time.Minute)
		due := b.Entries(ledger.Retention, time.Now())
		if len(due) != 1 {
			t.Fatalf("%v is due", due)
		}
		if outcome, err := b.Purge(t.Context(), due[0]); err != nil || outcome != ledger.PurgeDone {
			t.Fatalf("%s, %v", outcome, err)
		}
		if n := b.rows(t, where); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		if _, err := b.Job(t.Context(), id); !errors.Is(err, ledger.ErrJobNotFound) {
			t.Errorf("the job is %v", err)
		}
		if archived == nil || archived.Job.ID != id || len(archived.Payload) == 0 || len(archived.History) == 0 {
			t.Errorf("archived %+v", archived)
		}
		if accepted := b.MustAccept(described()); accepted.Replayed || accepted.Job.ID == id {
			t.Errorf("the same command gave %+v", accepted)
		}
	})
}

// A change that loses a race has written an entry for a revision that another change
// made. It would be due long after the job is purged, and would be left alone, like the
// entry of an accept that may still commit.
func TestPurge_ALostRaceLeavesNoEntry(t *testing.T) {
	t.Parallel()
	ack := func(m ledger.Message) statemachine.Event { return ledgertest.Started(m) }
	failed := func(m ledger.Message) statemachine.Event {
		return ledgertest.Ended(m, statemachine.ResultFailedFinal, "x")
	}
	for name, other := range map[string]func(ledger.Message) statemachine.Event{
		"and decides again": ack, "and has nothing more to do": failed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := split()
				cfg := ledger.Config{
					Bus: statemachine.BusServiceBus, Shards: 1, Retention: time.Minute, Projector: projectionstest.Projector(t, store),
				}
				b, replica := open(t, store, cfg), open(t, store, cfg)
				cmd := command("h")
				cmd.Steps[0].Policy.AckTimeout = time.Hour // The attempt's timer is due too late for the end.
				b.Submit(cmd)
				m := b.Handoff.Last()
				b.Apply(m.JobID, ledgertest.Sent(m))
				raced := false
				store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
					if commits(batch) && !raced {
						raced = true
						replica.Apply(m.JobID, other(m))
					}
					return commit()
				})
				b.Send(m.JobID, failed(m))
				time.Sleep(2 * time.Minute)
				if outcome, err := b.Purge(t.Context(), b.Entries(ledger.Retention, time.Now())[0]); err != nil || outcome != ledger.PurgeDone {
					t.Fatalf("%s, %v", outcome, err)
				}
				if left := b.entries(); !raced || len(left) != 0 {
					t.Errorf("raced: %t, left in the schedule: %v", raced, left)
				}
			})
		})
	}
}

// The work after the end would continue after the purge, and write rows that nothing finds.
func TestPurge_WaitsForTheWorkAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := split()
		b := open(t, store, ledger.Config{Shards: 1, Retention: time.Second, Projector: projectionstest.Projector(t, store)})
		cmd := command("h")
		cmd.Job.CallbackURLs = []string{"https://a.example/hook"}
		id := b.Submit(cmd)
		var crashed atomic.Bool // The batches of a stage are committed concurrently.
		store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if crashed.Load() && !commits(batch) {
				return nil, tablestore.ErrUnavailable
			}
			crashed.Store(crashed.Load() || commits(batch))
			return commit()
		})
		if result := b.Send(id, statemachine.Cancel{}); result.PostErr == nil {
			t.Fatal("the work after the end was meant to fail")
		}
		store.set(nil)
		time.Sleep(time.Minute)
		entry := ledger.Entry{Kind: ledger.Retention, JobID: id, Due: time.Now(), Nonce: "0"}
		if outcome, err := b.Purge(t.Context(), entry); err != nil || outcome != ledger.PurgeLater {
			t.Fatalf("before the work after the end: %s, %v", outcome, err)
		}
		if got := b.Expire(); got[ledger.Finished] != 1 {
			t.Errorf("fired %v", got)
		}
		if outcome, err := b.Purge(t.Context(), entry); err != nil || outcome != ledger.PurgeDone {
			t.Errorf("after it: %s, %v", outcome, err)
		}
	})
}

// Projections rely on a job for some seconds after a change of it, however short the
// retention.
func TestPurge_WaitsForProjectionsThatNeedTheJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := split()
		b := open(t, store, ledger.Config{Shards: 1, Retention: time.Millisecond, Projector: projectionstest.Projector(t, store)})
		id := b.ended(t)
		entry := ledger.Entry{Kind: ledger.Retention, JobID: id, Due: time.Now(), Nonce: "0"}
		for _, want := range []ledger.Purged{ledger.PurgeLater, ledger.PurgeDone} {
			time.Sleep(3 * time.Second)
			if outcome, err := b.Purge(t.Context(), entry); err != nil || outcome != want {
				t.Errorf("%s, %v, want %s", outcome, err, want)
			}
		}
	})
}

// A purge may crash after any write: the next pass continues, and no reader sees half a
// job in between.
func TestPurge_GoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for crashAt := 1; ; crashAt++ {
			b := keeper(t, split(), nil)
			id := b.ended(t)
			time.Sleep(3 * time.Hour)
			entry := b.Entries(ledger.Retention, time.Now())[0]
			var writes atomic.Int64 // Some are concurrent.
			b.store.set(func(_ tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
				if writes.Add(1) >= int64(crashAt) {
					return nil, tablestore.ErrUnavailable
				}
				return commit()
			})
			_, err := b.Purge(t.Context(), entry)
			b.store.set(nil)
			if err == nil {
				return // There is no later write.
			}
			if _, err := b.Job(t.Context(), id); err != nil && !errors.Is(err, ledger.ErrJobNotFound) {
				t.Errorf("crash at write %d: the job is %v", crashAt, err)
			}
			time.Sleep(time.Minute) // Until then, the purge may still be under way elsewhere.
			if _, err := b.Purge(t.Context(), entry); err != nil || len(b.Entries(ledger.Retention, time.Now())) != 0 {
				t.Errorf("crash at write %d: purged again: %v", crashAt, err)
			}
			where := map[string][]string{"luciusledger": {id}, "jobidempotency": {"tenant_a"}, "luciusjobindex": lists()}
			if n := b.rows(t, where); n != 0 {
				t.Errorf("crash at write %d: %d rows are left", crashAt, n)
			}
		}
	})
}

func TestPurge_NotBeforeTheCurrentRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := split()
		id := keeper(t, store, nil).ended(t)
		b := open(t, store, ledger.Config{Retention: 24 * time.Hour, Projector: projectionstest.Projector(t, store)})
		time.Sleep(3 * time.Hour)
		if outcome, err := b.Purge(t.Context(), b.Entries(ledger.Retention, time.Now())[0]); err != nil || outcome != ledger.PurgeLater {
			t.Fatalf("%s, %v", outcome, err)
		}
		time.Sleep(22 * time.Hour)
		if outcome, err := b.Purge(t.Context(), b.Entries(ledger.Retention, time.Now())[0]); err != nil || outcome != ledger.PurgeDone {
			t.Fatalf("%s, %v", outcome, err)
		}
		if _, err := b.Job(t.Context(), id); !errors.Is(err, ledger.ErrJobNotFound) {
			t.Errorf("the job is %v", err)
		}
	})
}

func TestPurge_AnArchiveThatFailsKeepsTheJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("no space")
		b := keeper(t, split(),
			func(context.Context, *ledger.Archived) error { return full })
		id := b.ended(t)
		time.Sleep(3 * time.Hour)
		if _, err := b.Purge(t.Context(), b.Entries(ledger.Retention, time.Now())[0]); !errors.Is(err, full) {
			t.Errorf("purge: %v", err)
		}
		if _, err := b.Job(t.Context(), id); err != nil || len(b.Entries(ledger.Retention, time.Now())) != 1 {
			t.Errorf("the job is %v", err)
		}
	})
}

// Between the end of the key's time and that of the job's, the key may name
// another command, and the purge of the old job must not delete that claim.
func TestAccept_AfterTheKeyExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := split()
		b := open(t, store, ledger.Config{
			Shards: 1, Retention: 10 * time.Hour, KeyTTL: time.Hour, Projector: projectionstest.Projector(t, store),
		})
		keyed := command("first")
		keyed.Job.IdempotencyKey = "k"
		old := b.Submit(keyed)
		b.Apply(old, statemachine.Cancel{})
		keyed.Job.IdempotencyHash = "second"
		if _, err := b.Accept(t.Context(), keyed); !errors.Is(err, ledger.ErrIdempotencyMismatch) {
			t.Fatalf("within the key's time: %v", err)
		}
		time.Sleep(61 * time.Minute)
		fresh := b.MustAccept(keyed)
		if fresh.Replayed || fresh.Job.ID == old {
			t.Fatalf("after the key's time: %+v", fresh)
		}
		time.Sleep(10 * time.Hour)
		for _, entry := range b.Entries(ledger.Retention, time.Now()) {
			if _, err := b.Purge(t.Context(), entry); err != nil {
				t.Fatal(err)
			}
		}
		again := b.MustAccept(keyed)
		if !again.Replayed || again.Job.ID != fresh.Job.ID {
			t.Errorf("after the purge of the old job: %+v", again)
		}
	})
}

func TestPurge_AnEntryWithoutAPurgeableJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := keeper(t, split(), nil)
		live := b.Submit(command("h"))
		for id, want := range map[string]ledger.Purged{live: ledger.PurgeNever, "gone": ledger.PurgeElsewhere} {
			outcome, err := b.Purge(t.Context(), ledger.Entry{Kind: ledger.Retention, JobID: id, Due: time.Now(), Nonce: "0"})
			if err != nil || outcome != want {
				t.Errorf("%s: %s, %v", id, outcome, err)
			}
		}
	})
}

func TestOpen_RefusesNegativeTimes(t *testing.T) {
	t.Parallel()
	for _, cfg := range []ledger.Config{{Retention: -1}, {KeyTTL: -1}} {
		cfg.Store = ledgertest.Atomic()
		if _, err := ledger.Open(t.Context(), cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

// vanishing is the store with a function that is called after the first read of a claim.
func vanishing(store tablestore.Store, after func(record tablestore.Row)) tablestore.Store {
	return storetest.AfterRead(store, func(r *storetest.Request) {
		if do := after; do != nil && r.Key().Table == "jobidempotency" && len(r.Rows) == 1 {
			after = nil
			do(r.Rows[0])
		}
	})
}

// A job may be purged while a duplicate of its command looks it up by the record
// that it has just read. Then its key is free, and its id is not used again. If the record
// still exists, the job was never committed, and is created under that id.
func TestAccept_OfAKeyWhoseJobIsPurgedInBetween(t *testing.T) {
	t.Parallel()
	for name, purged := range map[string]bool{"with its record": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			first := b.MustAccept(command("h"))
			store := vanishing(b.store, func(record tablestore.Row) {
				if purged {
					discard := tablestore.Batch{{Verb: tablestore.Discard, Key: record.Key}}
					if _, err := b.store.Commit(t.Context(), discard); err != nil {
						t.Error(err)
					}
				}
				all := tablestore.Query{Table: "luciusledger", Partition: first.Job.ID}
				if err := tablestore.DiscardAll(t.Context(), b.store, all, ""); err != nil {
					t.Error(err)
				}
			})
			l, err := ledger.Open(t.Context(), ledger.Config{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			again, err := l.Accept(t.Context(), command("h"))
			if err != nil || again.Replayed || purged == (again.Job.ID == first.Job.ID) {
				t.Errorf("answered %+v, %v", again.Job.ID, err)
			}
		})
	}
}

// A command may be refused, and delete its record of a key, while another command reads
// that record. Then the key is free. If the record still exists, the key is taken, whether
// its job exists yet or not.
func TestAccept_OfAKeyReleasedInBetween(t *testing.T) {
	t.Parallel()
	for name, released := range map[string]bool{"released": true, "kept": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
				if commits(batch) {
					return nil, tablestore.ErrUnavailable
				}
				return commit()
			})
			if _, err := b.Accept(t.Context(), keyed("h")); err == nil {
				t.Fatal("the first command was meant to fail")
			}
			b.store.set(nil)
			store := vanishing(b.store, func(record tablestore.Row) {
				if !released {
					return
				}
				if _, err := b.store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Discard, Key: record.Key}}); err != nil {
					t.Error(err)
				}
			})
			l, err := ledger.Open(t.Context(), ledger.Config{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Accept(t.Context(), keyed("i")); released != (err == nil) ||
				!released && !errors.Is(err, ledger.ErrIdempotencyMismatch) {
				t.Errorf("answered %v", err)
			}
		})
	}
}

// keyed returns a command of that hash under one key.
func keyed(hash string) ledger.Command {
	cmd := command(hash)
	cmd.Job.IdempotencyKey = "k"
	return cmd
}
