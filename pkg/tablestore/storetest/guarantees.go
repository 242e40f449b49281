package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// twoKinds returns properties of two kinds. Values cannot be changed; the slice that
// holds them can.
func twoKinds() tablestore.Properties {
	return tablestore.Properties{
		{Name: "number", Value: tablestore.Int(7)},
		{Name: "text", Value: tablestore.String("text")},
	}
}

// scribble overwrites the properties in place.
func scribble(properties tablestore.Properties) {
	for i := range properties {
		properties[i] = tablestore.Property{Name: "scribbled", Value: tablestore.Int(1)}
	}
}

var ownershipChecks = []check{
	{"ownership/a row that was passed in is not kept", func(t testing.TB, e *env) {
		for _, verb := range []tablestore.Verb{tablestore.Insert, tablestore.Put} {
			key := e.key("p", verb.String())
			properties := twoKinds()
			batch := tablestore.Batch{{Verb: verb, Key: key, Properties: properties}}
			e.commit(t, batch...)
			scribble(properties)
			batch[0] = tablestore.Op{}
			if diff := cmp.Diff(twoKinds(), e.get(t, key).Properties); diff != "" {
				t.Errorf("%s (-want +got):\n%s", verb, diff)
			}
		}
	}},
	{"ownership/a batch that was passed in is not changed", func(t testing.TB, e *env) {
		batch := tablestore.Batch{{Verb: tablestore.Insert, Key: e.key("p", "r"), Properties: twoKinds()}}
		want := tablestore.Batch{{Verb: tablestore.Insert, Key: e.key("p", "r"), Properties: twoKinds()}}
		e.commit(t, batch...)
		if diff := cmp.Diff(want, batch); diff != "" {
			t.Errorf("batch (-want +got):\n%s", diff)
		}
	}},
	{"ownership/a row that was returned belongs to the caller", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: twoKinds()})
		scribble(e.get(t, key).Properties)
		for _, row := range e.partition(t, "p") {
			scribble(row.Properties)
		}
		if diff := cmp.Diff(twoKinds(), e.get(t, key).Properties); diff != "" {
			t.Errorf("get after scribbling (-want +got):\n%s", diff)
		}
		for _, row := range e.partition(t, "p") {
			if diff := cmp.Diff(twoKinds(), row.Properties); diff != "" {
				t.Errorf("scan after scribbling (-want +got):\n%s", diff)
			}
		}
	}},
}

var cancelChecks = []check{
	{"cancels/an ended context writes nothing", func(t testing.TB, e *env) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		key := e.key("p", "r")
		_, err := e.store.Commit(ctx, tablestore.Batch{insert(key, 1)})
		if !errors.Is(err, tablestore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("commit: %v, want ErrUnavailable and context.Canceled", err)
		}
		if _, err := e.store.Get(ctx, key); !errors.Is(err, context.Canceled) {
			t.Errorf("get: %v, want context.Canceled", err)
		}
		query := tablestore.Query{Table: key.Table, Partition: key.Partition}
		if _, err := e.store.Scan(ctx, query); !errors.Is(err, context.Canceled) {
			t.Errorf("scan: %v, want context.Canceled", err)
		}
		if _, err := e.store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrNotFound) {
			t.Errorf("get afterwards: %v, want ErrNotFound", err)
		}
	}},
	{"cancels/a closed store is unavailable", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		e.commit(t, insert(key, 1))
		e.close(t)
		if _, err := e.store.Commit(t.Context(), tablestore.Batch{put(key, 2)}); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("commit: %v, want ErrUnavailable", err)
		}
		if _, err := e.store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("get: %v, want ErrUnavailable", err)
		}
		query := tablestore.Query{Table: key.Table, Partition: key.Partition}
		if _, err := e.store.Scan(t.Context(), query); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("scan: %v, want ErrUnavailable", err)
		}
		if err := e.store.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	}},
}

// durableChecks test stores that outlive their process.
var durableChecks = []check{
	{"durable/a reopened store has the same rows", func(t testing.TB, e *env) {
		var all tablestore.Properties
		for name, value := range values() {
			all = append(all, tablestore.Property{Name: name, Value: value})
		}
		e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: e.key("p", "values"), Properties: all},
			insert(e.key("p", "gone"), 1), insert(e.key("p", "replaced"), 1))
		e.commit(t, discard(e.key("p", "gone")), put(e.key("p", "replaced"), 2))
		e.commit(t, insert(e.key("q", "r"), 3))
		p, q := e.partition(t, "p"), e.partition(t, "q")
		for range 3 {
			e.reopen(t)
			if diff := cmp.Diff(p, e.partition(t, "p")); diff != "" {
				t.Errorf("partition after reopen (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(q, e.partition(t, "q")); diff != "" {
				t.Errorf("partition after reopen (-before +after):\n%s", diff)
			}
		}
	}},
	{"durable/ETags survive a reopen and are not reused", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		seen := map[tablestore.ETag]bool{}
		etag := e.commit(t, insert(key, 0))[0]
		for i := range 5 {
			seen[etag] = true
			e.reopen(t)
			etag = e.commit(t, replace(key, etag, int64(i)))[0]
			if seen[etag] {
				t.Errorf("ETag %q was given before the reopen", etag)
			}
		}
	}},
}
