package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A job that was cancelled while it waited is purged though its line stays blocked.
func TestLine_PurgeOfAJobBehindOneThatBlocks(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		synctest.Test(t, func(t *testing.T) {
			s := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 1, Retention: time.Hour}))
			s.play(`
				accept a
				accept b
				accept c
				cancel b
				fail a`)
			time.Sleep(2 * time.Hour)
			s.play(`wait 1s`)
			outcomes(t, s.Purge(t.Context(), s.Entries(ledger.Retention, time.Now())))
			if _, err := s.Job(t.Context(), s.jobs["b"]); !errors.Is(err, ledger.ErrJobNotFound) {
				t.Errorf("job b is still there: %v", err)
			}
			s.play(`
				want a=failed c=waits
				places 2`)
		})
	})
}

// waiterEnds are the ways in which b, which waits behind a, ends before it begins.
var waiterEnds = map[string]func(s *lineScript){
	"cancelled": func(s *lineScript) { _, _ = s.Change(s.t.Context(), s.jobs["b"], statemachine.Cancel{}) },
	"cancelled with all that wait": func(s *lineScript) {
		_, _, _ = s.CancelWaiting(s.t.Context(), ledger.CancelWaiting{
			LineID: ledger.LineID("tenant_a", "doc"), Limit: 10, Until: time.Now().Add(time.Minute),
		})
	},
	"superseded": func(s *lineScript) { _ = s.act(strings.Fields("accept c newest")) },
}

// removesPlace reports whether the batch removes places of a line.
func removesPlace(batch tablestore.Batch) bool {
	return strings.HasPrefix(batch[0].Key.Partition, "line:") && batch[len(batch)-1].Verb == tablestore.Delete
}

// A process may crash before it removes the place of a job that ended while it waited. The entry of the job leads
// to that place, also if the job that superseded it waits no longer.
func TestLine_CrashBeforeAPlaceInTheMiddleIsRemoved(t *testing.T) {
	t.Parallel()
	for name, end := range waiterEnds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, b := lines(t, ledger.Config{Shards: 1})
				s.play(`
					accept a
					accept b newest`)
				b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
					if removesPlace(batch) {
						return nil, tablestore.ErrUnavailable
					}
					return commit()
				})
				end(s)
				b.store.set(nil)
				if s.jobs["c"] != "" {
					s.play(`cancel c`)
				}
				s.play(`
					wait 1m
					want a=runs
					places 1`)
			})
		})
	}
}

// The line may change while a place is removed: it is read again.
func TestLine_RaceForThePlaceOfAJobThatEndedWhileItWaited(t *testing.T) {
	t.Parallel()
	for name, end := range waiterEnds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, b := lines(t, ledger.Config{Shards: 1})
				other := newLineScript(t, open(t, &hooked{Store: b.store.Store}, ledger.Config{Shards: 1}).Ledger)
				s.play(`
					accept a
					accept b newest`)
				b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
					if removesPlace(batch) {
						b.store.set(nil)
						other.play(`accept d`)
					}
					return commit()
				})
				end(s)
				want := `places 2`
				if s.jobs["c"] != "" {
					want = `places 3`
				}
				s.jobs["d"] = other.jobs["d"]
				s.play(want + `
					want a=runs d=waits`)
			})
		})
	}
}

// A line whose last jobs are cancelled while they wait is not listed any more.
func TestLine_IsNotListedAfterItsLastJobsWereCancelled(t *testing.T) {
	t.Parallel()
	ledgertest.OnEachStore(t, func(t *testing.T, store tablestore.Store) {
		synctest.Test(t, func(t *testing.T) {
			s := newLineScript(t, ledgertest.Open(t, ledger.Config{Store: store, Shards: 1}))
			s.play(`
				accept a in 1h
				accept b in 1h`)
			waiterEnds["cancelled with all that wait"](s)
			s.play(`
				want a=cancelled b=cancelled
				places 0`)
			rows, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{
				Table: "luciusschedule", Partition: "shard:000", From: "line:", To: "line;",
			})
			if err != nil || len(rows) != 0 {
				t.Errorf("%d rows list the line, %v", len(rows), err)
			}
		})
	})
}
