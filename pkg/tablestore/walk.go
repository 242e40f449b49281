package tablestore

import (
	"context"
	"fmt"
)

// Walk selects the rows of a whole table that lie behind a key, in ascending
// order of partition and row.
type Walk struct {
	Table string
	// Partition and Row are the key of the last row that was read, both empty for
	// the first page.
	Partition string
	Row       string
	// Limit is the most rows that one page holds; 0 leaves it to the store.
	Limit int
}

// Walker is a store whose tables can be read whole, for audits. It is not for
// serving requests: a walk costs as much as the table is large.
type Walker interface {
	// Walk returns one page of rows, and none where the table ends. A row that is
	// there from the beginning of a walk to its end is returned once. The errors
	// are those of [Store].Scan.
	Walk(ctx context.Context, walk Walk) ([]Row, error)
}

// Validate reports the first rule of the port that the walk breaks, as an error
// that wraps [ErrInvalid].
func (w Walk) Validate() error {
	if err := validateTable(w.Table); err != nil {
		return fmt.Errorf("walk: %w", err)
	}
	if w.Partition != "" || w.Row != "" {
		key := Key{Table: w.Table, Partition: w.Partition, Row: w.Row}
		if err := key.Validate(); err != nil {
			return fmt.Errorf("walk: %w", err)
		}
	}
	if w.Limit < 0 {
		return fmt.Errorf("walk: %w: negative limit %d", ErrInvalid, w.Limit)
	}
	return nil
}

// First reports whether the walk begins at the table's first row.
func (w Walk) First() bool { return w.Partition == "" }

// Behind is the walk's next page, behind the last row of this one.
func (w Walk) Behind(rows []Row) Walk {
	last := rows[len(rows)-1].Key
	w.Partition, w.Row = last.Partition, last.Row
	return w
}
