package pebblestore_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// stall blocks syncs of the log until the returned function is called, which
// may be called twice.
func stall(d *disk) (resume func()) {
	gate := make(chan struct{})
	d.inject(".log", func() error { <-gate; return nil }, errorfs.OpFileSync, errorfs.OpFileSyncData)
	return sync.OnceFunc(func() { close(gate) })
}

// started runs the call in a goroutine and returns a channel for its result.
func started[T any](call func() T) <-chan T {
	result := make(chan T, 1)
	go func() { result <- call() }()
	return result
}

// expectWaiting fails unless the call is still under way when every goroutine
// is blocked on the disk.
func expectWaiting[T any](t *testing.T, what string, result <-chan T) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-result:
		t.Fatalf("%s returned %v before the write was durable", what, got)
	default:
	}
}

func TestNothingIsReturnedBeforeItIsDurable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		store := open(t, d.options())
		defer closeStore(t, store)
		resume := stall(d)
		defer resume()
		commit := started(func() error { return commitOne(t, store, rowOf(1, 10)) })
		expectWaiting(t, "commit", commit)

		get := started(func() error { _, err := store.Get(t.Context(), rowKey(1)); return err })
		expectWaiting(t, "get", get)
		scan := started(func() int {
			page, err := store.Scan(t.Context(), tablestore.Query{Table: "table", Partition: rowKey(1).Partition})
			if err != nil {
				t.Errorf("scan: %v", err)
			}
			return len(page.Rows)
		})
		expectWaiting(t, "scan", scan)
		conflict := started(func() error { return commitOne(t, store, rowOf(1, 10)) })
		expectWaiting(t, "conflict", conflict)
		discard := started(func() error {
			return commitOne(t, store, tablestore.Batch{{Verb: tablestore.Discard, Key: rowKey(8)}})
		})
		expectWaiting(t, "discard of an absent row", discard)
		if _, err := d.crashed(t).Get(t.Context(), rowKey(1)); !errors.Is(err, tablestore.ErrNotFound) {
			t.Errorf("get after a crash: %v, want ErrNotFound", err)
		}

		resume()
		for what, result := range map[string]<-chan error{"commit": commit, "get": get, "discard": discard} {
			if err := <-result; err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if !errors.Is(<-conflict, tablestore.ErrConflict) {
			t.Error("the second insert does not conflict")
		}
		if rows := <-scan; rows != 1 {
			t.Errorf("scan found %d rows", rows)
		}
	})
}

// The process learns of a write before any other write or read of the stripe can depend on
// it.
func TestAppliedIsToldBeforeOthersSeeTheWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := open(t, newDisk().options())
		defer closeStore(t, store)
		tell := make(chan struct{})
		first := started(func() error {
			_, err := store.CommitAll(t.Context(), []tablestore.Batch{rowOf(1, 10)}, func([][]tablestore.ETag) { <-tell })
			return err
		})
		synctest.Wait()
		next := started(func() error { return commitOne(t, store, rowOf(8, 10)) }) // In the same partition.
		expectWaiting(t, "the next write", next)
		read := started(func() error { _, err := store.Get(t.Context(), rowKey(1)); return err })
		expectWaiting(t, "a read", read)
		close(tell)
		if err := errors.Join(<-first, <-next, <-read); err != nil {
			t.Error(err)
		}
	})
}

func TestOtherPartitionsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		store := open(t, d.options())
		defer closeStore(t, store)
		for n := range 7 {
			musttest.NoError(t, commitOne(t, store, rowOf(n, 10)))
		}
		resume := stall(d)
		defer resume()
		commit := started(func() error { return commitOne(t, store, rowOf(8, 10)) })
		synctest.Wait()
		read := 0
		for n := range 7 {
			result := started(func() error { _, err := store.Get(t.Context(), rowKey(n)); return err })
			synctest.Wait()
			select {
			case err := <-result:
				read++
				if err != nil {
					t.Errorf("get row %d: %v", n, err)
				}
			default:
			}
		}
		// Partitions rarely share a stripe.
		if read < 5 {
			t.Errorf("only %d of 6 other partitions could be read during a sync", read)
		}
		resume()
		if err := <-commit; err != nil {
			t.Errorf("commit: %v", err)
		}
	})
}

func TestCallerGivesUpWhileTheDiskIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		store := open(t, d.options())
		defer closeStore(t, store)
		resume := stall(d)
		defer resume()
		ctx, cancel := context.WithCancel(t.Context())
		commit := started(func() error { _, err := store.Commit(ctx, rowOf(1, 10)); return err })
		synctest.Wait()
		get := started(func() error { _, err := store.Get(ctx, rowKey(1)); return err })
		synctest.Wait()
		cancel()
		if err := <-commit; !errors.Is(err, tablestore.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("commit: %v, want ErrUnknown and context.Canceled", err)
		}
		if err := <-get; !errors.Is(err, tablestore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("get: %v, want ErrUnavailable and context.Canceled", err)
		}
		resume()
		expectThere(t, store, 1)
	})
}

