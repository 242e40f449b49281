package search_test

import (
	"context"
	"sync/atomic"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// lossy is a split store that rejects the commits of jobs while losing is set, and counts
// reads of jobs.
type lossy struct {
	tablestore.Store
	losing bool
	jobs   atomic.Int64
	scans  atomic.Int64 // of all tables
}

func (s *lossy) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	s.scans.Add(1)
	if query.Table == "luciusledger" {
		s.jobs.Add(1)
	}
	return s.Store.Scan(ctx, query)
}

func (s *lossy) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if s.losing && batch[0].Key.Table == "luciusledger" {
		return nil, tablestore.ErrUnavailable
	}
	return s.Store.Commit(ctx, batch)
}
