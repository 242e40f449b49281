package tablestore

import (
	"context"
	"fmt"
)

// Walk selects the rows of a whole table after a key, in ascending order of
// partition and row.
type Walk struct {
	Table string
	// Partition and Row are the key of the last row read, both empty for the
	// first page.
	Partition string
	Row       string
	// Limit is the greatest number of rows on one page; 0 leaves it to the
	// store.
	Limit int
}

// Walker is a store that can read whole tables, for audits. It is not for
// serving requests: the cost of a walk grows with the table.
type Walker interface {
	// Walk returns one page of rows, none at the end of the table. A row that
	// exists from the beginning of a walk to its end is returned once. The
	// errors are those of [Store].Scan.
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

// After returns the walk's next page, after the last of these rows.
func (w Walk) After(rows []Row) Walk {
	last := rows[len(rows)-1].Key
	w.Partition, w.Row = last.Partition, last.Row
	return w
}
