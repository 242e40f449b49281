package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Counts are the numbers of calls of a store.
type Counts struct {
	Gets     int64 // Calls of Get and GetAll.
	Scans    int64 // Calls of Scan: pages, not queries.
	RowsRead int64 // Rows that Get and Scan returned.
	Commits  int64 // Calls of Commit and CommitAll: the syncs of a local disk.
	Batches  int64 // Batches in them: the requests to a remote store.
	Ops      int64 // Ops in those.
}

// Counter counts the calls of a store that [Counting] wraps. It is safe for
// concurrent use.
type Counter struct {
	mu     sync.Mutex
	counts Counts
	scans  map[string]int // By table.
}

// Counts returns the counts since the start or the last Reset. Calls count when
// they begin, whatever their outcome.
func (c *Counter) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

// ScansOf returns how many of the scans were of that table.
func (c *Counter) ScansOf(table string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.scans[table]
}

// Reset sets all counts to zero.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts, c.scans = Counts{}, map[string]int{}
}

// Counting returns the store with a counter of its calls. The result is a
// [tablestore.AtomicStore] when store is one. The counter allocates nothing in a call, as a hook
// would: benchmarks measure what the calls allocate.
func Counting(store tablestore.Store) (tablestore.Store, *Counter) {
	wrapped := &counting{Store: store, counter: &Counter{scans: map[string]int{}}}
	if atomic, ok := store.(tablestore.AtomicStore); ok {
		return &atomicCounting{counting: wrapped, store: atomic}, wrapped.counter
	}
	return wrapped, wrapped.counter
}

type counting struct {
	tablestore.Store
	counter *Counter
}

func (c *counting) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	c.counter.add(Counts{Gets: 1})
	row, err := c.Store.Get(ctx, key)
	if err == nil {
		c.counter.add(Counts{RowsRead: 1})
	}
	return row, err
}

func (c *counting) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	c.counter.scan(query.Table)
	page, err := c.Store.Scan(ctx, query)
	c.counter.add(Counts{RowsRead: int64(len(page.Rows))})
	return page, err
}

func (c *counting) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	c.counter.add(Counts{Commits: 1, Batches: 1, Ops: int64(len(batch))})
	return c.Store.Commit(ctx, batch)
}

type atomicCounting struct {
	*counting
	store tablestore.AtomicStore
}

func (c *atomicCounting) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	c.counter.add(Counts{Gets: 1})
	rows, err := c.store.GetAll(ctx, keys)
	for i := range rows {
		if rows[i].ETag != "" {
			c.counter.add(Counts{RowsRead: 1})
		}
	}
	return rows, err
}

func (c *atomicCounting) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	begun := Counts{Commits: 1, Batches: int64(len(batches))}
	for _, batch := range batches {
		begun.Ops += int64(len(batch))
	}
	c.counter.add(begun)
	return c.store.CommitAll(ctx, batches, applied)
}

// add adds calls to the counts.
func (c *Counter) add(more Counts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Gets += more.Gets
	c.counts.RowsRead += more.RowsRead
	c.counts.Commits += more.Commits
	c.counts.Batches += more.Batches
	c.counts.Ops += more.Ops
}

// scan counts a scan of the table.
func (c *Counter) scan(table string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Scans++
	c.scans[table]++
}

// ErrInjected is wrapped by every default error of [Faults].
var ErrInjected = errors.New("injected fault")

// Fault is one planned failure.
type Fault struct {
	// Call is the kind of calls to count. Optional. Defaults to AnyCall.
	Call Call
	// Table is the table of the calls to count. Optional. Defaults to all tables.
	Table string
	// Nth selects the failing call, counted from 1 after Plan. Optional.
	// Defaults to 1.
	Nth int
	// Onwards says that all later calls fail too, as after the death of the
	// process.
	Onwards bool
	// After says that the call takes effect before it fails: the reply is lost.
	After bool
	// Err is the error. Optional. Defaults to one that wraps ErrInjected and
	// [tablestore.ErrUnavailable], or with After [tablestore.ErrUnknown].
	Err error
}

// Faults plans the failures of a store that [Faulty] wraps.
type Faults struct {
	mu    sync.Mutex
	plans []*plan
}

// plan is a fault with the number of calls before it strikes.
type plan struct {
	Fault
	left int
}

// Plan adds faults. Each counts calls independently, from now on; if two strike
// the same call, the one planned first wins.
func (f *Faults) Plan(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range faults {
		f.plans = append(f.plans, &plan{Fault: fault, left: max(fault.Nth, 1) - 1})
	}
}

// Clear removes all planned faults.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plans = nil
}

// strike counts a request and returns the fault that strikes it, or nil.
func (f *Faults) strike(r *Request) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	var struck *Fault
	f.plans = slices.DeleteFunc(f.plans, func(p *plan) bool {
		if p.Call != AnyCall && p.Call != r.Call || p.Table != "" && p.Table != r.Key().Table {
			return false
		}
		if p.left > 0 {
			p.left--
			return false
		}
		if struck == nil {
			struck = &p.Fault
		}
		return !p.Onwards
	})
	return struck
}

// err returns the fault's error.
func (f *Fault) err() error {
	switch {
	case f.Err != nil:
		return f.Err
	case f.After:
		return fmt.Errorf("%w: %w", tablestore.ErrUnknown, ErrInjected)
	default:
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, ErrInjected)
	}
}

// Faulty returns the store with a plan of failures, empty at first. The result
// is a [tablestore.AtomicStore] when store is one.
func Faulty(store tablestore.Store) (tablestore.Store, *Faults) {
	f := &Faults{}
	return Hooked(store, f.hook), f
}

// hook fails the calls that a fault strikes. A refused call returns its own error, even if the reply
// is to be lost.
func (f *Faults) hook(ctx context.Context, r *Request, do func(context.Context) error) error {
	fault := f.strike(r)
	if fault == nil {
		return do(ctx)
	}
	if fault.After {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return fault.err()
}
