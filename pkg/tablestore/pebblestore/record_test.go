package pebblestore

import (
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestRowIsStoredExactly(t *testing.T) {
	t.Parallel()
	key := tablestore.Key{Table: "table", Partition: "p", Row: "r"}
	want := tablestore.Row{Key: key, ETag: formatETag(12, 255), Properties: tablestore.Properties{
		{Name: "n", Value: tablestore.Int(-5)}, {Name: "s", Value: tablestore.String("text")}}}
	data, _ := appendRow(nil, want.ETag, want.Properties, nil)
	got, err := decodeRow(key, data, nil)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("row (-want +got): %v\n%s", err, diff)
	}
	if want.ETag != "c.ff" {
		t.Errorf("ETag %q, want c.ff", want.ETag)
	}
}

func TestDamagedRowIsErrCorrupt(t *testing.T) {
	t.Parallel()
	key := tablestore.Key{Table: "table", Partition: "p", Row: "r"}
	good, _ := appendRow(nil, "1.1", tablestore.Properties{{Name: "n", Value: tablestore.Int(1)}}, nil)
	for n := range good {
		if _, err := decodeRow(key, good[:n], nil); !errors.Is(err, tablestore.ErrCorrupt) {
			t.Errorf("the first %d of %d bytes: %v, want ErrCorrupt", n, len(good), err)
		}
	}
	store := musttest.Make(t, Open, Options{Dir: "data", FS: vfs.NewMem()})
	musttest.NoError(t, store.db.Set(storedKey(key), []byte{9, 9}, pebble.Sync))
	if _, err := store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrCorrupt) {
		t.Errorf("get: %v, want ErrCorrupt", err)
	}
	query := tablestore.Query{Table: "table", Partition: "p"}
	if _, err := store.Scan(t.Context(), query); !errors.Is(err, tablestore.ErrCorrupt) {
		t.Errorf("scan: %v, want ErrCorrupt", err)
	}
	insert := tablestore.Batch{{Verb: tablestore.Insert, Key: key}}
	if _, err := store.Commit(t.Context(), insert); !errors.Is(err, tablestore.ErrCorrupt) {
		t.Errorf("commit: %v, want ErrCorrupt", err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

func TestEngineMessages(t *testing.T) {
	t.Parallel()
	var fatal error
	store, err := Open(Options{Dir: "data", FS: vfs.NewMem(), Fatal: func(cause error) {
		fatal = cause
		panic(cause)
	}})
	musttest.NoError(t, err)
	store.engine.Infof("%d note", 1)
	store.engine.Errorf("%d complaint", 1)
	if fatal != nil {
		t.Errorf("a note and a complaint end the process: %v", fatal)
	}
	func() {
		defer func() { _ = recover() }()
		store.engine.Fatalf("%d assertion failed", 1)
	}()
	if fatal == nil || !strings.Contains(fatal.Error(), "storage engine: 1 assertion failed") {
		t.Errorf("a fatal message: %v", fatal)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
