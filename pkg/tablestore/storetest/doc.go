// Package storetest is what every table store must do, as tests. A driver runs
// the whole suite with a few lines:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Features{Atomic: true}, func(t testing.TB) storetest.Harness {
//			return storetest.Harness{Store: memstore.New(memstore.Options{})}
//		})
//	}
//
// The package also has two wrappers for tests of other packages: [Counting]
// counts what a store was asked, for cost tests, and [Faulty] fails chosen
// calls before or after they took effect. Both are an AtomicStore exactly when
// the store inside is one, and pass the suite themselves.
package storetest
