package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

var cancelChecks = []check{
	{"cancels/an ended context writes nothing", func(t testing.TB, e *env) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		key := e.key("p", "r")
		_, err := e.store.Commit(ctx, tablestore.Batch{insert(key, 1)})
		if !errors.Is(err, tablestore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("commit: %v, want ErrUnavailable and context.Canceled", err)
		}
		if _, err := e.store.Get(ctx, key); !errors.Is(err, context.Canceled) {
			t.Errorf("get: %v, want context.Canceled", err)
		}
		query := tablestore.Query{Table: key.Table, Partition: key.Partition}
		if _, err := e.store.Scan(ctx, query); !errors.Is(err, context.Canceled) {
			t.Errorf("scan: %v, want context.Canceled", err)
		}
		if _, err := e.store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrNotFound) {
			t.Errorf("get afterwards: %v, want ErrNotFound", err)
		}
	}},
	{"cancels/a closed store is unavailable", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		e.commit(t, insert(key, 1))
		e.close(t)
		if _, err := e.store.Commit(t.Context(), tablestore.Batch{put(key, 2)}); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("commit: %v, want ErrUnavailable", err)
		}
		if _, err := e.store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("get: %v, want ErrUnavailable", err)
		}
		query := tablestore.Query{Table: key.Table, Partition: key.Partition}
		if _, err := e.store.Scan(t.Context(), query); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("scan: %v, want ErrUnavailable", err)
		}
		if err := e.store.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	}},
}
