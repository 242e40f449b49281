package pebblestore_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest/linearizability"
)

// open opens a store that must open.
func open(t testing.TB, options pebblestore.Options) *pebblestore.Store {
	t.Helper()
	store, err := pebblestore.Open(options)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return store
}

func TestStore(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]func(t testing.TB) pebblestore.Options{
		"disk":   func(t testing.TB) pebblestore.Options { return pebblestore.Options{Dir: t.TempDir()} },
		"memory": func(testing.TB) pebblestore.Options { return pebblestore.Options{Dir: "data", FS: vfs.NewMem()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			features := storetest.Features{Atomic: true, Durable: true, Walks: true}
			storetest.Run(t, features, func(t testing.TB) storetest.Harness {
				options := options(t)
				return storetest.Harness{
					Store:  open(t, options),
					Reopen: func(t testing.TB) tablestore.Store { return open(t, options) },
				}
			})
		})
	}
}

func TestStore_IsLinearizable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		for _, flaky := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, flaky %t", seed, flaky), func(t *testing.T) {
				t.Parallel()
				store := tablestore.Store(open(t, pebblestore.Options{Dir: t.TempDir()}))
				if flaky {
					store = linearizability.Flaky(store, seed)
				}
				linearizability.Check(t, linearizability.Config{Store: store, Table: "linear", Seed: seed})
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
