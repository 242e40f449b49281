package pebblestore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The limits of one page of a scan or walk.
const (
	maxPageRows  = 1000
	maxPageBytes = 4 << 20
)

// readDurable runs a read and then waits until the writes that were pending on
// its stripes are durable. read loads these writes once it has its snapshot: a
// write is announced before it becomes visible.
func (s *Store) readDurable(ctx context.Context, operation string, read func() (seen []*pending, err error)) (err error) {
	began := time.Now()
	defer func() { s.observe(operation, time.Since(began), err) }()
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.running.Done()
	s.reads.Add(1)
	seen, err := read()
	return cmp.Or(s.awaitDurable(ctx, seen), err)
}

// Get implements [tablestore.Store].
func (s *Store) Get(ctx context.Context, key tablestore.Key) (row tablestore.Row, err error) {
	if err := key.Validate(); err != nil {
		return tablestore.Row{}, err
	}
	err = s.readDurable(ctx, "get", func() ([]*pending, error) {
		data, closer, err := s.lookUp(key)
		switch {
		case err != nil:
		case closer == nil:
			err = fmt.Errorf("%w: %s", tablestore.ErrNotFound, key)
		default:
			s.rowsRead.Add(1)
			row, err = decodeRow(key, data, s.names.known.Load())
			err = errors.Join(err, closer.Close())
		}
		return lasts(s.stripes.of(key.Table, key.Partition)), err
	})
	if err != nil {
		return tablestore.Row{}, err
	}
	return row, nil
}

