package pebblestore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// namedRow is a row whose properties are named by its number.
func namedRow(n, names int) tablestore.Op {
	op := tablestore.Op{
		Verb: tablestore.Insert, Key: tablestore.Key{Table: "table", Partition: fmt.Sprint("p", n%5), Row: fmt.Sprint("r", n)},
	}
	for i := range names {
		op.Properties = append(op.Properties, tablestore.Property{Name: fmt.Sprintf("name_%d", n+i), Value: tablestore.Int(int64(i))})
	}
	return op
}

func expectNamed(t *testing.T, store tablestore.Store, n, names int) {
	t.Helper()
	want := namedRow(n, names)
	if row, err := store.Get(t.Context(), want.Key); err != nil || !row.Properties.Equal(want.Properties) {
		t.Errorf("row %d is %+v, %v, want %+v", n, row.Properties, err, want.Properties)
	}
}

// A row that stores a name as a number becomes durable only with the header that maps the
// number, whichever concurrent writer used the name first.
func TestNames_PowerLossLosesNone(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	const writers, rows = 4, 60
	var written [writers]atomic.Int64 // rows that the store acknowledged
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for n := range rows {
				if _, err := store.Commit(t.Context(), tablestore.Batch{namedRow(writers*n+w, 3)}); err != nil {
					t.Error(err)
				}
				written[w].Add(1)
			}
		})
	}
	for range 15 {
		var counts [writers]int64
		for w := range writers {
			counts[w] = written[w].Load()
		}
		after := d.crashed(t) // while the writers continue
		for w := range writers {
			for n := range counts[w] {
				expectNamed(t, after, writers*int(n)+w, 3)
			}
		}
		if _, err := after.Scan(t.Context(), tablestore.Query{Table: "table", Partition: "p0"}); err != nil {
			t.Errorf("after a crash, a row that was not acknowledged cannot be read: %v", err)
		}
	}
	group.Wait()
	closeStore(t, store)
	store = open(t, d.options())
	for n := range writers * rows {
		expectNamed(t, store, n, 3)
	}
	closeStore(t, store)
}

// Each row spells the names that the store does not number.
func TestNames_AreUnlimited(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: "data", FS: vfs.NewMem()}
	store := open(t, options)
	const rows, names = 60, 200
	for n := range rows {
		if _, err := store.Commit(t.Context(), tablestore.Batch{namedRow(n*names/2, names)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for n := range rows {
			expectNamed(t, store, n*names/2, names)
		}
		closeStore(t, store)
		store = open(t, options)
	}
	closeStore(t, store)
}
