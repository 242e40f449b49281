package tablestore

import "slices"

// RowWrite is the change of one row by a commit: new content, or removal.
type RowWrite struct {
	Key Key
	// ETag is the row's new version, empty if the row is removed.
	ETag ETag
	// Properties are the op's own, not a copy.
	Properties Properties
}

// Removed reports whether the row is gone after the write.
func (w *RowWrite) Removed() bool { return w.ETag == "" }

// Fold applies valid batches in order, each op seeing those before it, for the
// drivers that hold their rows themselves. It returns one write for each row
// that changes, in the order in which the rows first appear, and the new ETags
// of all ops. The error is a [*ConflictError] for the first precondition that
// does not hold, or one of current.
//
// A [Clear] removes the rows that earlier batches write. The driver removes the stored rows
// of [ClearedRows].
//
// current returns the stored version of a row, or "" if there is none. It is
// called at most once for each row, and not for a row whose first op does not
// depend on the version: a look-up costs more than the rest of the fold. next
// returns a version that no row had before.
func Fold(batches []Batch, current func(Key) (ETag, error), next func() ETag) ([]RowWrite, [][]ETag, error) {
	ops := 0
	for _, batch := range batches {
		ops += len(batch)
	}
	f := folding{
		current: current, next: next, rows: make(map[Key]int, ops), writes: make([]RowWrite, 0, ops),
		own: make([]bool, 0, ops), before: make([]ETag, 0, ops),
	}
	etags := make([][]ETag, len(batches))
	for i, batch := range batches {
		etags[i] = make([]ETag, len(batch))
		if batch.Clears() {
			f.clear(&batch[0])
			continue
		}
		for j := range batch {
			etag, err := f.apply(&batch[j])
			if err != nil {
				return nil, nil, err
			}
			etags[i][j] = etag
		}
	}
	// A row that was absent before and after the fold has no write.
	changed := f.writes[:0]
	for i, write := range f.writes {
		if write.ETag != f.before[i] {
			changed = append(changed, write)
		}
	}
	return changed, etags, nil
}

// ClearedRows returns the removal of each stored row of the partitions that the batches
// clear, except of the rows in writes, which are the result of [Fold]. rows returns the row
// keys of a partition.
func ClearedRows(batches []Batch, writes []RowWrite, rows func(table, partition string) ([]string, error)) ([]RowWrite, error) {
	if !slices.ContainsFunc(batches, Batch.Clears) {
		return nil, nil
	}
	written := make(map[Key]struct{}, len(writes))
	for i := range writes {
		written[writes[i].Key] = struct{}{}
	}
	var removed []RowWrite
	for _, batch := range batches {
		if !batch.Clears() {
			continue
		}
		key := batch[0].Key
		stored, err := rows(key.Table, key.Partition)
		if err != nil {
			return nil, err
		}
		for _, row := range stored {
			key.Row = row
			if _, twice := written[key]; !twice {
				removed = append(removed, RowWrite{Key: key})
			}
		}
	}
	return removed, nil
}

// clear removes the rows of the partition that were written before.
func (f *folding) clear(op *Op) {
	for i := range f.writes {
		if key := f.writes[i].Key; key.Table == op.Key.Table && key.Partition == op.Key.Partition {
			f.writes[i], f.own[i] = RowWrite{Key: key}, false
		}
	}
}

// unread stands for a stored version that no op depends on.
const unread ETag = "unread"

// folding is the state of one fold: the rows of the ops so far, as these ops leave them.
type folding struct {
	current func(Key) (ETag, error)
	next    func() ETag
	rows    map[Key]int // The row's index in the slices.
	writes  []RowWrite
	own     []bool // This fold wrote the row's version.
	before  []ETag
}

// apply checks the op's precondition and records its effect.
func (f *folding) apply(op *Op) (ETag, error) {
	at, seen := f.rows[op.Key]
	if !seen {
		stored := unread
		if op.Verb != Put && op.Verb != Discard {
			var err error
			if stored, err = f.current(op.Key); err != nil {
				return "", err
			}
		}
		at = len(f.writes)
		f.rows[op.Key] = at
		f.writes = append(f.writes, RowWrite{Key: op.Key, ETag: stored})
		f.own = append(f.own, false)
		f.before = append(f.before, stored)
	}
	row, holds := &f.writes[at], true
	switch {
	case op.Verb == Insert:
		holds = row.Removed()
	case op.ETag == Own:
		holds = f.own[at]
	case op.Verb.conditional():
		holds = !row.Removed() && row.ETag == op.ETag
	}
	if !holds {
		return "", &ConflictError{Key: op.Key, Verb: op.Verb}
	}
	*row = RowWrite{Key: op.Key}
	if f.own[at] = op.Verb.writes(); f.own[at] {
		row.ETag, row.Properties = f.next(), op.Properties
	}
	return row.ETag, nil
}
