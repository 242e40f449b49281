package storetest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// atomicChecks test CommitAll.
var atomicChecks = []check{
	{"atomic/batches of many partitions and tables are one write", func(t testing.TB, e *env) {
		store := e.atomic(t)
		other := tablestore.Key{Table: e.harness.Tables[1], Partition: "p", Row: "r"}
		batches := []tablestore.Batch{{insert(e.key("p", "a"), 1), insert(e.key("p", "b"), 1)}, {insert(other, 2)}}
		etags, err := store.CommitAll(t.Context(), batches)
		if err != nil {
			t.Fatalf("commit all: %v", err)
		}
		for i, batch := range batches {
			for j, op := range batch {
				if row := e.get(t, op.Key); row.ETag != etags[i][j] || !row.Properties.Equal(op.Properties) {
					t.Errorf("%s is %+v, want ETag %q", op.Key, row, etags[i][j])
				}
			}
		}
		batches[0] = tablestore.Batch{insert(e.key("p", "c"), 1)}
		_, err = store.CommitAll(t.Context(), batches)
		if conflict, ok := errors.AsType[*tablestore.ConflictError](err); !ok || conflict.Key != other {
			t.Errorf("commit all: %v, want a conflict on %s", err, other)
		}
		if got := e.contents(t, "p"); len(got) != 2 {
			t.Errorf("rows after a conflict: %v", got)
		}
	}},
	{"atomic/a later op sees the earlier one", func(t testing.TB, e *env) {
		store, key := e.atomic(t), e.key("p", "r")
		for what, steps := range map[string]struct {
			ops  []tablestore.Op
			want map[tablestore.Key]int64
			fail int // The op that conflicts, or -1.
		}{
			"insert, insert": {[]tablestore.Op{insert(key, 1), insert(key, 2)}, nil, 1},
			"insert, replace": {
				[]tablestore.Op{insert(key, 1), replace(key, tablestore.Own, 2)}, map[tablestore.Key]int64{key: 2}, -1,
			},
			"insert, delete":       {[]tablestore.Op{insert(key, 1), remove(key, tablestore.Own)}, nil, -1},
			"insert, discard":      {[]tablestore.Op{insert(key, 1), discard(key)}, nil, -1},
			"put, discard, insert": {[]tablestore.Op{put(key, 1), discard(key), insert(key, 3)}, map[tablestore.Key]int64{key: 3}, -1},
			"insert, put, replace": {
				[]tablestore.Op{insert(key, 1), put(key, 2), replace(key, tablestore.Own, 3)},
				map[tablestore.Key]int64{key: 3}, -1,
			},
			"discard, discard, put":  {[]tablestore.Op{discard(key), discard(key), put(key, 4)}, map[tablestore.Key]int64{key: 4}, -1},
			"insert, discard, again": {[]tablestore.Op{insert(key, 1), discard(key), insert(key, 5), insert(key, 6)}, nil, 3},
		} {
			e.expectFold(t, store, what, steps.ops, steps.want, steps.fail)
			e.commit(t, discard(key))
		}
	}},
	{"atomic/own without an earlier write is ErrInvalid", func(t testing.TB, e *env) {
		store, key := e.atomic(t), e.key("p", "r")
		for what, batches := range map[string][]tablestore.Batch{
			"alone":           {{replace(key, tablestore.Own, 1)}},
			"after a discard": {{put(key, 1)}, {discard(key)}, {replace(key, tablestore.Own, 1)}},
			"another row":     {{put(e.key("p", "other"), 1)}, {remove(key, tablestore.Own)}},
		} {
			if _, err := store.CommitAll(t.Context(), batches); !errors.Is(err, tablestore.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", what, err)
			}
		}
		if got := e.contents(t, "p"); len(got) != 0 {
			t.Errorf("rows %v, want none", got)
		}
	}},
	{"atomic/each batch keeps the limits", func(t testing.TB, e *env) {
		store := e.atomic(t)
		_, err := store.CommitAll(t.Context(), []tablestore.Batch{
			{insert(e.key("p", "a"), 1)}, {insert(e.key("p", "b"), 1), insert(e.key("q", "b"), 1)}})
		if !errors.Is(err, tablestore.ErrInvalid) {
			t.Errorf("commit all: %v, want ErrInvalid", err)
		}
		if got := e.contents(t, "p", "q"); len(got) != 0 {
			t.Errorf("rows %v, want none", got)
		}
	}},
	{"atomic/a crash leaves all stages or none", func(t testing.TB, e *env) {
		applied, err := tablestore.Apply(t.Context(), crashing(t, e.store, 2), e.acceptance())
		if err != nil || !applied.Committed {
			t.Errorf("apply takes more than one write: %+v, %v", applied, err)
		}
	}},
}

// atomic returns the store as an AtomicStore, or fails the test.
func (e *env) atomic(t testing.TB) tablestore.AtomicStore {
	t.Helper()
	store, ok := e.store.(tablestore.AtomicStore)
	if !ok {
		t.Fatalf("%T is not an AtomicStore", e.store)
	}
	return store
}

// expectFold commits each op as a batch of its own in one CommitAll.
func (e *env) expectFold(
	t testing.TB, store tablestore.AtomicStore, what string, ops []tablestore.Op, want map[tablestore.Key]int64, fail int,
) {
	t.Helper()
	var batches []tablestore.Batch
	for _, op := range ops {
		batches = append(batches, tablestore.Batch{op})
	}
	etags, err := store.CommitAll(t.Context(), batches)
	if fail >= 0 && !errors.Is(err, tablestore.ErrConflict) || fail < 0 && err != nil {
		t.Errorf("%s: %v, conflict expected at %d", what, err, fail)
	}
	got := e.contents(t, ops[0].Key.Partition)
	if len(got) != len(want) || len(want) > 0 && !cmp.Equal(want, got) {
		t.Errorf("%s: rows %v, want %v", what, got, want)
	}
	if err == nil && len(want) > 0 && e.get(t, ops[0].Key).ETag != etags[len(etags)-1][0] {
		t.Errorf("%s: the last ETag returned is not the row's", what)
	}
}
