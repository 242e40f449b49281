package storetest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// acceptance returns a change like that of an accepted command: a schedule
// entry, a record and a slot, then the job, then the removal of the entry and
// the confirmed record.
func (e *env) acceptance() tablestore.Change {
	record, entry := e.key("record", "c"), e.key("schedule", "s")
	return tablestore.Change{
		Pre: []tablestore.Stage{
			{{put(entry, 1)}, {insert(record, 1)}},
			{{insert(e.key("slots", "s"), 1)}},
		},
		Commit: tablestore.Batch{insert(e.key("job", "JOB"), 1), insert(e.key("job", "STEP:0"), 1)},
		Post: []tablestore.Stage{
			{{replace(record, tablestore.Own, 2)}, {discard(entry)}},
			{{remove(record, tablestore.Own)}, {put(entry, 3)}},
		},
	}
}

// contents returns the numbers in the rows of these partitions of the first
// table.
func (e *env) contents(t testing.TB, partitions ...string) map[tablestore.Key]int64 {
	t.Helper()
	held := map[tablestore.Key]int64{}
	for _, partition := range partitions {
		for _, row := range e.partition(t, partition) {
			held[row.Key] = row.Properties.Get("n").Int()
		}
	}
	return held
}

// expectETags fails unless etags holds exactly the stored ETags of these keys.
func (e *env) expectETags(t testing.TB, etags map[tablestore.Key]tablestore.ETag, keys ...tablestore.Key) {
	t.Helper()
	if len(etags) != len(keys) {
		t.Errorf("ETags of %v, want those of %v", slices.Collect(maps.Keys(etags)), keys)
	}
	for _, key := range keys {
		if row := e.get(t, key); row.ETag != etags[key] {
			t.Errorf("ETag of %s is %q, apply returned %q", key, row.ETag, etags[key])
		}
	}
}

// applyChecks test Apply on every store, atomic or not.
var applyChecks = []check{
	{"apply/all stages take effect", func(t testing.TB, e *env) {
		applied, err := tablestore.Apply(t.Context(), e.store, e.acceptance(), nil)
		if err != nil || !applied.Committed || applied.PostErr != nil {
			t.Fatalf("apply: %+v, %v", applied, err)
		}
		want := map[tablestore.Key]int64{
			e.key("schedule", "s"): 3, e.key("slots", "s"): 1, e.key("job", "JOB"): 1, e.key("job", "STEP:0"): 1,
		}
		if diff := cmp.Diff(want, e.contents(t, "schedule", "record", "slots", "job")); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		e.expectETags(t, applied.ETags, slices.Collect(maps.Keys(want))...)
	}},
	{"apply/own names a row that an earlier stage wrote", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		first := e.commit(t, insert(key, 1))[0]
		applied, err := tablestore.Apply(t.Context(), e.store, tablestore.Change{
			Pre:    []tablestore.Stage{{{replace(key, first, 2)}}, {{replace(key, tablestore.Own, 3)}}},
			Commit: tablestore.Batch{replace(key, tablestore.Own, 4)},
			Post:   []tablestore.Stage{{{replace(key, tablestore.Own, 5)}}},
		}, nil)
		if err != nil || applied.PostErr != nil {
			t.Fatalf("apply: %+v, %v", applied, err)
		}
		if got := e.get(t, key).Properties.Get("n").Int(); got != 5 {
			t.Errorf("the row holds %d, want 5", got)
		}
		e.expectETags(t, applied.ETags, key)
	}},
	{"apply/own after a put, and a discard", func(t testing.TB, e *env) {
		a, b := e.key("p", "a"), e.key("p", "b")
		applied, err := tablestore.Apply(t.Context(), e.store, tablestore.Change{
			Pre:    []tablestore.Stage{{{put(a, 1), insert(b, 1)}}},
			Commit: tablestore.Batch{remove(a, tablestore.Own), discard(b)},
			Post:   []tablestore.Stage{{{insert(a, 3)}}},
		}, nil)
		if err != nil || applied.PostErr != nil {
			t.Fatalf("apply: %+v, %v", applied, err)
		}
		e.expectETags(t, applied.ETags, a)
		if got := e.contents(t, "p"); len(got) != 1 || got[a] != 3 {
			t.Errorf("rows %v, want only %s with 3", got, a)
		}
	}},
	{"apply/a conflict of the commit is returned", func(t testing.TB, e *env) {
		e.commit(t, insert(e.key("job", "JOB"), 7))
		applied, err := tablestore.Apply(t.Context(), e.store, e.acceptance(), nil)
		e.expectConflict(t, err, e.key("job", "JOB"))
		if applied.Committed {
			t.Error("apply reports the change as committed")
		}
		if got := e.contents(t, "job"); len(got) != 1 || got[e.key("job", "JOB")] != 7 {
			t.Errorf("job rows %v, want the one before", got)
		}
	}},
	{"apply/a conflict of a pre batch stops before the commit", func(t testing.TB, e *env) {
		e.commit(t, insert(e.key("slots", "s"), 7))
		applied, err := tablestore.Apply(t.Context(), e.store, e.acceptance(), nil)
		e.expectConflict(t, err, e.key("slots", "s"))
		if got := e.contents(t, "job"); applied.Committed || len(got) != 0 {
			t.Errorf("committed %t, job rows %v", applied.Committed, got)
		}
	}},
	{"apply/a conflict of a post batch does not stop the commit", func(t testing.TB, e *env) {
		e.commit(t, insert(e.key("q", "there"), 1))
		applied, err := tablestore.Apply(t.Context(), e.store, tablestore.Change{
			Pre:    []tablestore.Stage{{{insert(e.key("p", "pre"), 1)}}},
			Commit: tablestore.Batch{insert(e.key("p", "commit"), 1)},
			Post:   []tablestore.Stage{{{insert(e.key("q", "there"), 2)}}, {{insert(e.key("q", "later"), 2)}}},
		}, nil)
		if err != nil || !applied.Committed {
			t.Fatalf("apply: %+v, %v", applied, err)
		}
		if !errors.Is(applied.PostErr, tablestore.ErrConflict) {
			t.Errorf("post error %v, want a conflict", applied.PostErr)
		}
		want := map[tablestore.Key]int64{e.key("p", "pre"): 1, e.key("p", "commit"): 1, e.key("q", "there"): 1}
		if diff := cmp.Diff(want, e.contents(t, "p", "q")); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		e.expectETags(t, applied.ETags, e.key("p", "pre"), e.key("p", "commit"))
	}},
	{"apply/a change that breaks a rule writes nothing", func(t testing.TB, e *env) {
		change := e.acceptance()
		change.Post = append(change.Post, tablestore.Stage{{replace(e.key("p", "r"), tablestore.Own, 1)}})
		if _, err := tablestore.Apply(t.Context(), e.store, change, nil); !errors.Is(err, tablestore.ErrInvalid) {
			t.Errorf("apply: %v, want ErrInvalid", err)
		}
		if got := e.contents(t, "schedule", "record", "slots", "job", "p"); len(got) != 0 {
			t.Errorf("rows %v, want none", got)
		}
	}},
}

