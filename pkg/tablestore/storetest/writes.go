package storetest

import (
	"errors"
	"fmt"
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

// stale returns an ETag that no row has any more: that of a removed row.
func (e *env) stale(t testing.TB, key tablestore.Key) tablestore.ETag {
	t.Helper()
	etag := e.commit(t, insert(key, 0))[0]
	e.commit(t, remove(key, etag))
	return etag
}

// conflicts commits a batch that must conflict on its op with index at, and
// must leave the partition unchanged, ETags included.
func (e *env) conflicts(t testing.TB, at int, ops ...tablestore.Op) {
	t.Helper()
	before := e.partition(t, ops[0].Key.Partition)
	etags, err := e.store.Commit(t.Context(), ops)
	var conflict *tablestore.ConflictError
	switch {
	case err == nil:
		t.Errorf("%s %s succeeded, want a conflict", ops[at].Verb, ops[at].Key)
	case !errors.As(err, &conflict):
		t.Errorf("%s %s: %v, want a conflict", ops[at].Verb, ops[at].Key, err)
	case conflict.Key == ops[at].Key && conflict.Verb == ops[at].Verb:
	case conflict.Key != tablestore.Key{} || !e.features.NamelessConflicts:
		t.Errorf("conflict names %s %s, want %s %s", conflict.Verb, conflict.Key, ops[at].Verb, ops[at].Key)
	}
	if err != nil && etags != nil {
		t.Errorf("a conflict came with the ETags %q", etags)
	}
	if diff := cmp.Diff(before, e.partition(t, ops[0].Key.Partition)); diff != "" {
		t.Errorf("a conflict changed the partition (-before +after):\n%s", diff)
	}
}

// expectConflict fails unless err is a conflict on that row, or one without a
// row if the features allow that.
func (e *env) expectConflict(t testing.TB, err error, key tablestore.Key) {
	t.Helper()
	conflict, ok := errors.AsType[*tablestore.ConflictError](err)
	if !ok || conflict.Key != key && !e.features.NamelessConflicts {
		t.Errorf("%v, want a conflict on %s", err, key)
	}
}

var conflictChecks = []check{
	{"conflicts/insert of an existing row", func(t testing.TB, e *env) {
		e.commit(t, insert(e.key("p", "r"), 1))
		e.conflicts(t, 0, insert(e.key("p", "r"), 2))
		e.conflicts(t, 0, insert(e.key("p", "r"), 1))
	}},
	{"conflicts/replace with a stale ETag", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		first := e.commit(t, insert(key, 1))[0]
		e.commit(t, replace(key, first, 2))
		e.conflicts(t, 0, replace(key, first, 3))
	}},
	{"conflicts/delete with a stale ETag", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		first := e.commit(t, insert(key, 1))[0]
		e.commit(t, replace(key, first, 2))
		e.conflicts(t, 0, remove(key, first))
	}},
	{"conflicts/replace and delete after a delete", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		etag := e.stale(t, key)
		e.conflicts(t, 0, replace(key, etag, 2))
		e.conflicts(t, 0, remove(key, etag))
	}},
	{"conflicts/replace and delete of a row that never existed", func(t testing.TB, e *env) {
		etag := e.stale(t, e.key("p", "other"))
		e.conflicts(t, 0, replace(e.key("p", "r"), etag, 2))
		e.conflicts(t, 0, remove(e.key("p", "r"), etag))
	}},
	{"conflicts/a deleted and inserted row has another ETag", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		etag := e.stale(t, key)
		e.commit(t, insert(key, 0))
		e.conflicts(t, 0, replace(key, etag, 2))
	}},
	{"conflicts/put makes the ETag before it stale", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		first := e.commit(t, insert(key, 1))[0]
		e.commit(t, put(key, 1))
		e.conflicts(t, 0, replace(key, first, 2))
	}},
	{"conflicts/another row's ETag is not this row's", func(t testing.TB, e *env) {
		etags := e.commit(t, insert(e.key("p", "a"), 1), insert(e.key("p", "b"), 1))
		second := e.commit(t, replace(e.key("p", "a"), etags[0], 1))[0]
		if second != e.get(t, e.key("p", "b")).ETag {
			e.conflicts(t, 0, replace(e.key("p", "b"), second, 2))
		}
	}},
}

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

