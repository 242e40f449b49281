package pebblestore_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// files returns the contents of a directory's files by name, except the lock.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if entry.Name() != "LOCK" {
			found[entry.Name()] = string(data)
		}
	}
	return found
}

// TestReadOnly_ChangesNothing opens a directory with writes that are only in
// the log.
func TestReadOnly_ChangesNothing(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: t.TempDir()}
	key := tablestore.Key{Table: "table", Partition: "p", Row: "r"}
	batch := tablestore.Batch{{Verb: tablestore.Put, Key: key}}
	store := open(t, options)
	if _, err := store.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	closeStore(t, store)
	before := files(t, options.Dir)

	options.ReadOnly = true
	store = open(t, options)
	if _, err := store.Get(t.Context(), key); err != nil {
		t.Errorf("read: %v", err)
	}
	if _, err := store.Commit(t.Context(), batch); !errors.Is(err, tablestore.ErrInvalid) {
		t.Errorf("write: %v, want ErrInvalid", err)
	}
	if err := store.Writable(); !errors.Is(err, tablestore.ErrInvalid) {
		t.Errorf("it is writable: %v, want ErrInvalid", err)
	}
	rows, err := store.Walk(t.Context(), tablestore.Walk{Table: "table"})
	if err != nil || len(rows) != 1 {
		t.Errorf("walk: %d rows, %v", len(rows), err)
	}
	expectOpenError(t, options, pebblestore.ErrLocked, "in use")
	closeStore(t, store)
	if diff := cmp.Diff(before, files(t, options.Dir)); diff != "" {
		t.Errorf("the directory changed (-before +after):\n%.2000s", diff)
	}
}

func TestReadOnly_NeedsAnExistingStore(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "missing")} {
		expectOpenError(t, pebblestore.Options{Dir: dir, ReadOnly: true}, pebblestore.ErrNoStore, "no data directory")
	}
	if found := files(t, empty); len(found) != 0 {
		t.Errorf("the directory holds %v", found)
	}
}
