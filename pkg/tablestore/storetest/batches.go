package storetest

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

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
