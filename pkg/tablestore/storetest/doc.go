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
