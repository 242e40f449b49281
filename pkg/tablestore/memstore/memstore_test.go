package memstore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]memstore.Options{"atomic": {}, "split": {Split: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			features := storetest.Features{Atomic: !options.Split, Walks: true}
			storetest.Run(t, features, func(testing.TB) storetest.Harness {
				return storetest.Harness{Store: memstore.New(options)}
			})
		})
	}
}

// TestRunsAreReproducible checks that the same calls give the same ETags, even
// after a failed call.
func TestRunsAreReproducible(t *testing.T) {
	t.Parallel()
	var runs [2][]tablestore.ETag
	for i := range runs {
		store := memstore.New(memstore.Options{})
		for n := range 5 {
			key := tablestore.Key{Table: "table", Partition: "p", Row: fmt.Sprint(n / 2)}
			etags, err := store.Commit(t.Context(), tablestore.Batch{
				{Verb: tablestore.Put, Key: tablestore.Key{Table: "table", Partition: "p", Row: "hint"}},
				{Verb: tablestore.Insert, Key: key},
			})
			if err != nil && !errors.Is(err, tablestore.ErrConflict) {
				t.Fatal(err)
			}
			runs[i] = append(runs[i], etags...)
		}
	}
	if diff := cmp.Diff(runs[0], runs[1]); diff != "" || len(runs[0]) != 6 {
		t.Errorf("%d ETags, two runs differ:\n%s", len(runs[0]), diff)
	}
}

// TestPagesContinueAfterTheirLastRow checks that a row inserted right after a
// page's last row is on the next page.
func TestPagesContinueAfterTheirLastRow(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{})
	insert := func(row string) {
		key := tablestore.Key{Table: "table", Partition: "p", Row: row}
		if _, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: key}}); err != nil {
			t.Fatal(err)
		}
	}
	insert("a")
	insert("c")
	query := tablestore.Query{Table: "table", Partition: "p", Limit: 1}
	page, err := store.Scan(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	insert("b")
	query.Continue = page.Next
	if page, err = store.Scan(t.Context(), query); err != nil || len(page.Rows) != 1 || page.Rows[0].Key.Row != "b" {
		t.Errorf("second page: %+v, %v, want row b", page, err)
	}
}

// TestSharedRowsAreNotCopied checks that a caller of a store that shares its rows gets the
// properties of the batch that wrote them, and cannot append to them.
func TestSharedRowsAreNotCopied(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{Shared: true})
	op := tablestore.Op{Verb: tablestore.Insert, Key: tablestore.Key{Table: "table", Partition: "p", Row: "r"}}
	op.Properties = append(make(tablestore.Properties, 0, 2), tablestore.Property{Name: "a", Value: tablestore.Int(1)})
	if _, err := store.Commit(t.Context(), tablestore.Batch{op}); err != nil {
		t.Fatal(err)
	}
	page, err := store.Scan(t.Context(), tablestore.Query{Table: op.Key.Table, Partition: op.Key.Partition})
	if err != nil || len(page.Rows) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	row, err := store.Get(t.Context(), op.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, properties := range []tablestore.Properties{page.Rows[0].Properties, row.Properties} {
		if &properties[0] != &op.Properties[0] || cap(properties) != 1 {
			t.Error("the properties are a copy, or have room for more")
		}
	}
}
