package storetest

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// fill inserts rows with these keys into partition "p", one by one, in this
// order.
func (e *env) fill(t testing.TB, rows ...string) {
	t.Helper()
	for i, row := range rows {
		e.commit(t, insert(e.key("p", row), int64(i)))
	}
}

// expectRows scans partition "p" and compares the row keys.
func (e *env) expectRows(t testing.TB, from, to string, want ...string) {
	t.Helper()
	rows := e.scan(t, tablestore.Query{Table: e.harness.Tables[0], Partition: "p", From: from, To: to})
	if diff := cmp.Diff(want, rowKeys(rows)); diff != "" {
		t.Errorf("rows of [%q, %q) (-want +got):\n%s", from, to, diff)
	}
}

func rowKeys(rows []tablestore.Row) []string {
	var keys []string
	for _, row := range rows {
		keys = append(keys, row.Key.Row)
	}
	return keys
}

var scanChecks = []check{
	{"scans/rows come in byte order, whatever the order of writes", func(t testing.TB, e *env) {
		keys := []string{"b", "a:9", "a:10", "B", "a", "aa", "_", "-", ".", "=2F", "a-b", "a.b", "0", "9", "z"}
		e.fill(t, keys...)
		slices.Sort(keys)
		e.expectRows(t, "", "", keys...)
	}},
	{"scans/ranges are half open", func(t testing.TB, e *env) {
		e.fill(t, "a", "b", "c", "d")
		e.expectRows(t, "b", "d", "b", "c")
		e.expectRows(t, "b", "b")
		e.expectRows(t, "c", "b")
		e.expectRows(t, "", "b", "a")
		e.expectRows(t, "c", "", "c", "d")
		e.expectRows(t, "aa", "cc", "b", "c")
		e.expectRows(t, "e", "")
	}},
	{"scans/bounds may have any bytes", func(t testing.TB, e *env) {
		e.fill(t, "a", "a:", "b")
		e.expectRows(t, "a\x00", "", "a:", "b")
		e.expectRows(t, "a", "a\x00", "a")
		e.expectRows(t, "a\xff", "b\x00\xff", "b")
		e.expectRows(t, "a\x7fü", "é", "b")
		e.expectRows(t, "\x00", "a:\x80", "a", "a:")
	}},
	{"scans/a prefix and its PrefixEnd select the keys with that prefix", func(t testing.TB, e *env) {
		e.fill(t, "STEP", "STEP:0", "STEP:1:x", "STEPS", "STEQ")
		e.expectRows(t, "STEP:", tablestore.PrefixEnd("STEP:"), "STEP:0", "STEP:1:x")
		e.expectRows(t, "STEP", tablestore.PrefixEnd("STEP"), "STEP", "STEP:0", "STEP:1:x", "STEPS")
	}},
	{"scans/an empty partition is an empty page", func(t testing.TB, e *env) {
		e.expectRows(t, "", "")
		e.fill(t, "a")
		e.commit(t, discard(e.key("p", "a")))
		e.expectRows(t, "", "")
	}},
	{"scans/rows of neighbouring partitions are not returned", func(t testing.TB, e *env) {
		e.fill(t, "a")
		for _, partition := range []string{"o", "p0", "p-", "pp", "p:", "q", "P"} {
			e.commit(t, insert(e.key(partition, "a"), 1))
		}
		e.commit(t, insert(tablestore.Key{Table: e.harness.Tables[1], Partition: "p", Row: "b"}, 1))
		e.expectRows(t, "", "", "a")
	}},
	{"scans/rows carry the ETag of their last write", func(t testing.TB, e *env) {
		first := e.commit(t, insert(e.key("p", "a"), 1))
		second := e.commit(t, replace(e.key("p", "a"), first[0], 2))
		want := []tablestore.Row{{Key: e.key("p", "a"), ETag: second[0], Properties: number(2)}}
		if diff := cmp.Diff(want, e.partition(t, "p")); diff != "" {
			t.Errorf("scan (-want +got):\n%s", diff)
		}
	}},
	{"scans/removed rows at the head of a partition are not returned", func(t testing.TB, e *env) {
		for i := range 50 {
			e.fill(t, tablestore.Pad(i, 3))
		}
		for i := range 45 {
			e.commit(t, discard(e.key("p", tablestore.Pad(i, 3))))
		}
		e.expectRows(t, "", "", "045", "046", "047", "048", "049")
		e.expectRows(t, "010", "047", "045", "046")
	}},
}

