package linearizability

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Flaky wraps a store so that some of its writes have an unknown outcome: the
// write is applied and the reply lost, or it is never applied, or it is applied
// later. Close waits for late writes.
func Flaky(store tablestore.Store, seed uint64) tablestore.Store {
	return &flaky{Store: store, rng: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // Random choices of a test.
}

type flaky struct {
	tablestore.Store
	mu   sync.Mutex
	rng  *rand.Rand
	late sync.WaitGroup
}

// lot returns a random number below n.
func (f *flaky) lot(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

// Commit implements [tablestore.Store].
func (f *flaky) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	switch f.lot(40) {
	case 0:
		_, err := f.Store.Commit(ctx, batch)
		if errors.Is(err, tablestore.ErrConflict) || err == nil {
			return nil, tablestore.ErrUnknown
		}
		return nil, err
	case 1:
		return nil, tablestore.ErrUnknown
	case 2:
		delay := time.Duration(f.lot(2000)) * time.Microsecond
		f.late.Go(func() {
			time.Sleep(delay)
			_, _ = f.Store.Commit(context.WithoutCancel(ctx), batch) // The client never gets the result.
		})
		return nil, tablestore.ErrUnknown
	case 3:
		return nil, tablestore.ErrUnavailable
	}
	return f.Store.Commit(ctx, batch)
}

// Close implements [tablestore.Store].
func (f *flaky) Close() error {
	f.late.Wait()
	return f.Store.Close()
}
