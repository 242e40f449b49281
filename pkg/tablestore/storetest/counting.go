package storetest

import (
	"context"
	"sync/atomic"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Counts are the numbers of calls of a store.
type Counts struct {
	Gets     int64 // Calls of Get.
	Scans    int64 // Calls of Scan: pages, not queries.
	RowsRead int64 // Rows that Get and Scan returned.
	Commits  int64 // Calls of Commit and CommitAll: the syncs of a local disk.
	Batches  int64 // Batches in them: the requests to a remote store.
	Ops      int64 // Ops in those.
}

// Counter counts the calls of a store that [Counting] wraps. It is safe for
// concurrent use.
type Counter struct {
	gets, scans, rows, commits, batches, ops atomic.Int64
}

// Counts returns the counts since the start or the last Reset. Calls count when
// they begin, whatever their outcome.
func (c *Counter) Counts() Counts {
	return Counts{
		Gets: c.gets.Load(), Scans: c.scans.Load(), RowsRead: c.rows.Load(),
		Commits: c.commits.Load(), Batches: c.batches.Load(), Ops: c.ops.Load(),
	}
}

// Reset sets all counts to zero.
func (c *Counter) Reset() {
	for _, count := range []*atomic.Int64{&c.gets, &c.scans, &c.rows, &c.commits, &c.batches, &c.ops} {
		count.Store(0)
	}
}

// Counting returns the store with a counter of its calls. The result is a
// [tablestore.AtomicStore] when store is one.
func Counting(store tablestore.Store) (tablestore.Store, *Counter) {
	wrapped := &counting{Store: store, counter: &Counter{}}
	if atomic, ok := store.(tablestore.AtomicStore); ok {
		return &atomicCounting{counting: wrapped, store: atomic}, wrapped.counter
	}
	return wrapped, wrapped.counter
}

type counting struct {
	tablestore.Store
	counter *Counter
}

// Get implements [tablestore.Store].
func (c *counting) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	c.counter.gets.Add(1)
	row, err := c.Store.Get(ctx, key)
	if err == nil {
		c.counter.rows.Add(1)
	}
	return row, err
}

// Scan implements [tablestore.Store].
func (c *counting) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	c.counter.scans.Add(1)
	page, err := c.Store.Scan(ctx, query)
	c.counter.rows.Add(int64(len(page.Rows)))
	return page, err
}

// Commit implements [tablestore.Store].
func (c *counting) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	c.count(batch)
	return c.Store.Commit(ctx, batch)
}

// count counts one commit of the batches.
func (c *counting) count(batches ...tablestore.Batch) {
	c.counter.commits.Add(1)
	c.counter.batches.Add(int64(len(batches)))
	for _, batch := range batches {
		c.counter.ops.Add(int64(len(batch)))
	}
}

type atomicCounting struct {
	*counting
	store tablestore.AtomicStore
}

// CommitAll implements [tablestore.AtomicStore].
func (c *atomicCounting) CommitAll(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error) {
	c.count(batches...)
	return c.store.CommitAll(ctx, batches)
}
