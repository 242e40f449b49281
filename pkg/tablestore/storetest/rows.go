package storetest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

var rowChecks = []check{
	{"rows/an inserted row is read back with its ETag", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		etags := e.commit(t, insert(key, 7))
		want := tablestore.Row{Key: key, ETag: etags[0], Properties: number(7)}
		if diff := cmp.Diff(want, e.get(t, key)); diff != "" {
			t.Errorf("get (-want +got):\n%s", diff)
		}
		if etags[0] == "" {
			t.Error("the ETag is empty")
		}
	}},
	{"rows/an absent row is ErrNotFound", func(t testing.TB, e *env) {
		e.commit(t, insert(e.key("p", "r"), 1))
		for _, key := range []tablestore.Key{e.key("p", "other"), e.key("other", "r"),
			{Table: e.harness.Tables[1], Partition: "p", Row: "r"}} {
			if _, err := e.store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrNotFound) {
				t.Errorf("get %s: %v, want ErrNotFound", key, err)
			}
		}
	}},
	{"rows/replace writes all properties", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		before := e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: tablestore.Properties{
			{Name: "kept", Value: tablestore.Int(1)}, {Name: "dropped", Value: tablestore.Int(2)}}})
		want := tablestore.Properties{{Name: "kept", Value: tablestore.Int(3)}, {Name: "added", Value: tablestore.Int(4)}}
		e.commit(t, tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: before[0], Properties: want})
		if diff := cmp.Diff(want, e.get(t, key).Properties); diff != "" {
			t.Errorf("properties (-want +got):\n%s", diff)
		}
	}},
	{"rows/delete removes the row, which may be inserted again", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		first := e.commit(t, insert(key, 1))
		if gone := e.commit(t, remove(key, first[0])); gone[0] != "" {
			t.Errorf("delete returned the ETag %q", gone[0])
		}
		if _, err := e.store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrNotFound) {
			t.Errorf("get after delete: %v, want ErrNotFound", err)
		}
		if again := e.commit(t, insert(key, 1)); again[0] == first[0] {
			t.Errorf("the new row has the ETag %q of the deleted one", again[0])
		}
	}},
	{"rows/every write gives a new ETag, also of the same content", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		seen := map[tablestore.ETag]bool{}
		etag := e.commit(t, insert(key, 1))[0]
		for range 10 {
			if seen[etag] {
				t.Fatalf("ETag %q was given twice", etag)
			}
			seen[etag] = true
			etag = e.commit(t, replace(key, etag, 1))[0]
		}
		if put := e.commit(t, put(key, 1))[0]; seen[put] || put == etag {
			t.Errorf("put gave the known ETag %q", put)
		}
	}},
	{"rows/a row may have no properties", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: key})
		if row := e.get(t, key); len(row.Properties) != 0 {
			t.Errorf("properties %v, want none", row.Properties)
		}
	}},
}
