package pebblestore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// stall blocks syncs of the log until the returned function is called, which
// may be called twice.
func stall(d *disk) (resume func()) {
	gate := make(chan struct{})
	d.obey(".log", func() error { <-gate; return nil }, errorfs.OpFileSync, errorfs.OpFileSyncData)
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

func TestOtherPartitionsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		store := open(t, d.options())
		defer closeStore(t, store)
		for n := range 7 {
			if err := commitOne(t, store, rowOf(n, 10)); err != nil {
				t.Fatal(err)
			}
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

func commitOne(t *testing.T, store tablestore.Store, batch tablestore.Batch) error {
	_, err := store.Commit(t.Context(), batch)
	return err
}

// crashed opens the disk as it would be after a power loss now.
func (d *disk) crashed(t *testing.T) *pebblestore.Store {
	t.Helper()
	store := open(t, d.crash().options())
	t.Cleanup(func() { closeStore(t, store) })
	return store
}
