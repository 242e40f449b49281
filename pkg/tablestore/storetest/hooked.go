package storetest

import (
	"context"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Call is a kind of call of a store.
type Call uint8

// The kinds of calls. GetCall is Get and GetAll alike, and CommitCall Commit and CommitAll.
// AnyCall is for a [Fault] alone.
const (
	AnyCall Call = iota
	GetCall
	ScanCall
	CommitCall
)

// Request is one call of a store.
type Request struct {
	Call    Call
	Keys    []tablestore.Key   // Of a GetCall.
	Query   tablestore.Query   // Of a ScanCall.
	Batches []tablestore.Batch // Of a CommitCall.
	// Rows are what a read returned, once it did. GetAll returns the zero row for one that
	// is absent.
	Rows []tablestore.Row
}

// Key returns the first key of the request. That of a query has no row.
func (r *Request) Key() tablestore.Key {
	switch {
	case len(r.Keys) > 0:
		return r.Keys[0]
	case len(r.Batches) > 0 && len(r.Batches[0]) > 0:
		return r.Batches[0][0].Key
	}
	return tablestore.Key{Table: r.Query.Table, Partition: r.Query.Partition}
}

// Hook is called instead of each call of a store. do carries out the request, which the hook
// may change before. The call returns the error of the hook, or what do has read or written.
// A hook must be safe for concurrent use if its store is.
type Hook func(ctx context.Context, r *Request, do func(context.Context) error) error

// Hooked returns the store with a hook. The result is a [tablestore.AtomicStore] when store
// is one.
func Hooked(store tablestore.Store, hook Hook) tablestore.Store {
	wrapped := &hooked{Store: store, hook: hook}
	if atomic, ok := store.(tablestore.AtomicStore); ok {
		return &atomicHooked{hooked: wrapped, store: atomic}
	}
	return wrapped
}

// BeforeCommit returns the store with a function that is called with each batch before it is
// written. The commit returns the error of the function, if any.
func BeforeCommit(store tablestore.Store, before func(tablestore.Batch) error) tablestore.Store {
	return Hooked(store, func(ctx context.Context, r *Request, do func(context.Context) error) error {
		for _, batch := range r.Batches {
			if err := before(batch); err != nil {
				return err
			}
		}
		return do(ctx)
	})
}

// AfterRead returns the store with a function that is called after each read, before its
// caller gets the rows.
func AfterRead(store tablestore.Store, after func(*Request)) tablestore.Store {
	return Hooked(store, func(ctx context.Context, r *Request, do func(context.Context) error) error {
		err := do(ctx)
		if r.Call != CommitCall {
			after(r)
		}
		return err
	})
}

type hooked struct {
	tablestore.Store
	hook Hook
}

// call makes the request through the hook.
func call[T any](ctx context.Context, hook Hook, r *Request, do func(ctx context.Context) (T, error)) (T, error) {
	var result, none T
	err := hook(ctx, r, func(ctx context.Context) (err error) {
		result, err = do(ctx)
		return err
	})
	if err != nil {
		return none, err
	}
	return result, nil
}

func (h *hooked) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	r := &Request{Call: GetCall, Keys: []tablestore.Key{key}}
	return call(ctx, h.hook, r, func(ctx context.Context) (tablestore.Row, error) {
		row, err := h.Store.Get(ctx, r.Keys[0])
		if err == nil {
			r.Rows = []tablestore.Row{row}
		}
		return row, err
	})
}

func (h *hooked) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	r := &Request{Call: ScanCall, Query: query}
	return call(ctx, h.hook, r, func(ctx context.Context) (tablestore.Page, error) {
		page, err := h.Store.Scan(ctx, r.Query)
		r.Rows = page.Rows
		return page, err
	})
}

func (h *hooked) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	r := &Request{Call: CommitCall, Batches: []tablestore.Batch{batch}}
	return call(ctx, h.hook, r, func(ctx context.Context) ([]tablestore.ETag, error) {
		return h.Store.Commit(ctx, r.Batches[0])
	})
}

type atomicHooked struct {
	*hooked
	store tablestore.AtomicStore
}

func (h *atomicHooked) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	r := &Request{Call: GetCall, Keys: keys}
	return call(ctx, h.hook, r, func(ctx context.Context) (rows []tablestore.Row, err error) {
		r.Rows, err = h.store.GetAll(ctx, r.Keys)
		return r.Rows, err
	})
}

func (h *atomicHooked) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	r := &Request{Call: CommitCall, Batches: batches}
	return call(ctx, h.hook, r, func(ctx context.Context) ([][]tablestore.ETag, error) {
		return h.store.CommitAll(ctx, r.Batches, applied)
	})
}
