package pebblestore_test

import (
	"fmt"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest/linear"
)

func TestStore_IsLinearizable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		for _, flaky := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, flaky %t", seed, flaky), func(t *testing.T) {
				t.Parallel()
				store := tablestore.Store(open(t, pebblestore.Options{Dir: t.TempDir()}))
				if flaky {
					store = linear.Flaky(store, seed)
				}
				linear.Check(t, linear.Config{Store: store, Table: "linear", Seed: seed})
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
