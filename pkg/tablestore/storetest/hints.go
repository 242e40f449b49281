package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

var hintChecks = []check{
	{"hints/put overwrites any row", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		var etag tablestore.ETag
		for _, state := range []string{"absent", "there", "removed"} {
			if state == "removed" {
				e.commit(t, discard(key))
			}
			etags := e.commit(t, put(key, int64(len(state))))
			row := e.get(t, key)
			if diff := cmp.Diff(number(int64(len(state))), row.Properties); diff != "" {
				t.Errorf("put over a row that was %s (-want +got):\n%s", state, diff)
			}
			if row.ETag != etags[0] || row.ETag == etag {
				t.Errorf("put over a row that was %s: ETag %q, returned %q, before %q", state, row.ETag, etags[0], etag)
			}
			etag = row.ETag
		}
	}},
	{"hints/put writes all properties", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		e.commit(t, tablestore.Op{Verb: tablestore.Put, Key: key, Properties: tablestore.Properties{
			{Name: "dropped", Value: tablestore.Int(1)}}})
		e.commit(t, put(key, 2))
		if diff := cmp.Diff(number(2), e.get(t, key).Properties); diff != "" {
			t.Errorf("properties (-want +got):\n%s", diff)
		}
	}},
	{"hints/discard removes a row and accepts an absent one", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		e.commit(t, discard(key))
		e.commit(t, insert(key, 1))
		if etags := e.commit(t, discard(key)); etags[0] != "" {
			t.Errorf("discard returned the ETag %q", etags[0])
		}
		e.commit(t, discard(key))
		if rows := e.partition(t, "p"); len(rows) != 0 {
			t.Errorf("%d rows are left", len(rows))
		}
	}},
	{"hints/a batch may discard absent rows next to other ops", func(t testing.TB, e *env) {
		there := e.commit(t, insert(e.key("p", "there"), 1), insert(e.key("p", "state"), 1))
		etags := e.commit(t, discard(e.key("p", "absent")), discard(e.key("p", "there")),
			replace(e.key("p", "state"), there[1], 2), put(e.key("p", "hint"), 3))
		want := []tablestore.Row{
			{Key: e.key("p", "hint"), ETag: etags[3], Properties: number(3)},
			{Key: e.key("p", "state"), ETag: etags[2], Properties: number(2)},
		}
		if diff := cmp.Diff(want, e.partition(t, "p")); diff != "" {
			t.Errorf("partition (-want +got):\n%s", diff)
		}
	}},
	{"hints/a batch of absent rows alone is committed", func(t testing.TB, e *env) {
		e.commit(t, discard(e.key("p", "a")), discard(e.key("p", "b")))
		if rows := e.partition(t, "p"); len(rows) != 0 {
			t.Errorf("%d rows appeared", len(rows))
		}
	}},
}
