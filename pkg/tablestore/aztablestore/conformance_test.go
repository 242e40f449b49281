//go:build integration

package aztablestore_test

import (
	"fmt"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest/linearizability"
)

// TestStore runs the suite of package storetest. Each write is a request, so
// the races are shorter.
func TestStore(t *testing.T) {
	t.Parallel()
	features := storetest.Features{Durable: true, Walks: true, Effort: 10}
	storetest.Run(t, features, func(t testing.TB) storetest.Harness {
		names := tables(t)
		options := aztablestore.Options{Connection: connection(t), Tables: names[:]}
		return storetest.Harness{
			Store:  open(t, options),
			Reopen: func(t testing.TB) tablestore.Store { return open(t, options) },
			Tables: names,
		}
	})
}

func TestStore_IsLinearizable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		for _, flaky := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, flaky %t", seed, flaky), func(t *testing.T) {
				t.Parallel()
				names := tables(t)
				store := tablestore.Store(open(t, aztablestore.Options{Connection: connection(t), Tables: names[:]}))
				if flaky {
					lossy := linearizability.Flaky(store, seed)
					defer func() {
						if err := lossy.Close(); err != nil {
							t.Error(err)
						}
					}()
					store = lossy
				}
				linearizability.Check(t, linearizability.Config{Store: store, Table: names[0], Seed: seed, Clients: 6, Calls: 30})
			})
		}
	}
}
