package tablestore

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