// If a commit's caller leaves, its outcome is still known unless the disk is slow.
func TestACommitWhoseCallerLeavesHasAnOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		store := open(t, d.options())
		defer closeStore(t, store)
		resume := stall(d)
		ctx, cancel := context.WithCancel(t.Context())
		commit := started(func() error { _, err := store.Commit(ctx, rowOf(1, 10)); return err })
		synctest.Wait()
		cancel()
		time.Sleep(100 * time.Millisecond)
		expectWaiting(t, "commit", commit)
		resume()
		if err := <-commit; err != nil {
			t.Errorf("commit: %v", err)
		}
		expectThere(t, store, 1)
	})
}

func commitOne(t *testing.T, store tablestore.Store, batch tablestore.Batch) error {
	_, err := store.Commit(t.Context(), batch)
	return err
}

// crashed opens the disk in its state after a power loss now.
func (d *disk) crashed(t *testing.T) *pebblestore.Store {
	t.Helper()
	store := open(t, d.crash().options())
	t.Cleanup(func() { closeStore(t, store) })
	return store
}

// knownRows collects the rows that the store has acknowledged, returned, or named in
// a conflict. None of them may be lost.
type knownRows struct {
	mu   sync.Mutex
	rows []int
}

func (k *knownRows) add(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rows = append(k.rows, n)
}

func (k *knownRows) all() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]int(nil), k.rows...)
}

func TestPowerLossLosesNothingReturned(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	known := &knownRows{}
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
func write(t *testing.T, store tablestore.Store, next *atomic.Int64, known *knownRows) {
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

// peek reads and inserts rows that other goroutines are writing.
func peek(t *testing.T, store tablestore.Store, next *atomic.Int64, known *knownRows) {
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
	musttest.NoError(t, commitOne(t, store, rowOf(1, 10)))
	options.FS = d.crash()
	after := open(t, options)
	expectThere(t, after, 1)
	closeStore(t, after)
}

var errDisk = fmt.Errorf("input/output error of the test's disk: %w", syscall.EIO)

// disk is a file system in memory that loses unsynced data in a crash and whose
// operations can be made to fail or block.
type disk struct {
	vfs.FS
	memory *vfs.MemFS
	rule   atomic.Pointer[func(op errorfs.Op) error]
}

func newDisk() *disk { return diskOf(vfs.NewCrashableMem()) }

func diskOf(memory *vfs.MemFS) *disk {
	d := &disk{memory: memory}
	d.FS = errorfs.Wrap(memory, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if rule := d.rule.Load(); rule != nil {
			return (*rule)(op)
		}
		return nil
	}))
	return d
}

// GetDiskUsage returns the usage that the test has set.
func (d *disk) GetDiskUsage(path string) (vfs.DiskUsage, error) { return d.memory.GetDiskUsage(path) }

// ReuseForWrite makes a new file, as errorfs would not judge a reused one.
func (d *disk) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.Remove(oldname); err != nil {
		return nil, err
	}
	return d.Create(newname, category)
}

// inject makes every operation of these kinds on files with that suffix call the
// rule first.
func (d *disk) inject(suffix string, rule func() error, kinds ...errorfs.OpKind) {
	judge := func(op errorfs.Op) error {
		for _, kind := range kinds {
			if op.Kind == kind && strings.HasSuffix(op.Path, suffix) {
				return rule()
			}
		}
		return nil
	}
	d.rule.Store(&judge)
}

// heal makes every operation succeed again.
func (d *disk) heal() { d.rule.Store(nil) }

// crash returns the disk as it is after a power loss.
func (d *disk) crash() *disk { return diskOf(d.memory.CrashClone(vfs.CrashCloneCfg{})) }

func (d *disk) options() pebblestore.Options {
	return pebblestore.Options{Dir: "data", FS: d}.WithMemTable(512 << 10)
}

func rowKey(n int) tablestore.Key {
	return tablestore.Key{Table: "table", Partition: fmt.Sprint("p", n%7), Row: fmt.Sprint("r", n)}
}

// rowOf returns a batch that inserts one row of about that many bytes.
func rowOf(n, size int) tablestore.Batch {
	properties := tablestore.Properties{{Name: "n", Value: tablestore.Int(int64(n))}}
	return tablestore.Batch{{Verb: tablestore.Insert, Key: rowKey(n),
		Properties: tablestore.AppendLarge(properties, "data", make([]byte, size))}}
}

// randomText returns a text of 10,000 bytes, most of which no compression saves.
func randomText(from *rand.ChaCha8) tablestore.Value {
	data := make([]byte, 7_500)
	_, _ = from.Read(data) // It never fails.
	return tablestore.String(base64.StdEncoding.EncodeToString(data))
}

// expectThere fails unless the rows are stored.
func expectThere(t *testing.T, store tablestore.Store, rows ...int) {
	t.Helper()
	for _, n := range rows {
		row, err := store.Get(t.Context(), rowKey(n))
		if err != nil {
			t.Errorf("get row %d: %v", n, err)
		} else if got := row.Properties.Get("n").Int(); got != int64(n) {
			t.Errorf("row %d holds %d", n, got)
		}
	}
}

func closeStore(t testing.TB, store tablestore.Store) {
	t.Helper()
	if err := store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}
