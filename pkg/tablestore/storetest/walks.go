package storetest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// walkChecks test a [tablestore.Walker].
var walkChecks = []check{
	{"walks/return all rows of a table in order, and no other table's", func(t testing.TB, e *env) {
		want := e.fillPartitions(t)
		other := tablestore.Key{Table: e.harness.Tables[1], Partition: "p", Row: "r"}
		e.commit(t, insert(other, 1))
		for _, limit := range []int{1, 2, 3, len(want), len(want) + 1, 0} {
			if diff := cmp.Diff(want, e.walk(t, limit)); diff != "" {
				t.Errorf("rows of a walk by %d (-want +got):\n%s", limit, diff)
			}
		}
	}},
	{"walks/an empty table ends at once", func(t testing.TB, e *env) {
		if got := e.walk(t, 10); len(got) != 0 {
			t.Errorf("an empty table holds %q", got)
		}
	}},
	{"walks/rows hold what was written last", func(t testing.TB, e *env) {
		tag := e.commit(t, insert(e.key("p", "r"), 1))[0]
		tag = e.commit(t, replace(e.key("p", "r"), tag, 2))[0]
		rows, err := e.walker().Walk(t.Context(), tablestore.Walk{Table: e.harness.Tables[0]})
		want := []tablestore.Row{{Key: e.key("p", "r"), ETag: tag, Properties: number(2)}}
		if diff := cmp.Diff(want, rows); err != nil || diff != "" {
			t.Errorf("walk: %v (-want +got)\n%s", err, diff)
		}
	}},
	{"walks/a walk that breaks the rules is ErrInvalid", func(t testing.TB, e *env) {
		for _, walk := range []tablestore.Walk{
			{Table: "No"},
			{Table: e.harness.Tables[0], Partition: "a/b", Row: "r"},
			{Table: e.harness.Tables[0], Row: "r"},
			{Table: e.harness.Tables[0], Limit: -1},
		} {
			if _, err := e.walker().Walk(t.Context(), walk); !errors.Is(err, tablestore.ErrInvalid) {
				t.Errorf("walk %+v: %v, want ErrInvalid", walk, err)
			}
		}
	}},
}

// walker returns the store as a Walker; it panics if it is none.
func (e *env) walker() tablestore.Walker { return e.store.(tablestore.Walker) }

// fillPartitions writes a few rows to a few partitions, some of whose keys are
// prefixes of others, and returns them in order.
func (e *env) fillPartitions(t testing.TB) []string {
	t.Helper()
	var want []string
	for _, partition := range []string{"a", "a-b", "a:b", "aB", "ab", "b"} {
		for _, row := range []string{"JOB", "STEP:1", "a"} {
			e.commit(t, insert(e.key(partition, row), 1))
			want = append(want, partition+" "+row)
		}
	}
	return want
}

// walk returns the partitions and rows of the first table, page by page.
func (e *env) walk(t testing.TB, limit int) []string {
	t.Helper()
	walk := tablestore.Walk{Table: e.harness.Tables[0], Limit: limit}
	var got []string
	for {
		rows, err := e.walker().Walk(t.Context(), walk)
		if err != nil {
			t.Fatalf("walk: %v", err)
		}
		if len(rows) == 0 {
			return got
		}
		if limit > 0 && len(rows) > limit {
			t.Fatalf("a page of limit %d holds %d rows", limit, len(rows))
		}
		for _, row := range rows {
			got = append(got, row.Key.Partition+" "+row.Key.Row)
		}
		walk = walk.After(rows)
	}
}
