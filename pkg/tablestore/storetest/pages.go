package storetest

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

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
	{"pages/a store ends its pages where it likes", func(t testing.TB, e *env) {
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
