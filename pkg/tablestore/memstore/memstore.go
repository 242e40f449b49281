// Package memstore is a table store in memory, for tests and trials. It passes
// the port's conformance suite, but loses all rows when it is closed. It starts
// no goroutine, and its ETags come from a counter, so that a run is
// reproducible.
package memstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/tidwall/btree"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxPage is the greatest number of rows on one page, as in Azure Tables.
const maxPage = 1000

var errClosed = errors.New("memory store is closed")

// Options configures a store.
type Options struct {
	// Split hides the store's CommitAll, so that each change runs its stages
	// one by one. Optional. Defaults to false: the store is a
	// [tablestore.AtomicStore].
	Split bool
	// Shared has callers and the store share the properties of rows, instead of
	// copying them: no one may change those of a batch or of a row that was read,
	// which the port allows. Optional. Defaults to false.
	Shared bool
	// Tail holds the commits that a power loss would undo. Optional. Without it each
	// commit is durable at once.
	Tail *Tail
}

// New returns an empty store.
func New(options Options) tablestore.Store {
	mem := &store{
		shared: options.Shared, rows: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true}), tail: options.Tail,
	}
	if mem.tail != nil {
		mem.tail.store = mem
	}
	if options.Split {
		return split{mem, mem}
	}
	return mem
}

// split hides CommitAll and GetAll.
type split struct {
	tablestore.Store
	tablestore.Walker
}

// Commit implements [tablestore.Store]. It takes no batch that only CommitAll takes.
func (s split) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if err := batch.Validate(); err != nil {
		return nil, err
	}
	return s.Store.Commit(ctx, batch)
}

type store struct {
	mu     sync.RWMutex // A reader sees all of a batch or nothing.
	rows   *btree.BTreeG[*row]
	shared bool
	tail   *Tail // may be nil
	etags  uint64
	closed bool
}

var (
	_ tablestore.AtomicStore = (*store)(nil)
	_ tablestore.Walker      = (*store)(nil)
)

// row is a stored row, which never changes. Values cannot change.
type row struct {
	key        tablestore.Key
	etag       tablestore.ETag
	properties tablestore.Properties
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

// give returns a row for a caller.
func (s *store) give(r *row) tablestore.Row {
	return tablestore.Row{Key: r.key, ETag: r.etag, Properties: s.own(r.properties)}
}

// own returns a copy of the properties, unless callers and the store share them.
func (s *store) own(properties tablestore.Properties) tablestore.Properties {
	if s.shared {
		return slices.Clip(properties)
	}
	return slices.Clone(properties)
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

func (s *store) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if err := key.Validate(); err != nil {
		return tablestore.Row{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return tablestore.Row{}, err
	}
	stored, ok := s.rows.Get(&row{key: key})
	if !ok {
		return tablestore.Row{}, fmt.Errorf("%w: %s", tablestore.ErrNotFound, key)
	}
	return s.give(stored), nil
}

func (s *store) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	if err := tablestore.ValidateKeys(keys); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	rows := make([]tablestore.Row, len(keys))
	for i := range keys {
		if stored, ok := s.rows.Get(&row{key: keys[i]}); ok {
			rows[i] = s.give(stored)
		}
	}
	return rows, nil
}

func (s *store) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	if err := query.Validate(); err != nil {
		return tablestore.Page{}, err
	}
	from := tablestore.Key{Table: query.Table, Partition: query.Partition, Row: max(query.From, query.Continue)}
	rows, more, err := s.collect(ctx, from, query.Limit, func(key tablestore.Key) bool {
		return key.Table == query.Table && key.Partition == query.Partition && (query.To == "" || key.Row < query.To)
	})
	if err != nil {
		return tablestore.Page{}, err
	}
	page := tablestore.Page{Rows: rows}
	if more {
		// Right after the last row rather than at the next one: a row that is
		// inserted between the two belongs to the next page.
		page.Next = rows[len(rows)-1].Key.Row + "\x00"
	}
	return page, nil
}

func (s *store) Walk(ctx context.Context, walk tablestore.Walk) ([]tablestore.Row, error) {
	if err := walk.Validate(); err != nil {
		return nil, err
	}
	from := tablestore.Key{Table: walk.Table, Partition: walk.Partition, Row: walk.Row}
	if !walk.First() {
		from.Row += "\x00" // Right after the last row.
	}
	rows, _, err := s.collect(ctx, from, walk.Limit, func(key tablestore.Key) bool { return key.Table == walk.Table })
	return rows, err
}

// collect returns the rows from that key on while in holds, at most one page of
// them, and whether more follow.
func (s *store) collect(
	ctx context.Context, from tablestore.Key, limit int, in func(key tablestore.Key) bool,
) (rows []tablestore.Row, more bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return nil, false, err
	}
	limit = min(cmp.Or(limit, maxPage), maxPage)
	rows = []tablestore.Row{}
	s.rows.Ascend(&row{key: from}, func(r *row) bool {
		if !in(r.key) {
			return false
		}
		if more = len(rows) == limit; more {
			return false
		}
		rows = append(rows, s.give(r))
		return true
	})
	return rows, more, nil
}

func (s *store) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	etags, err := s.CommitAll(ctx, []tablestore.Batch{batch}, nil)
	if err != nil {
		return nil, err
	}
	return etags[0], nil
}

func (s *store) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	if err := tablestore.ValidateAll(batches); err != nil {
		return nil, err
	}
	etags, err := s.commitAll(ctx, batches)
	if err == nil && applied != nil {
		applied(etags)
	}
	return etags, err
}

func (s *store) commitAll(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	current := func(key tablestore.Key) (tablestore.ETag, error) {
		if stored, ok := s.rows.Get(&row{key: key}); ok {
			return stored.etag, nil
		}
		return "", nil
	}
	next := func() tablestore.ETag {
		s.etags++
		return tablestore.ETag(strconv.FormatUint(s.etags, 16))
	}
	writes, etags, err := tablestore.Fold(batches, current, next)
	if err != nil {
		return nil, err
	}
	cleared, err := tablestore.ClearedRows(batches, writes, s.rowsOf)
	if err != nil {
		return nil, err
	}
	writes = append(writes, cleared...)
	var before []replaced
	for i := range writes {
		write := &writes[i]
		var old *row
		if write.Removed() {
			old, _ = s.rows.Delete(&row{key: write.Key})
		} else {
			old, _ = s.rows.Set(&row{key: write.Key, etag: write.ETag, properties: s.own(write.Properties)})
		}
		if s.tail != nil {
			before = append(before, replaced{write.Key, old})
		}
	}
	if s.tail != nil {
		s.tail.commits = append(s.tail.commits, before)
	}
	return etags, nil
}

// rowsOf returns the row keys of a partition. The caller holds mu.
func (s *store) rowsOf(table, partition string) (rows []string, err error) {
	s.rows.Ascend(&row{key: tablestore.Key{Table: table, Partition: partition}}, func(r *row) bool {
		if r.key.Table != table || r.key.Partition != partition {
			return false
		}
		rows = append(rows, r.key.Row)
		return true
	})
	return rows, nil
}

// Close implements [tablestore.Store]. All rows are lost.
func (s *store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.rows.Clear()
	return nil
}
