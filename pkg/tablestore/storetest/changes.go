package storetest

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// acceptance returns a change like that of an accepted command: a schedule
// entry, a claim and a slot, then the job, then the removal of the entry and
// the confirmed claim.
func (e *env) acceptance() tablestore.Change {
	claim, entry := e.key("claim", "c"), e.key("schedule", "s")
	return tablestore.Change{
		Pre: []tablestore.Stage{
			{{put(entry, 1)}, {insert(claim, 1)}},
			{{insert(e.key("slots", "s"), 1)}},
		},
		Commit: tablestore.Batch{insert(e.key("job", "JOB"), 1), insert(e.key("job", "STEP:0"), 1)},
		Post: []tablestore.Stage{
			{{replace(claim, tablestore.Own, 2)}, {discard(entry)}},
			{{remove(claim, tablestore.Own)}, {put(entry, 3)}},
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
		applied, err := tablestore.Apply(t.Context(), e.store, e.acceptance())
		if err != nil || !applied.Committed || applied.PostErr != nil {
			t.Fatalf("apply: %+v, %v", applied, err)
		}
		want := map[tablestore.Key]int64{
			e.key("schedule", "s"): 3, e.key("slots", "s"): 1, e.key("job", "JOB"): 1, e.key("job", "STEP:0"): 1,
		}
		if diff := cmp.Diff(want, e.contents(t, "schedule", "claim", "slots", "job")); diff != "" {
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
		})
		if err != nil || applied.PostErr != nil {
			t.Fatalf("apply: %+v, %v", applied, err)
		}
		if got := e.get(t, key).Properties.Get("n").Int(); got != 5 {
			t.Errorf("the row holds %d, want 5", got)
		}
		e.expectETags(t, applied.ETags, key)
	}},
	{"apply/own after a put and a discard that follows", func(t testing.TB, e *env) {
		a, b := e.key("p", "a"), e.key("p", "b")
		applied, err := tablestore.Apply(t.Context(), e.store, tablestore.Change{
			Pre:    []tablestore.Stage{{{put(a, 1), insert(b, 1)}}},
			Commit: tablestore.Batch{remove(a, tablestore.Own), discard(b)},
			Post:   []tablestore.Stage{{{insert(a, 3)}}},
		})
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
		applied, err := tablestore.Apply(t.Context(), e.store, e.acceptance())
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
		applied, err := tablestore.Apply(t.Context(), e.store, e.acceptance())
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
		})
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
		if _, err := tablestore.Apply(t.Context(), e.store, change); !errors.Is(err, tablestore.ErrInvalid) {
			t.Errorf("apply: %v, want ErrInvalid", err)
		}
		if got := e.contents(t, "schedule", "claim", "slots", "job", "p"); len(got) != 0 {
			t.Errorf("rows %v, want none", got)
		}
	}},
}
