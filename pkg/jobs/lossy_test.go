package jobs_test

import (
	"context"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// lossy is a split store that fails the commits of jobs while losing is set.
type lossy struct {
	tablestore.Store
	losing bool
}

func (s *lossy) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if s.losing && batch[0].Key.Table == "luciusledger" {
		return nil, tablestore.ErrUnavailable
	}
	return s.Store.Commit(ctx, batch)
}
