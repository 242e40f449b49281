package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// racers is how many goroutines race in one check.
const racers = 8

// race runs the function in that many goroutines and waits for all.
func race(goroutines int, run func(racer int)) {
	var group sync.WaitGroup
	for racer := range goroutines {
		group.Go(func() { run(racer) })
	}
	group.Wait()
}

var raceChecks = []check{
	{"races/increments by CAS are neither lost nor duplicated", func(t testing.TB, e *env) {
		key := e.key("p", "counter")
		e.commit(t, insert(key, 0))
		var successes atomic.Int64
		race(racers, func(int) {
			for range e.features.Effort {
				successes.Add(e.increment(t, key))
			}
		})
		if got := e.get(t, key).Properties.Get("n").Int(); got != successes.Load() || got == 0 {
			t.Errorf("counter is %d after %d successes", got, successes.Load())
		}
	}},
	{"races/exactly one of racing inserts wins", func(t testing.TB, e *env) {
		for round := range e.features.Effort {
			key := e.key("p", fmt.Sprint("r", round))
			winners := make([]bool, racers)
			race(racers, func(racer int) {
				_, err := e.store.Commit(t.Context(), tablestore.Batch{insert(key, int64(racer))})
				winners[racer] = err == nil
				if err != nil && !errors.Is(err, tablestore.ErrConflict) {
					t.Errorf("insert: %v", err)
				}
			})
			e.expectWinner(t, key, winners)
		}
	}},
	{"races/a batch is seen whole or not at all", func(t testing.TB, e *env) {
		a, b := e.key("p", "a"), e.key("p", "b")
		e.commit(t, insert(a, 0), insert(b, 0))
		race(2, func(racer int) {
			for i := range e.features.Effort {
				if racer == 0 {
					n := int64(i + 1)
					if _, err := e.store.Commit(t.Context(), tablestore.Batch{put(a, n), put(b, n)}); err != nil {
						t.Errorf("put: %v", err)
					}
					continue
				}
				e.expectEqual(t, "p")
			}
		})
	}},
}

// increment tries once to add one to the row, and returns 1 when it won.
func (e *env) increment(t testing.TB, key tablestore.Key) int64 {
	row, err := e.store.Get(t.Context(), key)
	if err != nil {
		t.Errorf("get: %v", err)
		return 0
	}
	_, err = e.store.Commit(t.Context(), tablestore.Batch{replace(key, row.ETag, row.Properties.Get("n").Int()+1)})
	if err == nil {
		return 1
	}
	if !errors.Is(err, tablestore.ErrConflict) {
		t.Errorf("replace: %v", err)
	}
	return 0
}

// expectWinner fails unless exactly one racer won and the row is its own.
func (e *env) expectWinner(t testing.TB, key tablestore.Key, winners []bool) {
	t.Helper()
	won := 0
	for racer, winner := range winners {
		if !winner {
			continue
		}
		won++
		if got := e.get(t, key).Properties.Get("n").Int(); got != int64(racer) {
			t.Errorf("%s holds the row of %d, but %d was told that it won", key, got, racer)
		}
	}
	if won != 1 {
		t.Errorf("%d winners of the insert of %s, want 1", won, key)
	}
}

// expectEqual fails unless all rows on one page of the partition hold the same
// number.
func (e *env) expectEqual(t testing.TB, partition string) {
	page, err := e.store.Scan(t.Context(), tablestore.Query{Table: e.harness.Tables[0], Partition: partition})
	if err != nil {
		t.Errorf("scan: %v", err)
		return
	}
	for _, row := range page.Rows {
		if !row.Properties.Equal(page.Rows[0].Properties) {
			t.Errorf("a scan saw half a batch: %v and %v", page.Rows[0], row)
		}
	}
}