// atomicChecks test CommitAll.
var atomicChecks = []check{
	{"atomic/batches of many partitions and tables are one write", func(t testing.TB, e *env) {
		store := e.atomic(t)
		other := tablestore.Key{Table: e.harness.Tables[1], Partition: "p", Row: "r"}
		batches := []tablestore.Batch{{insert(e.key("p", "a"), 1), insert(e.key("p", "b"), 1)}, {insert(other, 2)}}
		etags, err := store.CommitAll(t.Context(), batches, nil)
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
		_, err = store.CommitAll(t.Context(), batches, nil)
		if conflict, ok := errors.AsType[*tablestore.ConflictError](err); !ok || conflict.Key != other {
			t.Errorf("commit all: %v, want a conflict on %s", err, other)
		}
		if got := e.contents(t, "p"); len(got) != 2 {
			t.Errorf("rows after a conflict: %v", got)
		}
	}},
	{"atomic/applied is told the versions once, of a write that is made", func(t testing.TB, e *env) {
		store := e.atomic(t)
		var told [][][]tablestore.ETag
		applied := func(etags [][]tablestore.ETag) { told = append(told, etags) }
		batches := []tablestore.Batch{{insert(e.key("p", "a"), 1), insert(e.key("p", "b"), 1)}, {insert(e.key("q", "c"), 2)}}
		etags, err := store.CommitAll(t.Context(), batches, applied)
		if err != nil || len(told) != 1 || !reflect.DeepEqual(told[0], etags) {
			t.Errorf("commit all: %v, %v, told %v", etags, err, told)
		}
		if _, err := store.CommitAll(t.Context(), batches, applied); err == nil || len(told) > 1 {
			t.Errorf("commit all again: %v, told %v", err, told)
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
			if _, err := store.CommitAll(t.Context(), batches, nil); !errors.Is(err, tablestore.ErrInvalid) {
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
			{insert(e.key("p", "a"), 1)}, {insert(e.key("p", "b"), 1), insert(e.key("q", "b"), 1)}}, nil)
		if !errors.Is(err, tablestore.ErrInvalid) {
			t.Errorf("commit all: %v, want ErrInvalid", err)
		}
		if got := e.contents(t, "p", "q"); len(got) != 0 {
			t.Errorf("rows %v, want none", got)
		}
	}},
	{"atomic/rows are read by their keys, in their order", func(t testing.TB, e *env) {
		store := e.atomic(t)
		first, other := e.key("p", "a"), tablestore.Key{Table: e.harness.Tables[1], Partition: "q", Row: "b"}
		e.commit(t, put(first, 1))
		e.commit(t, put(other, 2))
		keys := []tablestore.Key{other, e.key("p", "absent"), first, e.key("q", "b"), other}
		rows, err := store.GetAll(t.Context(), keys)
		if err != nil || len(rows) != len(keys) {
			t.Fatalf("get all: %d rows, %v", len(rows), err)
		}
		for i, want := range []tablestore.Row{e.get(t, other), {}, e.get(t, first), {}, e.get(t, other)} {
			if !reflect.DeepEqual(want, rows[i]) {
				t.Errorf("row %d is %+v, want %+v", i, rows[i], want)
			}
		}
		if rows, err := store.GetAll(t.Context(), nil); err != nil || len(rows) != 0 {
			t.Errorf("no keys: %v, %v", rows, err)
		}
		if _, err := store.GetAll(t.Context(), []tablestore.Key{first, e.key("p", "")}); !errors.Is(err, tablestore.ErrInvalid) {
			t.Errorf("a key without a row: %v, want ErrInvalid", err)
		}
	}},
	{"atomic/clear removes all rows of the partition", func(t testing.TB, e *env) {
		store := e.atomic(t)
		var old tablestore.ETag
		for i := range 250 {
			old = e.commit(t, put(e.key("p", fmt.Sprintf("r%03d", i)), 1))[0]
		}
		last := e.key("p", "r249")
		for _, near := range []string{"o", "p-", "pa", "p0"} {
			e.commit(t, put(e.key(near, "r"), 1))
		}
		elsewhere := tablestore.Key{Table: e.harness.Tables[1], Partition: "p", Row: "r"}
		e.commit(t, put(elsewhere, 1))
		etags, err := store.CommitAll(t.Context(), []tablestore.Batch{
			{remove(last, old)}, {insert(e.key("p", "new"), 1)}, {clearing(e.key("p", ""))}, {clearing(e.key("none", ""))},
			{put(e.key("q", "r"), 1)},
		}, nil)
		if err != nil || len(etags) != 5 || !slices.Equal(etags[2], []tablestore.ETag{""}) {
			t.Fatalf("commit all: %v, %v", etags, err)
		}
		got := e.contents(t, "o", "p", "p-", "pa", "p0", "q")
		if len(got) != 5 || got[e.key("q", "r")] != 1 {
			t.Errorf("rows %v, want those of the other partitions", got)
		}
		e.get(t, elsewhere)
		e.commit(t, insert(last, 2)) // The store has forgotten the rows.
		if got := e.contents(t, "p"); len(got) != 1 {
			t.Errorf("after the clear: rows %v", got)
		}
		if _, err := store.CommitAll(t.Context(), []tablestore.Batch{{clearing(e.key("p", ""))}}, nil); err != nil {
			t.Errorf("nothing but a clear: %v", err)
		}
		if got := e.contents(t, "p"); len(got) != 0 {
			t.Errorf("after nothing but a clear: rows %v", got)
		}
	}},
	{"atomic/a conflict clears nothing", func(t testing.TB, e *env) {
		store := e.atomic(t)
		e.commit(t, put(e.key("p", "a"), 1), put(e.key("p", "b"), 1))
		_, err := store.CommitAll(t.Context(), []tablestore.Batch{
			{clearing(e.key("p", ""))}, {insert(e.key("q", "a"), 1)}, {remove(e.key("q", "gone"), "x")},
		}, nil)
		if !errors.Is(err, tablestore.ErrConflict) {
			t.Errorf("commit all: %v, want ErrConflict", err)
		}
		if got := e.contents(t, "p", "q"); len(got) != 2 {
			t.Errorf("rows %v, want both", got)
		}
	}},
	{"atomic/nothing follows a clear of its partition", func(t testing.TB, e *env) {
		store := e.atomic(t)
		whole := clearing(e.key("p", ""))
		for what, batches := range map[string][]tablestore.Batch{
			"a later write":    {{whole}, {put(e.key("p", "r"), 1)}},
			"a second clear":   {{whole}, {whole}},
			"a row":            {{clearing(e.key("p", "r"))}},
			"in a batch":       {{put(e.key("p", "r"), 1), whole}},
			"with properties":  {{{Verb: tablestore.Clear, Key: whole.Key, Properties: number(1)}}},
			"with an ETag":     {{{Verb: tablestore.Clear, Key: whole.Key, ETag: "x"}}},
			"of no partition":  {{clearing(e.key("", ""))}},
			"of a broken name": {{clearing(e.key("p/", ""))}},
		} {
			if _, err := store.CommitAll(t.Context(), batches, nil); !errors.Is(err, tablestore.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", what, err)
			}
		}
	}},
	{"atomic/a crash leaves all stages or none", func(t testing.TB, e *env) {
		applied, err := tablestore.Apply(t.Context(), crashing(t, e.store, 2), e.acceptance(), nil)
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
	etags, err := store.CommitAll(t.Context(), batches, nil)
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

// clearing clears the partition of a key without a row.
func clearing(key tablestore.Key) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Clear, Key: key}
}

// splitChecks test stores on which a change is several writes.
var splitChecks = []check{
	{"split/the store clears no partition", func(t testing.TB, e *env) {
		e.commit(t, put(e.key("p", "r"), 1))
		if _, err := e.store.Commit(t.Context(), tablestore.Batch{clearing(e.key("p", ""))}); !errors.Is(err, tablestore.ErrInvalid) {
			t.Errorf("commit: %v, want ErrInvalid", err)
		}
		e.get(t, e.key("p", "r"))
	}},
	{"split/the store has no CommitAll", func(t testing.TB, e *env) {
		if _, atomic := e.store.(tablestore.AtomicStore); atomic {
			t.Errorf("%T is an AtomicStore, but Features says that it is not", e.store)
		}
	}},
	{"split/a crash before the commit leaves pre rows only", func(t testing.TB, e *env) {
		partitions := []string{"schedule", "record", "slots", "job"}
		for writes, want := range []map[tablestore.Key]int64{
			2: {e.key("schedule", "s"): 1, e.key("record", "c"): 1},
			3: {e.key("schedule", "s"): 1, e.key("record", "c"): 1, e.key("slots", "s"): 1},
		} {
			if want == nil {
				continue
			}
			applied, err := tablestore.Apply(t.Context(), crashing(t, e.store, writes+1), e.acceptance(), nil)
			if !errors.Is(err, tablestore.ErrUnavailable) || applied.Committed {
				t.Errorf("crash after %d writes: %+v, %v", writes, applied, err)
			}
			if diff := cmp.Diff(want, e.contents(t, partitions...)); diff != "" {
				t.Errorf("rows after a crash after %d writes (-want +got):\n%s", writes, diff)
			}
			e.expectETags(t, applied.ETags, slices.Collect(maps.Keys(want))...)
			for key := range want {
				e.commit(t, discard(key))
			}
		}
	}},
	{"split/a crash after the commit is no error", func(t testing.TB, e *env) {
		applied, err := tablestore.Apply(t.Context(), crashing(t, e.store, 5), e.acceptance(), nil)
		if err != nil || !applied.Committed || !errors.Is(applied.PostErr, tablestore.ErrUnavailable) {
			t.Errorf("apply: %+v, %v", applied, err)
		}
		want := map[tablestore.Key]int64{e.key("schedule", "s"): 1, e.key("record", "c"): 1, e.key("slots", "s"): 1,
			e.key("job", "JOB"): 1, e.key("job", "STEP:0"): 1}
		if diff := cmp.Diff(want, e.contents(t, "schedule", "record", "slots", "job")); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
	}},
	{"split/an unknown outcome of the commit is returned", func(t testing.TB, e *env) {
		store, faults := Faulty(e.store)
		faults.Plan(Fault{Call: CommitCall, Nth: 4, After: true})
		applied, err := tablestore.Apply(t.Context(), store, e.acceptance(), nil)
		if !errors.Is(err, tablestore.ErrUnknown) || applied.Committed {
			t.Errorf("apply: %+v, %v, want ErrUnknown", applied, err)
		}
		if got := e.contents(t, "job"); len(got) != 2 {
			t.Errorf("job rows %v, want both: the reply was lost, not the write", got)
		}
	}},
}

// crashing returns the store as seen by a process that dies before its n-th
// write.
func crashing(t testing.TB, store tablestore.Store, n int) tablestore.Store {
	t.Helper()
	wrapped, faults := Faulty(store)
	faults.Plan(Fault{Call: CommitCall, Nth: n, Onwards: true})
	return wrapped
}
