package pebblestore

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

var _ tablestore.Walker = (*Store)(nil)

// Walk implements [tablestore.Walker]. A page holds at most 1,000 rows and about
// 4 MiB.
func (s *Store) Walk(ctx context.Context, walk tablestore.Walk) ([]tablestore.Row, error) {
	if err := walk.Validate(); err != nil {
		return nil, err
	}
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.running.Done()
	rows, last, err := s.walk(walk)
	if err := s.durable(ctx, last...); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("walk of %s: %w", walk.Table, err)
	}
	return rows, nil
}

// walk reads one page, and returns the writes that must be durable before the
// page may be returned.
func (s *Store) walk(walk tablestore.Walk) (rows []tablestore.Row, last []*pending, err error) {
	lower := append([]byte(walk.Table), divider)
	upper := append([]byte(walk.Table), divider+1)
	if !walk.First() {
		key := tablestore.Key{Table: walk.Table, Partition: walk.Partition, Row: walk.Row}
		lower = append(storedKey(key), divider) // Right after that key, before any other.
	}
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	// The iterator is a snapshot, so later writes need no wait.
	last = s.stripes.lasts()
	limit, size := maxPageRows, 0
	if walk.Limit > 0 {
		limit = min(limit, walk.Limit)
	}
	for iter.First(); iter.Valid() && len(rows) < limit && size <= maxPageBytes && err == nil; iter.Next() {
		var row tablestore.Row
		row, err = storedRow(iter, walk.Table)
		rows = append(rows, row)
		size += len(iter.Value())
	}
	if closeErr := iter.Close(); closeErr != nil {
		err = fmt.Errorf("%w: %w", tablestore.ErrUnavailable, closeErr)
	}
	return rows, last, err
}

// storedRow decodes the row at the iterator.
func storedRow(iter *pebble.Iterator, table string) (tablestore.Row, error) {
	data, err := iter.ValueAndErr()
	if err != nil {
		return tablestore.Row{}, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	partition, row, ok := bytes.Cut(iter.Key()[len(table)+1:], []byte{divider})
	if !ok {
		return tablestore.Row{}, fmt.Errorf("%w: malformed key", tablestore.ErrCorrupt)
	}
	return decodeRow(tablestore.Key{Table: table, Partition: string(partition), Row: string(row)}, data)
}

// lasts returns the writes of all stripes that are not durable yet.
func (s *stripes) lasts() []*pending {
	var found []*pending
	for i := range s.all {
		if p := s.all[i].last.Load(); p != nil {
			found = append(found, p)
		}
	}
	return found
}
