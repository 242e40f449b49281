package pebblestore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// told collects the rows that the store has acknowledged, returned, or named in
// a conflict. None of them may be lost.
type told struct {
	mu   sync.Mutex
	rows []int
}

func (k *told) add(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rows = append(k.rows, n)
}

func (k *told) all() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]int(nil), k.rows...)
}

func TestPowerLossLosesNothingReturned(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	known := &told{}
	var next atomic.Int64
	for seed := range uint64(12) {
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() { write(t, store, &next, known) })
			group.Go(func() { peek(t, store, &next, known) })
		}
		write(t, store, &next, known)
		rows := known.all()
		// Some unsynced data may survive as well.
		crash := vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed%3) * 50, RNG: rand.New(rand.NewPCG(seed, 1))}
		after := open(t, diskOf(d.memory.CrashClone(crash)).options())
		expectThere(t, after, rows...)
		closeStore(t, after)
		group.Wait()
	}
	closeStore(t, store)
}

// write inserts new rows, large enough that logs and tables rotate.
func write(t *testing.T, store tablestore.Store, next *atomic.Int64, known *told) {
	for range 20 {
		n := int(next.Add(1) - 1)
		err := commitOne(t, store, rowOf(n, 5_000))
		if err != nil && !errors.Is(err, tablestore.ErrConflict) {
			t.Errorf("insert row %d: %v", n, err)
			continue
		}
		known.add(n)
	}
}

// peek reads and inserts rows that other goroutines are just writing.
func peek(t *testing.T, store tablestore.Store, next *atomic.Int64, known *told) {
	for range 20 {
		n := int(next.Load())
		if _, err := store.Get(t.Context(), rowKey(n)); err == nil {
			known.add(n)
		}
		if errors.Is(commitOne(t, store, rowOf(n, 10)), tablestore.ErrConflict) {
			known.add(n)
		}
	}
}

func TestPowerLossAfterEachCommit(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	for n := range 40 {
		key := tablestore.Key{Table: "table", Partition: "p", Row: fmt.Sprint("r", n)}
		if _, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: key}}); err != nil {
			t.Fatal(err)
		}
		after := d.crashed(t)
		if _, err := after.Get(t.Context(), key); err != nil {
			t.Errorf("get after a crash right after commit %d: %v", n, err)
		}
	}
	closeStore(t, store)
}

func TestPowerLossKeepsANewDirectory(t *testing.T) {
	t.Parallel()
	d := newDisk()
	options := d.options()
	options.Dir = "new/directory/with/parents"
	store := open(t, options)
	defer closeStore(t, store)
	if err := commitOne(t, store, rowOf(1, 10)); err != nil {
		t.Fatal(err)
	}
	options.FS = d.crash()
	after := open(t, options)
	expectThere(t, after, 1)
	closeStore(t, after)
}
