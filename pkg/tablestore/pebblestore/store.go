package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The limits of one page of a scan.
const (
	maxPageRows  = 1000
	maxPageBytes = 4 << 20
)

var errClosed = errors.New("local store is closed")

// Store is a durable table store in a directory. See the package comment.
type Store struct {
	db      *pebble.DB
	lock    *pebble.Lock
	latch   *latch
	space   *space
	folder  *folder
	stripes *stripes

	header   header
	isNew    bool
	readOnly bool
	writes   atomic.Uint64

	gate    sync.RWMutex // Guards closed against requests that enter during Close.
	closed  bool
	running sync.WaitGroup // Requests under way and writes that are not durable yet.
	applied chan applied   // Applied writes that wait for their sync.
	closing chan struct{}  // Closed by the first Close.
}

var _ tablestore.AtomicStore = (*Store)(nil)

// enter begins a request, which ends with running.Done, or returns why the
// store refuses it.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	if err := s.sound(); err != nil {
		return err
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, errClosed)
	}
	s.running.Add(1)
	return nil
}

// sound returns an error once the store has failed.
func (s *Store) sound() error {
	if s.latch.tripped() {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, s.latch.failure())
	}
	return nil
}

// Writable returns why the store would refuse a write now, or nil:
// [tablestore.ErrUnavailable] once it has failed, with [ErrLost] if its
// directory was removed or replaced, and with [ErrNoSpace] while less disk
// space is free than the reserve; [tablestore.ErrInvalid] if it was opened
// read-only. It is safe for concurrent use.
func (s *Store) Writable() error {
	if s.readOnly {
		return fmt.Errorf("%w: local store was opened read-only", tablestore.ErrInvalid)
	}
	if err := s.sound(); err != nil {
		return err
	}
	if err := s.space.admit(); err != nil {
		return fmt.Errorf("%w: %w: %w", tablestore.ErrUnavailable, ErrNoSpace, err)
	}
	return nil
}

// lookInterval is how often the disk is checked.
const lookInterval = time.Second

// watch periodically checks, even without writes, that enough disk space is
// free and that the directory is still the one that was opened. It ends with
// the store.
func (s *Store) watch() {
	defer s.running.Done()
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-s.latch.failed:
			return
		case <-ticker.C:
		}
		_ = s.space.look()
		if err := s.folder.look(); err != nil {
			s.latch.trip(err)
		}
	}
}

// durable waits until these writes, which were pending at a read, are on the
// disk. It returns an error if they may never be.
func (s *Store) durable(ctx context.Context, writes ...*pending) error {
	for _, write := range writes {
		if write == nil {
			continue
		}
		select {
		case <-write.done:
		case <-s.latch.failed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, ctx.Err())
		}
	}
	return s.sound()
}

// Info describes an open store.
type Info struct {
	Dir     string    // The data directory's absolute path, with links resolved.
	New     bool      // Open made the store.
	Created time.Time // When the store was made.
	Opened  uint64    // How often it was opened for writing, this time included.
	Bytes   uint64    // The size of its files on disk.
}

// Info describes the store.
func (s *Store) Info() Info {
	return Info{
		Dir: s.folder.dir, New: s.isNew, Created: s.header.created, Opened: s.header.epoch,
		Bytes: s.db.Metrics().DiskSpaceUsage(),
	}
}

// Get implements [tablestore.Store].
func (s *Store) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if err := key.Validate(); err != nil {
		return tablestore.Row{}, err
	}
	if err := s.enter(ctx); err != nil {
		return tablestore.Row{}, err
	}
	defer s.running.Done()
	row, err := s.read(key)
	// Loaded after the read, because a write is announced before it becomes
	// visible.
	last := s.stripes.of(key.Table, key.Partition).last.Load()
	if err := s.durable(ctx, last); err != nil {
		return tablestore.Row{}, err
	}
	return row, err
}

