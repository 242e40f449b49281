package storetest

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// splitChecks test stores on which a change is several writes.
var splitChecks = []check{
	{"split/the store has no CommitAll", func(t testing.TB, e *env) {
		if _, atomic := e.store.(tablestore.AtomicStore); atomic {
			t.Errorf("%T is an AtomicStore, but Features says that it is not", e.store)
		}
	}},
	{"split/a crash before the commit leaves pre rows only", func(t testing.TB, e *env) {
		partitions := []string{"schedule", "claim", "slots", "job"}
		for writes, want := range []map[tablestore.Key]int64{
			2: {e.key("schedule", "s"): 1, e.key("claim", "c"): 1},
			3: {e.key("schedule", "s"): 1, e.key("claim", "c"): 1, e.key("slots", "s"): 1},
		} {
			if want == nil {
				continue
			}
			applied, err := tablestore.Apply(t.Context(), crashing(t, e.store, writes+1), e.acceptance())
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
		applied, err := tablestore.Apply(t.Context(), crashing(t, e.store, 5), e.acceptance())
		if err != nil || !applied.Committed || !errors.Is(applied.PostErr, tablestore.ErrUnavailable) {
			t.Errorf("apply: %+v, %v", applied, err)
		}
		want := map[tablestore.Key]int64{e.key("schedule", "s"): 1, e.key("claim", "c"): 1, e.key("slots", "s"): 1,
			e.key("job", "JOB"): 1, e.key("job", "STEP:0"): 1}
		if diff := cmp.Diff(want, e.contents(t, "schedule", "claim", "slots", "job")); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
	}},
	{"split/an unknown outcome of the commit is returned", func(t testing.TB, e *env) {
		store, faults := Faulty(e.store)
		faults.Plan(Fault{Call: CommitCall, Nth: 4, After: true})
		applied, err := tablestore.Apply(t.Context(), store, e.acceptance())
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
