package pebblestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

func TestTombstoneSkipper(t *testing.T) {
	t.Parallel()
	at := place{"table", "p", "b"}
	for name, test := range map[string]struct {
		during []string // Rows written during the scan that finds "m".
		after  []string // Rows written after it.
		dead   int
		want   string // Where the next scan starts.
	}{
		"a few dead rows are not remembered":  {dead: learnAfter - 1, want: "b"},
		"many are":                            {dead: learnAfter, want: "m"},
		"a row written in the gap cuts it":    {dead: learnAfter, after: []string{"g", "k"}, want: "g"},
		"one at its beginning ends it":        {dead: learnAfter, after: []string{"b"}, want: "b"},
		"one at its end changes nothing":      {dead: learnAfter, after: []string{"m", "z"}, want: "m"},
		"one before it changes nothing":       {dead: learnAfter, after: []string{"a"}, want: "m"},
		"a row written during it limits it":   {dead: learnAfter, during: []string{"k", "h", "x"}, want: "h"},
		"one at the beginning prevents it":    {dead: learnAfter, during: []string{"b"}, want: "b"},
		"one before the range does not count": {dead: learnAfter, during: []string{"a"}, want: "m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var skipper tombstoneSkipper
			w, start := skipper.begin(at)
			if start != "b" {
				t.Errorf("the first scan starts at %q", start)
			}
			for _, row := range test.during {
				skipper.put("table", "p", row)
			}
			skipper.end(w, "m", test.dead)
			for _, row := range test.after {
				skipper.put("table", "p", row)
			}
			skipper.put("table", "other", "c")
			skipper.put("other", "p", "c")
			if _, start := skipper.begin(at); start != test.want {
				t.Errorf("the next scan starts at %q, want %q", start, test.want)
			}
		})
	}
}

func TestTombstoneSkipper_GapsGrowAndStayBounded(t *testing.T) {
	t.Parallel()
	var skipper tombstoneSkipper
	at := place{"table", "p", "b"}
	for _, first := range []string{"c", "f", "d", partitionEnd} {
		w, _ := skipper.begin(at)
		skipper.end(w, first, learnAfter)
	}
	if _, start := skipper.begin(at); start != partitionEnd {
		t.Errorf("the gap ends at %q, want the end of the partition", start)
	}
	w, _ := skipper.begin(place{"table", "p", "x"})
	skipper.end(w, "", learnAfter)
	if len(skipper.gaps) != 1 {
		t.Errorf("a scan that failed left a gap: %v", skipper.gaps)
	}
	for i := range 10 * maxGaps {
		w, _ := skipper.begin(place{"table", "p", fmt.Sprint("c", i)})
		skipper.end(w, "m", learnAfter)
	}
	if len(skipper.gaps) > maxGaps {
		t.Errorf("%d gaps are kept, want at most %d", len(skipper.gaps), maxGaps)
	}
}

// TestQueuesAreScannedAsInMemory compares random queue-like work with the
// memory store, which skips nothing.
func TestQueuesAreScannedAsInMemory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 7))
		store := musttest.Make(t, Open, Options{Dir: "data", FS: vfs.NewMem()})
		model := memstore.New(memstore.Options{})
		for step := range 400 {
			batch := randomBatch(random, step)
			for _, s := range []tablestore.Store{store, model} {
				if _, err := s.Commit(t.Context(), batch); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, step, err)
				}
			}
			query := randomQuery(random, step)
			if diff := cmp.Diff(rowsOf(t, model, query), rowsOf(t, store, query)); diff != "" {
				t.Fatalf("seed %d, step %d, %+v (-memory +local):\n%s", seed, step, query, diff)
			}
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// randomBatch mostly adds rows at the tail and removes them at the head, and
// occasionally adds one before the head.
func randomBatch(random *rand.Rand, step int) tablestore.Batch {
	batch := tablestore.Batch{}
	for i := range 60 {
		op := tablestore.Op{Verb: tablestore.Discard}
		at := step*20 - 60 + i
		switch {
		case random.IntN(3) == 0:
			op.Verb, at = tablestore.Put, step*20+i
		case random.IntN(200) == 0:
			op.Verb, at = tablestore.Put, random.IntN(step*20+1)
		}
		op.Key = tablestore.Key{Table: "queue", Partition: "p", Row: tablestore.Pad(max(at, 0), 8) + fmt.Sprint("-", i)}
		batch = append(batch, op)
	}
	return batch
}

func randomQuery(random *rand.Rand, step int) tablestore.Query {
	query := tablestore.Query{Table: "queue", Partition: "p", Limit: 1 + random.IntN(5)}
	if random.IntN(3) == 0 {
		query.From = tablestore.Pad(1_000, 8)
	}
	if random.IntN(3) == 0 {
		query.To = tablestore.Pad(random.IntN(step*20+100), 8)
	}
	return query
}

func rowsOf(t *testing.T, store tablestore.Store, query tablestore.Query) []string {
	t.Helper()
	page, err := store.Scan(t.Context(), query)
	musttest.NoError(t, err)
	rows := []string{"next " + page.Next}
	for _, row := range page.Rows {
		rows = append(rows, row.Key.Row)
	}
	return rows
}

// TestScansMissNoAcknowledgedRow adds rows at random places of a long gap while
// other goroutines scan it.
func TestScansMissNoAcknowledgedRow(t *testing.T) {
	t.Parallel()
	store := musttest.Make(t, Open, Options{Dir: "data", FS: vfs.NewMem()})
	ctx := t.Context()
	for i := range 100 {
		commitRow(ctx, t, store, tablestore.Put, i)
		commitRow(ctx, t, store, tablestore.Discard, i)
	}
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 3))
			for range 300 {
				// No two workers write the same row.
				n := random.IntN(1_000)*4 + worker
				commitRow(ctx, t, store, tablestore.Put, n)
				expectScanned(ctx, t, store, n)
				commitRow(ctx, t, store, tablestore.Discard, n)
			}
		})
	}
	group.Wait()
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

func commitRow(ctx context.Context, t *testing.T, store *Store, verb tablestore.Verb, n int) {
	key := tablestore.Key{Table: "queue", Partition: "p", Row: tablestore.Pad(n, 8)}
	if _, err := store.Commit(ctx, tablestore.Batch{{Verb: verb, Key: key}}); err != nil {
		t.Errorf("%s %d: %v", verb, n, err)
	}
}

func expectScanned(ctx context.Context, t *testing.T, store *Store, n int) {
	page, err := store.Scan(ctx, tablestore.Query{Table: "queue", Partition: "p"})
	if err != nil {
		t.Errorf("scan: %v", err)
		return
	}
	for _, row := range page.Rows {
		if row.Key.Row == tablestore.Pad(n, 8) {
			return
		}
	}
	t.Errorf("row %d was acknowledged, but a scan does not return it", n)
}
