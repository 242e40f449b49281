package storetest

import (
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
	{"scans/a prefix and its PrefixEnd select what begins with it", func(t testing.TB, e *env) {
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
	{"scans/neighbouring partitions do not show", func(t testing.TB, e *env) {
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
	{"scans/removed rows at the head of a partition do not show", func(t testing.TB, e *env) {
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
