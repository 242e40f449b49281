package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

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

func (c *counting) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	c.counter.gets.Add(1)
	row, err := c.Store.Get(ctx, key)
	if err == nil {
		c.counter.rows.Add(1)
	}
	return row, err
}

func (c *counting) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	c.counter.scans.Add(1)
	page, err := c.Store.Scan(ctx, query)
	c.counter.rows.Add(int64(len(page.Rows)))
	return page, err
}

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

var _ tablestore.AtomicStore = (*atomicCounting)(nil)

type atomicCounting struct {
	*counting
	store tablestore.AtomicStore
}

func (c *atomicCounting) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	c.counter.gets.Add(1)
	rows, err := c.store.GetAll(ctx, keys)
	for i := range rows {
		if rows[i].ETag != "" {
			c.counter.rows.Add(1)
		}
	}
	return rows, err
}

func (c *atomicCounting) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	c.count(batches...)
	return c.store.CommitAll(ctx, batches, applied)
}

// ErrInjected is wrapped by every default error of [Faults].
var ErrInjected = errors.New("injected fault")

// Call is a kind of call that can fail.
type Call uint8

// The kinds of calls. CommitCall is Commit and CommitAll alike.
const (
	AnyCall Call = iota
	GetCall
	ScanCall
	CommitCall
)

// Fault is one planned failure.
type Fault struct {
	// Call is the kind of calls to count. Optional. Defaults to AnyCall.
	Call Call
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

// strike counts a call and returns the fault that strikes it, or nil.
func (f *Faults) strike(call Call) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	var struck *Fault
	f.plans = slices.DeleteFunc(f.plans, func(p *plan) bool {
		if p.Call != AnyCall && p.Call != call {
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
	wrapped := &faulty{Store: store, faults: &Faults{}}
	if atomic, ok := store.(tablestore.AtomicStore); ok {
		return &atomicFaulty{faulty: wrapped, store: atomic}, wrapped.faults
	}
	return wrapped, wrapped.faults
}

type faulty struct {
	tablestore.Store
	faults *Faults
}

// call makes the call unless a fault strikes it first.
func call[T any](faults *Faults, kind Call, do func() (T, error)) (T, error) {
	var none T
	fault := faults.strike(kind)
	if fault == nil {
		return do()
	}
	if !fault.After {
		return none, fault.err()
	}
	// A refused call returns its own error, even if the reply is to be lost.
	if _, err := do(); err != nil {
		return none, err
	}
	return none, fault.err()
}

func (f *faulty) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	return call(f.faults, GetCall, func() (tablestore.Row, error) { return f.Store.Get(ctx, key) })
}

func (f *faulty) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	return call(f.faults, ScanCall, func() (tablestore.Page, error) { return f.Store.Scan(ctx, query) })
}

func (f *faulty) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	return call(f.faults, CommitCall, func() ([]tablestore.ETag, error) { return f.Store.Commit(ctx, batch) })
}

var _ tablestore.AtomicStore = (*atomicFaulty)(nil)

type atomicFaulty struct {
	*faulty
	store tablestore.AtomicStore
}

func (f *atomicFaulty) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	return call(f.faults, GetCall, func() ([]tablestore.Row, error) { return f.store.GetAll(ctx, keys) })
}

func (f *atomicFaulty) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	return call(f.faults, CommitCall, func() ([][]tablestore.ETag, error) { return f.store.CommitAll(ctx, batches, applied) })
}