// read returns the row, which may not be durable yet.
func (s *Store) read(key tablestore.Key) (tablestore.Row, error) {
	data, closer, err := s.lookUp(key)
	if err != nil {
		return tablestore.Row{}, err
	}
	if closer == nil {
		return tablestore.Row{}, fmt.Errorf("%w: %s", tablestore.ErrNotFound, key)
	}
	row, err := decodeRow(key, data)
	return row, errors.Join(err, closer.Close())
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
func (s *Store) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	if err := query.Validate(); err != nil {
		return tablestore.Page{}, err
	}
	if err := s.enter(ctx); err != nil {
		return tablestore.Page{}, err
	}
	defer s.running.Done()
	stripe := s.stripes.of(query.Table, query.Partition)
	page, last, err := s.scan(stripe, query)
	if err := s.durable(ctx, last); err != nil {
		return tablestore.Page{}, err
	}
	if err != nil {
		return tablestore.Page{}, fmt.Errorf("scan of %s/%s: %w", query.Table, query.Partition, err)
	}
	return page, nil
}

// scan reads one page, and returns the write that must be durable before the
// page may be returned.
func (s *Store) scan(stripe *stripe, query tablestore.Query) (tablestore.Page, *pending, error) {
	at := place{query.Table, query.Partition, max(query.From, query.Continue)}
	watch, start := stripe.skipper.begin(at)
	lower, upper := bounds(query, start)
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		stripe.skipper.end(watch, "", 0)
		return tablestore.Page{}, nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	// The iterator is a snapshot, so later writes need no wait.
	last := stripe.last.Load()
	first, dead := seekFirst(iter, query)
	stripe.skipper.end(watch, first, dead)
	page, err := collect(iter, query)
	if closeErr := iter.Close(); closeErr != nil {
		err = fmt.Errorf("%w: %w", tablestore.ErrUnavailable, closeErr)
	}
	return page, last, err
}

// seekFirst moves to the first row and returns its key, or the end of the range
// if there is none, and the number of tombstones before it. After an error the
// key is "".
func seekFirst(iter *pebble.Iterator, query tablestore.Query) (first string, dead int) {
	valid := iter.First()
	if iter.Error() != nil {
		return "", 0
	}
	stats := iter.Stats()
	dead = stats.ForwardStepCount[pebble.InternalIterCall]
	if valid {
		return rowKey(iter, query), dead
	}
	return end(query), dead
}

// collect reads one page, beginning at the iterator's row.
func collect(iter *pebble.Iterator, query tablestore.Query) (tablestore.Page, error) {
	limit := maxPageRows
	if query.Limit > 0 {
		limit = min(limit, query.Limit)
	}
	var page tablestore.Page
	size := 0
	for ; iter.Valid(); iter.Next() {
		if len(page.Rows) == limit || size > maxPageBytes {
			// Right after the last row rather than at this one: a row that is
			// inserted between the two belongs to the next page.
			page.Next = page.Rows[len(page.Rows)-1].Key.Row + "\x00"
			return page, nil
		}
		data, err := iter.ValueAndErr()
		if err != nil {
			return tablestore.Page{}, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
		}
		key := tablestore.Key{Table: query.Table, Partition: query.Partition, Row: rowKey(iter, query)}
		row, err := decodeRow(key, data)
		if err != nil {
			return tablestore.Page{}, err
		}
		page.Rows = append(page.Rows, row)
		size += len(data)
	}
	return page, nil
}

// rowKey returns the row key at the iterator.
func rowKey(iter *pebble.Iterator, query tablestore.Query) string {
	return string(iter.Key()[len(query.Table)+len(query.Partition)+2:])
}

// Close implements [tablestore.Store]. It waits for requests under way and for
// writes that are not durable yet, even if their callers have given up.
func (s *Store) Close() error {
	s.gate.Lock()
	again := s.closed
	s.closed = true
	s.gate.Unlock()
	if again {
		return nil
	}
	close(s.closing)
	s.running.Wait()
	close(s.applied)
	err := errors.Join(s.db.Close(), s.lock.Close())
	if err != nil {
		return fmt.Errorf("close local store: %w", err)
	}
	return nil
}
