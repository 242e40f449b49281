// Package storetest is the conformance suite of table stores. A driver runs it
// with a few lines:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Features{Atomic: true}, func(t testing.TB) storetest.Harness {
//			return storetest.Harness{Store: memstore.New(memstore.Options{})}
//		})
//	}
//
// The package also has two wrappers for tests of other packages: [Counting]
// counts a store's calls, for cost tests, and [Faulty] fails chosen calls
// before or after they take effect. Each is an AtomicStore exactly if the
// wrapped store is one, and passes the suite itself.
package storetest

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Features says what the store under test can do beyond the port.
type Features struct {
	// Atomic says that the store is a [tablestore.AtomicStore]. The suite fails
	// if it is one and Atomic is not set, or the reverse.
	Atomic bool
	// Durable says that committed rows survive closing and reopening the store.
	// It needs Harness.Reopen.
	Durable bool
	// Walks says that the store is a [tablestore.Walker].
	Walks bool
	// Notifies says that the store is a [tablestore.Notifier], and that Harness.Reopen may be
	// called while the store is open, as another process would.
	Notifies bool
	// NamelessConflicts says that a conflict may come without the row's key.
	NamelessConflicts bool
	// Effort scales the number of writes in the tests of races. Optional.
	// Defaults to 100; lower it for a store over a network.
	Effort int
}

// Harness is one store under test.
type Harness struct {
	// Store is the store, empty. The suite closes it. Required.
	Store tablestore.Store
	// Reopen opens the store again after the suite has closed it. Required with
	// Features.Durable and Features.Notifies.
	Reopen func(t testing.TB) tablestore.Store
	// Tables are the names of two empty tables for the suite. Optional.
	// Defaults to two names that every store accepts.
	Tables [2]string
}

// Run runs the suite as subtests of t, in parallel, each on a harness of its
// own from open.
func Run(t *testing.T, features Features, open func(t testing.TB) Harness) {
	t.Helper()
	for _, check := range checks(features) {
		t.Run(check.name, func(t *testing.T) {
			t.Parallel()
			check.runOn(t, features, open(t))
		})
	}
}

// check is one test of the suite.
type check struct {
	name string
	run  func(t testing.TB, e *env)
}

// checks returns the tests that apply to a store with these features.
func checks(features Features) []check {
	var all []check
	for _, group := range [][]check{
		rowChecks, conflictChecks, hintChecks, batchChecks, raceChecks, scanChecks, pageChecks, valueChecks,
		keyChecks, limitChecks, sizeChecks, ownershipChecks, cancelChecks, applyChecks,
	} {
		all = append(all, group...)
	}
	if features.Atomic {
		all = append(all, atomicChecks...)
	} else {
		all = append(all, splitChecks...)
	}
	if features.Walks {
		all = append(all, walkChecks...)
	}
	if features.Notifies {
		all = append(all, notifyChecks...)
	}
	if features.Durable {
		all = append(all, durableChecks...)
	}
	return all
}

// runOn runs the check on that store and closes it.
func (c check) runOn(t testing.TB, features Features, harness Harness) {
	t.Helper()
	if harness.Tables == [2]string{} {
		harness.Tables = [2]string{"storetestone", "storetesttwo"}
	}
	if features.Effort == 0 {
		features.Effort = 100
	}
	e := &env{store: harness.Store, harness: harness, features: features}
	defer e.close(t)
	c.run(t, e)
}

// env holds the store under test.
type env struct {
	store    tablestore.Store
	harness  Harness
	features Features
	closed   bool
}

func (e *env) close(t testing.TB) {
	t.Helper()
	if e.closed {
		return
	}
	e.closed = true
	if err := e.store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// reopen closes the store and opens it again.
func (e *env) reopen(t testing.TB) {
	t.Helper()
	e.close(t)
	e.store, e.closed = e.harness.Reopen(t), false
}

// key returns a key in the first table.
func (e *env) key(partition, row string) tablestore.Key {
	return tablestore.Key{Table: e.harness.Tables[0], Partition: partition, Row: row}
}

// commit applies the ops as one batch, which must succeed.
func (e *env) commit(t testing.TB, ops ...tablestore.Op) []tablestore.ETag {
	t.Helper()
	etags, err := e.store.Commit(t.Context(), ops)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	if len(etags) != len(ops) {
		t.Fatalf("commit returned %d ETags for %d ops", len(etags), len(ops))
	}
	return etags
}

// get returns a row that must exist.
func (e *env) get(t testing.TB, key tablestore.Key) tablestore.Row {
	t.Helper()
	row, err := e.store.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return row
}

// scan returns all rows of the query, page by page.
func (e *env) scan(t testing.TB, query tablestore.Query) []tablestore.Row {
	t.Helper()
	var rows []tablestore.Row
	for {
		page, err := e.store.Scan(t.Context(), query)
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		rows = append(rows, page.Rows...)
		if page.Next == "" {
			return rows
		}
		if page.Next <= query.Continue {
			t.Fatalf("continuation does not advance: %q after %q", page.Next, query.Continue)
		}
		query.Continue = page.Next
	}
}

// partition returns all rows of a partition in the first table.
func (e *env) partition(t testing.TB, partition string) []tablestore.Row {
	t.Helper()
	return e.scan(t, tablestore.Query{Table: e.harness.Tables[0], Partition: partition})
}

// number returns properties with one number in them.
func number(n int64) tablestore.Properties {
	return tablestore.Properties{{Name: "n", Value: tablestore.Int(n)}}
}

func insert(key tablestore.Key, n int64) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: number(n)}
}

func replace(key tablestore.Key, etag tablestore.ETag, n int64) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: etag, Properties: number(n)}
}

func remove(key tablestore.Key, etag tablestore.ETag) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Delete, Key: key, ETag: etag}
}

func put(key tablestore.Key, n int64) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Put, Key: key, Properties: number(n)}
}

func discard(key tablestore.Key) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Discard, Key: key}
}
