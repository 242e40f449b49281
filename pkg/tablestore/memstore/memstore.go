// Package memstore is a table store in memory, for tests and trials. It passes
// the port's conformance suite, but loses all rows when it is closed. It starts
// no goroutine, and its ETags come from a counter, so that a run is
// reproducible.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/tidwall/btree"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/internal/fold"
)

// maxPage is the greatest number of rows on one page of a scan, as in Azure
// Tables.
const maxPage = 1000

var errClosed = errors.New("memory store is closed")

// Options configures a store.
type Options struct {
	// Split hides the store's CommitAll, so that each change runs its stages
	// one by one. Optional. Defaults to false: the store is a
	// [tablestore.AtomicStore].
	Split bool
}

// New returns an empty store.
func New(options Options) tablestore.Store {
	mem := &store{rows: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
	if options.Split {
		return split{mem}
	}
	return mem
}

// split hides CommitAll.
type split struct{ tablestore.Store }

// row is a stored row. Its content is encoded so that no caller shares memory
// with the store.
type row struct {
	key  tablestore.Key
	etag tablestore.ETag
	data []byte
}

func less(a, b *row) bool {
	if a.key.Table != b.key.Table {
		return a.key.Table < b.key.Table
	}
	if a.key.Partition != b.key.Partition {
		return a.key.Partition < b.key.Partition
	}
	return a.key.Row < b.key.Row
}

type store struct {
	mu     sync.RWMutex
	rows   *btree.BTreeG[*row]
	etags  uint64
	closed bool
}

// usable returns why the store must refuse a request, or nil. The caller holds
// mu.
func (s *store) usable(ctx context.Context) error {
	if s.closed {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, errClosed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	return nil
}

// Get implements [tablestore.Store].
func (s *store) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if err := key.Validate(); err != nil {
		return tablestore.Row{}, err
	}
	stored, err := s.lookUp(ctx, key)
	if err != nil {
		return tablestore.Row{}, err
	}
	return stored.decode()
}

func (s *store) lookUp(ctx context.Context, key tablestore.Key) (*row, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	stored, ok := s.rows.Get(&row{key: key})
	if !ok {
		return nil, fmt.Errorf("%w: %s", tablestore.ErrNotFound, key)
	}
	return stored, nil
}

// Scan implements [tablestore.Store].
func (s *store) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	if err := query.Validate(); err != nil {
		return tablestore.Page{}, err
	}
	stored, next, err := s.collect(ctx, query)
	if err != nil {
		return tablestore.Page{}, err
	}
	page := tablestore.Page{Next: next, Rows: make([]tablestore.Row, len(stored))}
	for i := range stored {
		if page.Rows[i], err = stored[i].decode(); err != nil {
			return tablestore.Page{}, err
		}
	}
	return page, nil
}

// collect returns the rows of one page and the start of the next. Stored rows
// are never changed in place, so callers read them without the lock.
func (s *store) collect(ctx context.Context, query tablestore.Query) (found []*row, next string, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return nil, "", err
	}
	limit := maxPage
	if query.Limit > 0 {
		limit = min(limit, query.Limit)
	}
	first := tablestore.Key{Table: query.Table, Partition: query.Partition, Row: max(query.From, query.Continue)}
	s.rows.Ascend(&row{key: first}, func(r *row) bool {
		if r.key.Table != query.Table || r.key.Partition != query.Partition ||
			query.To != "" && r.key.Row >= query.To {
			return false
		}
		if len(found) == limit {
			// Right after the last row rather than at this one: a row that is
			// inserted between the two belongs to the next page.
			next = found[limit-1].key.Row + "\x00"
			return false
		}
		found = append(found, r)
		return true
	})
	return found, next, nil
}

// decode returns a copy of the row that the caller owns.
func (r *row) decode() (tablestore.Row, error) {
	properties, err := tablestore.DecodeProperties(r.data)
	if err != nil {
		return tablestore.Row{}, fmt.Errorf("row %s: %w", r.key, err)
	}
	return tablestore.Row{Key: r.key, ETag: r.etag, Properties: properties}, nil
}

// Commit implements [tablestore.Store].
func (s *store) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	return fold.Apply(s.write).Commit(ctx, batch)
}

// CommitAll implements [tablestore.AtomicStore].
func (s *store) CommitAll(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error) {
	return fold.Apply(s.write).CommitAll(ctx, batches)
}

// write applies all valid batches or none.
func (s *store) write(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	writes, etags, err := fold.Fold(batches, fold.Input{Current: s.current, Next: s.nextETag})
	if err != nil {
		return nil, err
	}
	for i := range writes {
		write := &writes[i]
		if write.Removed() {
			s.rows.Delete(&row{key: write.Key})
			continue
		}
		data := tablestore.EncodeProperties(nil, write.Properties)
		s.rows.Set(&row{key: write.Key, etag: write.ETag, data: data})
	}
	return etags, nil
}

func (s *store) current(key tablestore.Key) (tablestore.ETag, error) {
	if stored, ok := s.rows.Get(&row{key: key}); ok {
		return stored.etag, nil
	}
	return "", nil
}

func (s *store) nextETag() tablestore.ETag {
	s.etags++
	return tablestore.ETag(strconv.FormatUint(s.etags, 16))
}

// Close implements [tablestore.Store]. All rows are lost.
func (s *store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.rows.Clear()
	return nil
}
