package storetest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

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
	{"conflicts/insert of a row that is there", func(t testing.TB, e *env) {
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
