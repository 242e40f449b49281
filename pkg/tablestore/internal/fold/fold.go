// Package fold computes what a write of one or many batches does to single
// rows, for all local drivers. It does no I/O of its own.
package fold

import (
	"context"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Apply writes valid batches, all or none.
type Apply func(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error)

// Commit is [tablestore.Store].Commit of a store that writes by apply.
func (apply Apply) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if err := batch.Validate(); err != nil {
		return nil, err
	}
	etags, err := apply(ctx, []tablestore.Batch{batch})
	if err != nil {
		return nil, err
	}
	return etags[0], nil
}

// CommitAll is [tablestore.AtomicStore].CommitAll of a store that writes by apply.
func (apply Apply) CommitAll(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error) {
	if err := tablestore.ValidateAll(batches); err != nil {
		return nil, err
	}
	return apply(ctx, batches)
}

// Write is the change of one row: new content, or removal.
type Write struct {
	Key tablestore.Key
	// ETag is the row's new version, empty when it is removed.
	ETag tablestore.ETag
	// Properties are the op's own, not a copy.
	Properties tablestore.Properties
}

// Removed reports whether the row is gone after the write.
func (w *Write) Removed() bool { return w.ETag == "" }

// Input is what a fold reads from its store. The functions are called one at a
// time, by the goroutine that called [Fold].
type Input struct {
	// Current returns the stored version of a row, or "" if there is none. It
	// is called at most once for each row, and not for a row whose first op
	// does not depend on the stored version. Required.
	Current func(tablestore.Key) (tablestore.ETag, error)
	// Next returns a version that no row had before. Required.
	Next func() tablestore.ETag
}

// Fold applies the valid batches in order, each op seeing those before it, and
// returns one write for each row that changes, in the order in which the rows
// first appear, and the new ETags of all ops. The error is a
// *[tablestore.ConflictError] for the first precondition that does not hold,
// or one of in.Current.
func Fold(batches []tablestore.Batch, in Input) ([]Write, [][]tablestore.ETag, error) {
	f := folding{in: in, rows: map[tablestore.Key]int{}}
	etags := make([][]tablestore.ETag, len(batches))
	for i, batch := range batches {
		etags[i] = make([]tablestore.ETag, len(batch))
		for j := range batch {
			etag, err := f.op(&batch[j])
			if err != nil {
				return nil, nil, err
			}
			etags[i][j] = etag
		}
	}
	return f.changed(), etags, nil
}

// folding is the state of one fold: the rows seen so far, with their versions
// after the ops so far.
type folding struct {
	in     Input
	rows   map[tablestore.Key]int
	writes []Write
	own    []bool // The row's version was written by this fold.
	before []tablestore.ETag
}

// op checks the op's precondition and records its effect.
func (f *folding) op(op *tablestore.Op) (tablestore.ETag, error) {
	at, err := f.row(op)
	if err != nil {
		return "", err
	}
	if !f.holds(op, at) {
		return "", &tablestore.ConflictError{Key: op.Key, Verb: op.Verb}
	}
	row := &f.writes[at]
	switch op.Verb {
	case tablestore.Delete, tablestore.Discard:
		*row = Write{Key: op.Key}
		f.own[at] = false
	default:
		*row = Write{Key: op.Key, ETag: f.in.Next(), Properties: op.Properties}
		f.own[at] = true
	}
	return row.ETag, nil
}

// holds reports whether the op's precondition holds for the row now.
func (f *folding) holds(op *tablestore.Op, at int) bool {
	row := &f.writes[at]
	switch op.Verb {
	case tablestore.Insert:
		return row.Removed()
	case tablestore.Replace, tablestore.Delete:
		if op.ETag == tablestore.Own {
			return f.own[at]
		}
		return !row.Removed() && row.ETag == op.ETag
	default:
		return true
	}
}

// unread stands for a version that no op depends on.
const unread tablestore.ETag = "unread"

// row returns the index of the op's row. It loads the version only if the row
// is new and the op depends on it: a look-up costs more than the rest of the
// fold.
func (f *folding) row(op *tablestore.Op) (int, error) {
	if at, ok := f.rows[op.Key]; ok {
		return at, nil
	}
	etag := unread
	if op.Verb != tablestore.Put && op.Verb != tablestore.Discard {
		var err error
		if etag, err = f.in.Current(op.Key); err != nil {
			return 0, err
		}
	}
	at := len(f.writes)
	f.rows[op.Key] = at
	f.writes = append(f.writes, Write{Key: op.Key, ETag: etag})
	f.own = append(f.own, false)
	f.before = append(f.before, etag)
	return at, nil
}

// changed returns the rows whose stored version changes or may change, but not
// rows that are known to be absent and stay absent.
func (f *folding) changed() []Write {
	changed := f.writes[:0]
	for i, write := range f.writes {
		if write.ETag != f.before[i] {
			changed = append(changed, write)
		}
	}
	return changed
}