var pageChecks = []check{
	{"pages/limit and continuation give every row once", func(t testing.TB, e *env) {
		var want []string
		for i := range 25 {
			want = append(want, tablestore.Pad(i, 2))
		}
		e.fill(t, want...)
		for _, limit := range []int{1, 2, 5, 24, 25, 26, 5000} {
			e.expectPages(t, limit, want)
		}
	}},
	{"pages/a store may end a page after any row", func(t testing.TB, e *env) {
		const rows = 1500
		var want []string
		for i := 0; i < rows; i += tablestore.MaxBatchOps {
			var ops []tablestore.Op
			for j := range tablestore.MaxBatchOps {
				want = append(want, tablestore.Pad(i+j, 5))
				ops = append(ops, insert(e.key("p", want[i+j]), 1))
			}
			e.commit(t, ops...)
		}
		e.expectRows(t, "", "", want...)
	}},
	{"pages/a limit holds within a range", func(t testing.TB, e *env) {
		e.fill(t, "a", "b", "c", "d", "e")
		query := tablestore.Query{Table: e.harness.Tables[0], Partition: "p", From: "b", To: "e", Limit: 2}
		if diff := cmp.Diff([]string{"b", "c", "d"}, rowKeys(e.scan(t, query))); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
	}},
	{"pages/rows that stay are read once while others come and go", func(t testing.TB, e *env) {
		e.fill(t, "b", "d", "f", "h", "j")
		query := tablestore.Query{Table: e.harness.Tables[0], Partition: "p", Limit: 1}
		var got []string
		for i := 0; ; i++ {
			page, err := e.store.Scan(t.Context(), query)
			if err != nil {
				t.Fatalf("scan: %v", err)
			}
			got = append(got, rowKeys(page.Rows)...)
			if page.Next == "" {
				break
			}
			e.disturb(t, i)
			query.Continue = page.Next
		}
		for _, row := range []string{"b", "d", "h", "j"} {
			if count := len(slices.DeleteFunc(slices.Clone(got), func(r string) bool { return r != row })); count != 1 {
				t.Errorf("row %q was read %d times: %q", row, count, got)
			}
		}
		if !slices.IsSorted(got) || slices.Contains(got, "a") || slices.Contains(got, "f") {
			t.Errorf("pages held %q: want them sorted, without a and f", got)
		}
	}},
	{"pages/a query that breaks the rules is ErrInvalid", func(t testing.TB, e *env) {
		for _, query := range []tablestore.Query{
			{Table: "No", Partition: "p"},
			{Table: e.harness.Tables[0]},
			{Table: e.harness.Tables[0], Partition: "a/b"},
			{Table: e.harness.Tables[0], Partition: "p", Limit: -1},
		} {
			if _, err := e.store.Scan(t.Context(), query); !errors.Is(err, tablestore.ErrInvalid) {
				t.Errorf("scan %+v: %v, want ErrInvalid", query, err)
			}
		}
	}},
}

// expectPages reads partition "p" in pages of at most limit rows.
func (e *env) expectPages(t testing.TB, limit int, want []string) {
	t.Helper()
	query := tablestore.Query{Table: e.harness.Tables[0], Partition: "p", Limit: limit}
	var got []string
	for {
		page, err := e.store.Scan(t.Context(), query)
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		if len(page.Rows) > limit {
			t.Errorf("a page of limit %d holds %d rows", limit, len(page.Rows))
		}
		got = append(got, rowKeys(page.Rows)...)
		if query.Continue = page.Next; page.Next == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
	}
}

// disturb changes partition "p" between two pages: before the reader's
// position, right after it, and further on.
func (e *env) disturb(t testing.TB, i int) {
	t.Helper()
	switch i {
	case 0:
		e.fill(t, "a")
	case 1:
		e.commit(t, discard(e.key("p", "f")))
	case 2:
		e.fill(t, "i")
	case 3:
		e.commit(t, put(e.key("p", "b"), 9), put(e.key("p", "j"), 9))
	}
}

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
