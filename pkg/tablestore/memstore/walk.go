package memstore

import (
	"context"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

var (
	_ tablestore.Walker = (*store)(nil)
	_ tablestore.Walker = split{}
)

// Walk implements [tablestore.Walker].
func (s *store) Walk(ctx context.Context, walk tablestore.Walk) ([]tablestore.Row, error) {
	if err := walk.Validate(); err != nil {
		return nil, err
	}
	found, err := s.rowsAfter(ctx, walk)
	if err != nil {
		return nil, err
	}
	rows := make([]tablestore.Row, len(found))
	for i := range found {
		if rows[i], err = found[i].decode(); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// rowsAfter returns the stored rows of one page of a walk.
func (s *store) rowsAfter(ctx context.Context, walk tablestore.Walk) (found []*row, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	limit := maxPage
	if walk.Limit > 0 {
		limit = min(limit, walk.Limit)
	}
	from := tablestore.Key{Table: walk.Table, Partition: walk.Partition, Row: walk.Row}
	s.rows.Ascend(&row{key: from}, func(r *row) bool {
		if r.key.Table != walk.Table || len(found) == limit {
			return false
		}
		if r.key != from {
			found = append(found, r)
		}
		return true
	})
	return found, nil
}

// Walk implements [tablestore.Walker].
func (s split) Walk(ctx context.Context, walk tablestore.Walk) ([]tablestore.Row, error) {
	return s.Store.(*store).Walk(ctx, walk)
}
