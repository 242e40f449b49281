package memstore_test

import (
	"errors"
	"fmt"
	"slices"
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

// TestTail_LosesTheCommitsThatAreNotDurable checks that a loss undoes the newest commits,
// with the versions of the rows, and no other.
func TestTail_LosesTheCommitsThatAreNotDurable(t *testing.T) {
	t.Parallel()
	tail := &memstore.Tail{}
	store := memstore.New(memstore.Options{Tail: tail})
	key := func(row string) tablestore.Key { return tablestore.Key{Table: "table", Partition: "p", Row: row} }
	commit := func(ops ...tablestore.Op) []tablestore.ETag {
		t.Helper()
		etags, err := store.Commit(t.Context(), ops)
		if err != nil {
			t.Fatal(err)
		}
		return etags
	}
	n := func(n int64) tablestore.Properties {
		return tablestore.Properties{{Name: "n", Value: tablestore.Int(n)}}
	}
	first := commit(tablestore.Op{Verb: tablestore.Insert, Key: key("kept"), Properties: n(1)},
		tablestore.Op{Verb: tablestore.Insert, Key: key("removed"), Properties: n(1)})
	kept := commit(tablestore.Op{Verb: tablestore.Replace, Key: key("kept"), ETag: first[0], Properties: n(2)})
	lost := commit(tablestore.Op{Verb: tablestore.Replace, Key: key("kept"), ETag: kept[0], Properties: n(3)},
		tablestore.Op{Verb: tablestore.Delete, Key: key("removed"), ETag: first[1]})
	lost = append(lost, commit(tablestore.Op{Verb: tablestore.Insert, Key: key("removed"), Properties: n(4)},
		tablestore.Op{Verb: tablestore.Insert, Key: key("new")})...)
	if tail.Sync(2); tail.Len() != 2 {
		t.Fatalf("%d commits are not durable, want 2", tail.Len())
	}
	tail.Lose()
	page, err := store.Scan(t.Context(), tablestore.Query{Table: "table", Partition: "p"})
	if err != nil {
		t.Fatal(err)
	}
	want := []tablestore.Row{
		{Key: key("kept"), ETag: kept[0], Properties: n(2)}, {Key: key("removed"), ETag: first[1], Properties: n(1)},
	}
	if diff := cmp.Diff(want, page.Rows); diff != "" || tail.Len() != 0 {
		t.Errorf("%d commits are not durable, and the rows differ:\n%s", tail.Len(), diff)
	}
	if again := commit(tablestore.Op{Verb: tablestore.Insert, Key: key("new")}); slices.Contains(lost, again[0]) {
		t.Errorf("version %s is used again", again[0])
	}
}
