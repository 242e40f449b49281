package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// durableChecks test stores that outlive their process.
var durableChecks = []check{
	{"durable/a reopened store has the same rows", func(t testing.TB, e *env) {
		var all tablestore.Properties
		for name, value := range values() {
			all = append(all, tablestore.Property{Name: name, Value: value})
		}
		e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: e.key("p", "values"), Properties: all},
			insert(e.key("p", "gone"), 1), insert(e.key("p", "replaced"), 1))
		e.commit(t, discard(e.key("p", "gone")), put(e.key("p", "replaced"), 2))
		e.commit(t, insert(e.key("q", "r"), 3))
		p, q := e.partition(t, "p"), e.partition(t, "q")
		for range 3 {
			e.reopen(t)
			if diff := cmp.Diff(p, e.partition(t, "p")); diff != "" {
				t.Errorf("partition after reopen (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(q, e.partition(t, "q")); diff != "" {
				t.Errorf("partition after reopen (-before +after):\n%s", diff)
			}
		}
	}},
	{"durable/ETags survive a reopen and are not reused", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		seen := map[tablestore.ETag]bool{}
		etag := e.commit(t, insert(key, 0))[0]
		for i := range 5 {
			seen[etag] = true
			e.reopen(t)
			etag = e.commit(t, replace(key, etag, int64(i)))[0]
			if seen[etag] {
				t.Errorf("ETag %q was given before the reopen", etag)
			}
		}
	}},
}
