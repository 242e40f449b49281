package aztablestore_test

import (
	"fmt"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest/linear"
)

func TestStore_IsLinearizable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		for _, flaky := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, flaky %t", seed, flaky), func(t *testing.T) {
				t.Parallel()
				names := tables(t)
				store := tablestore.Store(open(t, aztablestore.Options{Connection: connection(t), Tables: names[:]}))
				if flaky {
					lossy := linear.Flaky(store, seed)
					defer func() {
						if err := lossy.Close(); err != nil {
							t.Error(err)
						}
					}()
					store = lossy
				}
				linear.Check(t, linear.Config{Store: store, Table: names[0], Seed: seed, Clients: 6, Calls: 30})
			})
		}
	}
}