var batchChecks = []check{
	{"batches/all ops take effect and return their ETags in order", func(t testing.TB, e *env) {
		before := e.commit(t, insert(e.key("p", "replaced"), 1), insert(e.key("p", "deleted"), 1))
		etags := e.commit(t,
			put(e.key("p", "put"), 2),
			remove(e.key("p", "deleted"), before[1]),
			replace(e.key("p", "replaced"), before[0], 3),
			insert(e.key("p", "inserted"), 4))
		want := []tablestore.Row{
			{Key: e.key("p", "inserted"), ETag: etags[3], Properties: number(4)},
			{Key: e.key("p", "put"), ETag: etags[0], Properties: number(2)},
			{Key: e.key("p", "replaced"), ETag: etags[2], Properties: number(3)},
		}
		if diff := cmp.Diff(want, e.partition(t, "p")); diff != "" {
			t.Errorf("partition (-want +got):\n%s", diff)
		}
		if etags[1] != "" {
			t.Errorf("delete returned the ETag %q", etags[1])
		}
	}},
	{"batches/one failed precondition at any index writes nothing", func(t testing.TB, e *env) {
		there := e.commit(t, insert(e.key("p", "a"), 1), insert(e.key("p", "b"), 1), insert(e.key("p", "c"), 1))
		stale := there[0]
		fresh := e.commit(t, replace(e.key("p", "a"), stale, 2))[0]
		good := []tablestore.Op{
			replace(e.key("p", "b"), there[1], 9), remove(e.key("p", "c"), there[2]),
			insert(e.key("p", "d"), 9), put(e.key("p", "e"), 9), discard(e.key("p", "f")),
		}
		for _, bad := range []tablestore.Op{
			insert(e.key("p", "a"), 9), replace(e.key("p", "a"), stale, 9), remove(e.key("p", "a"), stale),
			replace(e.key("p", "absent"), fresh, 9), remove(e.key("p", "absent"), fresh),
		} {
			for at := 0; at <= len(good); at++ {
				ops := append(append(append([]tablestore.Op{}, good[:at]...), bad), good[at:]...)
				e.conflicts(t, at, ops...)
			}
		}
	}},
	{"batches/the first of several conflicts is named", func(t testing.TB, e *env) {
		e.commit(t, insert(e.key("p", "a"), 1), insert(e.key("p", "b"), 1))
		e.conflicts(t, 1, put(e.key("p", "0"), 1), insert(e.key("p", "b"), 2), insert(e.key("p", "a"), 2))
	}},
	{"batches/the greatest number of ops", func(t testing.TB, e *env) {
		var ops []tablestore.Op
		for i := range tablestore.MaxBatchOps {
			ops = append(ops, insert(e.key("p", fmt.Sprintf("%03d", i)), int64(i)))
		}
		e.commit(t, ops...)
		if rows := e.partition(t, "p"); len(rows) != tablestore.MaxBatchOps {
			t.Errorf("%d rows, want %d", len(rows), tablestore.MaxBatchOps)
		}
	}},
	{"batches/partitions and tables are separate", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		e.commit(t, insert(key, 1))
		e.commit(t, insert(e.key("p2", "r"), 2))
		e.commit(t, insert(tablestore.Key{Table: e.harness.Tables[1], Partition: "p", Row: "r"}, 3))
		e.commit(t, discard(e.key("p2", "r")))
		if diff := cmp.Diff(number(1), e.get(t, key).Properties); diff != "" {
			t.Errorf("row changed by another partition's write (-want +got):\n%s", diff)
		}
	}},
}