// GetAll implements [tablestore.AtomicStore].
func (s *Store) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	if err := tablestore.ValidateKeys(keys); err != nil {
		return nil, err
	}
	rows := make([]tablestore.Row, len(keys))
	err := s.readDurable(ctx, "get", func() (seen []*pending, err error) {
		for i := 0; i < len(keys) && err == nil; i++ {
			var data []byte
			var closer io.Closer
			if data, closer, err = s.lookUp(keys[i]); err == nil && closer != nil {
				s.rowsRead.Add(1)
				rows[i], err = decodeRow(keys[i], data, s.names.known.Load())
				err = errors.Join(err, closer.Close())
			}
			seen = append(seen, lasts(s.stripes.of(keys[i].Table, keys[i].Partition))...)
		}
		return seen, err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// lookUp returns the stored row, valid until the closer is closed; both are nil
// if there is none.
func (s *Store) lookUp(key tablestore.Key) ([]byte, io.Closer, error) {
	data, closer, err := s.db.Get(storedKey(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: read row %s: %w", tablestore.ErrUnavailable, key, err)
	}
	return data, closer, nil
}

// Scan implements [tablestore.Store]. A page holds at most 1,000 rows and
// about 4 MiB.
func (s *Store) Scan(ctx context.Context, query tablestore.Query) (page tablestore.Page, err error) {
	if err := query.Validate(); err != nil {
		return tablestore.Page{}, err
	}
	err = s.readDurable(ctx, "scan", func() (seen []*pending, err error) {
		if page, seen, err = s.scan(query); err != nil {
			err = fmt.Errorf("scan of %s/%s: %w", query.Table, query.Partition, err)
		}
		return seen, err
	})
	if err != nil {
		return tablestore.Page{}, err
	}
	return page, nil
}

// scan reads one page, and returns the writes that must be durable before the
// page may be returned.
func (s *Store) scan(query tablestore.Query) (tablestore.Page, []*pending, error) {
	stripe := s.stripes.of(query.Table, query.Partition)
	watch, start := stripe.skipper.begin(place{query.Table, query.Partition, max(query.From, query.Continue)})
	lower, upper := bounds(query, start)
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		stripe.skipper.end(watch, "", 0)
		return tablestore.Page{}, nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	// The iterator is a snapshot, so later writes need no wait.
	seen := lasts(stripe)
	first := end(query)
	if iter.First() {
		first = string(iter.Key()[len(query.Table)+len(query.Partition)+2:])
	}
	if iter.Error() != nil {
		first = ""
	}
	stats := iter.Stats()
	stripe.skipper.end(watch, first, stats.ForwardStepCount[pebble.InternalIterCall])

	var page tablestore.Page
	rows, more, err := collect(iter, query.Table, query.Limit, s.names.known.Load())
	s.rowsRead.Add(uint64(len(rows)))
	if page.Rows = rows; more {
		// Right after the last row rather than at the next one: a row that is
		// inserted between the two belongs to the next page.
		page.Next = rows[len(rows)-1].Key.Row + "\x00"
	}
	return page, seen, err
}

// Walk implements [tablestore.Walker]. A page holds at most 1,000 rows and about
// 4 MiB.
func (s *Store) Walk(ctx context.Context, walk tablestore.Walk) (rows []tablestore.Row, err error) {
	if err := walk.Validate(); err != nil {
		return nil, err
	}
	lower := append([]byte(walk.Table), divider)
	upper := append([]byte(walk.Table), divider+1)
	if !walk.First() {
		key := tablestore.Key{Table: walk.Table, Partition: walk.Partition, Row: walk.Row}
		lower = append(storedKey(key), divider) // Right after that key, before any other.
	}
	err = s.readDurable(ctx, "walk", func() ([]*pending, error) {
		iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		if err != nil {
			return nil, fmt.Errorf("walk of %s: %w: %w", walk.Table, tablestore.ErrUnavailable, err)
		}
		seen := lasts(s.stripes.all[:]...)
		iter.First()
		if rows, _, err = collect(iter, walk.Table, walk.Limit, s.names.known.Load()); err != nil {
			err = fmt.Errorf("walk of %s: %w", walk.Table, err)
		}
		s.rowsRead.Add(uint64(len(rows)))
		return seen, err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// collect reads one page of the table, beginning at the iterator's row, and
// closes the iterator. names are at least those known when the iterator was made.
// more reports whether rows are left.
func collect(iter *pebble.Iterator, table string, limit int, names *tablestore.Names,
) (rows []tablestore.Row, more bool, err error) {
	defer func() {
		if closeErr := iter.Close(); closeErr != nil {
			err = fmt.Errorf("%w: %w", tablestore.ErrUnavailable, closeErr)
		}
	}()
	limit = min(cmp.Or(limit, maxPageRows), maxPageRows)
	size := 0
	key := tablestore.Key{Table: table}
	for ; iter.Valid(); iter.Next() {
		if len(rows) == limit || size > maxPageBytes {
			return rows, true, nil
		}
		data, err := iter.ValueAndErr()
		if err != nil {
			return nil, false, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
		}
		partition, name, ok := bytes.Cut(iter.Key()[len(table)+1:], []byte{divider})
		if !ok {
			return nil, false, fmt.Errorf("%w: malformed key", tablestore.ErrCorrupt)
		}
		if string(partition) != key.Partition {
			key.Partition = string(partition)
		}
		key.Row = string(name)
		row, err := decodeRow(key, data, names)
		if err != nil {
			return nil, false, err
		}
		rows = append(rows, row)
		size += len(data)
	}
	return rows, false, nil
}

const (
	// learnAfter is how many tombstones a scan has to step over before the
	// skipper remembers where the live rows begin.
	learnAfter = 64
	// maxGaps bounds the gaps that one stripe remembers.
	maxGaps = 32
	// partitionEnd sorts after every row key.
	partitionEnd = "\xff"
)

// tombstoneSkipper remembers, for ranges that begin with many tombstones, where
// the first live row may be. A queue or schedule is scanned from the same place repeatedly
// while rows are removed at its head and added at its tail; until the engine has compacted
// the tombstones, each scan would step over all of them.
//
// Writers cut the gaps in [tombstoneSkipper.put].
type tombstoneSkipper struct {
	mu      sync.Mutex
	gaps    map[place]string // invariant: gaps[p] = to ⇒ no acknowledged row is in [p.from, to)
	watches map[*watch]struct{}
}

// place is where a query begins.
type place struct{ table, partition, from string }

// watch records which rows are written during a scan.
type watch struct {
	place place
	// low is the lowest row at or after the place that was written since.
	low string
}

// covers reports whether the row is at or after the place.
func (p place) covers(table, partition, row string) bool {
	return row >= p.from && partition == p.partition && table == p.table
}

// begin is called before a scan makes its iterator. It returns the row at
// which the scan may begin.
func (t *tombstoneSkipper) begin(at place) (w *watch, start string) {
	w = &watch{place: at, low: partitionEnd}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watches == nil {
		t.watches = map[*watch]struct{}{}
	}
	t.watches[w] = struct{}{}
	if to, ok := t.gaps[at]; ok {
		return w, to
	}
	return w, at.from
}

// end is called when the scan has found its first row or the end of its range,
// or has failed; first is "" after a failure. dead is the number of tombstones
// that the scan stepped over.
func (t *tombstoneSkipper) end(w *watch, first string, dead int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.watches, w)
	to, known := t.gaps[w.place]
	// A gap that another scan noted and writers cut is also true.
	to = max(to, min(first, w.low))
	if to <= w.place.from || !known && dead < learnAfter {
		return
	}
	if t.gaps == nil {
		t.gaps = map[place]string{}
	}
	if !known && len(t.gaps) == maxGaps {
		for other := range t.gaps {
			delete(t.gaps, other)
			break
		}
	}
	t.gaps[w.place] = to
}

// put cuts the gaps at a written row. It is called after new iterators show the
// row, and before the write is acknowledged or a reader that saw the row
// returns. A scan with an older iterator is either still watched or has left a
// gap, which put cuts. A scan that uses the gap before put cuts it may miss the
// row, as it may miss any row that is being written.
func (t *tombstoneSkipper) put(table, partition, row string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, to := range t.gaps {
		switch {
		case row >= to || !at.covers(table, partition, row):
		case row == at.from:
			delete(t.gaps, at)
		default:
			t.gaps[at] = row
		}
	}
	for w := range t.watches {
		if w.place.covers(table, partition, row) {
			w.low = min(w.low, row)
		}
	}
}
