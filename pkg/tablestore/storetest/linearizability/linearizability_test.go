package linearizability

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const table = "linear"

func closing(t *testing.T, store tablestore.Store) tablestore.Store {
	t.Helper()
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestCheck_PassesALinearizableStore(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		for _, split := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, split %t", seed, split), func(t *testing.T) {
				t.Parallel()
				Check(t, Config{Store: closing(t, memstore.New(memstore.Options{Split: split})), Table: table, Seed: seed})
			})
		}
		t.Run(fmt.Sprintf("seed %d, flaky", seed), func(t *testing.T) {
			t.Parallel()
			Check(t, Config{Store: closing(t, Flaky(memstore.New(memstore.Options{}), seed)), Table: table, Seed: seed})
		})
	}
}

// broken is a store with one defect.
type broken struct {
	tablestore.Store
	mu     sync.Mutex
	stale  map[tablestore.Key]tablestore.Row
	get    func(b *broken, ctx context.Context, key tablestore.Key) (tablestore.Row, error)
	commit func(b *broken, ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error)
}

func (b *broken) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if b.get != nil {
		return b.get(b, ctx, key)
	}
	return b.Store.Get(ctx, key)
}

func (b *broken) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if b.commit != nil {
		return b.commit(b, ctx, batch)
	}
	return b.Store.Commit(ctx, batch)
}

// TestCheck_DetectsEachDefect expects one of a few histories to reveal each
// defect.
func TestCheck_DetectsEachDefect(t *testing.T) {
	t.Parallel()
	for name, defect := range map[string]*broken{
		"versions are not compared": {commit: func(b *broken, ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
			for i := range batch {
				if batch[i].Verb == tablestore.Replace {
					batch[i].Verb, batch[i].ETag = tablestore.Put, ""
				}
			}
			return b.Store.Commit(ctx, batch)
		}},
		"a batch is not atomic": {commit: func(b *broken, ctx context.Context, batch tablestore.Batch) (tags []tablestore.ETag, err error) {
			for i := range batch {
				tag, err := b.Store.Commit(ctx, batch[i:i+1])
				if err != nil {
					return nil, err
				}
				tags = append(tags, tag...)
			}
			return tags, nil
		}},
		"a lost reply passes for a conflict": {commit: func(b *broken, ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
			tags, err := b.Store.Commit(ctx, batch)
			if err == nil && batch[0].Verb == tablestore.Insert {
				return nil, &tablestore.ConflictError{Key: batch[0].Key, Verb: batch[0].Verb}
			}
			return tags, err
		}},
		"reads are stale": {get: func(b *broken, ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if old, ok := b.stale[key]; ok {
				return old, nil
			}
			row, err := b.Store.Get(ctx, key)
			if err == nil {
				b.stale[key] = row
			}
			return row, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				store := &broken{
					Store: memstore.New(memstore.Options{}), stale: map[tablestore.Key]tablestore.Row{},
					get: defect.get, commit: defect.commit,
				}
				err := explain(t.Context(), Config{Store: closing(t, store), Table: table, Seed: seed})
				if err != nil && strings.Contains(err.Error(), "no order of") {
					return
				}
			}
			t.Error("no history reveals the defect")
		})
	}
}

func TestCheck_ASearchThatDoesNotEndIsAFailure(t *testing.T) {
	t.Parallel()
	err := explain(t.Context(), Config{
		Store: closing(t, Flaky(memstore.New(memstore.Options{}), 1)), Table: table, Calls: 200, Patience: time.Nanosecond,
	})
	if err == nil || !strings.Contains(err.Error(), "within 1ns") {
		t.Errorf("it ended with %v", err)
	}
}

func TestCheck_AnErrorThatIsNoOutcomeIsAFailure(t *testing.T) {
	t.Parallel()
	own := errors.New("an error outside the port")
	store := &broken{
		Store: memstore.New(memstore.Options{}),
		get:   func(*broken, context.Context, tablestore.Key) (tablestore.Row, error) { return tablestore.Row{}, own },
	}
	if err := explain(t.Context(), Config{Store: closing(t, store), Table: table}); !errors.Is(err, own) {
		t.Errorf("it ended with %v", err)
	}
}
