package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// jobRows reads the rows that a job is loaded from, as they were at one instant:
// none where there is no Job row. A store may break a scan up where it likes, and
// a change that comes between two pages shows in the second alone. As each change
// but a heartbeat's writes the Job row, which is on the first page, that row tells.
func (l *Ledger) jobRows(ctx context.Context, jobID string) ([]tablestore.Row, error) {
	query := tablestore.Query{
		Table: l.tables.Ledger, Partition: tablestore.Escape(jobID),
		From: rowJob, To: tablestore.PrefixEnd(rowStep + ":"),
	}
	for range maxTries {
		page, err := l.store.Scan(ctx, query)
		if err != nil || page.Next == "" {
			return page.Rows, err
		}
		rest := query
		rest.Continue = page.Next
		more, err := l.scanAll(ctx, rest)
		if err != nil {
			return nil, err
		}
		rows := append(page.Rows, more...)
		if same, err := l.unmoved(ctx, rows); err != nil || same {
			return rows, err
		}
	}
	return nil, fmt.Errorf("it changed %d times while it was read: %w", maxTries, tablestore.ErrUnavailable)
}

// unmoved reports whether the first of the rows, the Job row, is still as it was
// read.
func (l *Ledger) unmoved(ctx context.Context, rows []tablestore.Row) (bool, error) {
	if len(rows) == 0 {
		return true, nil
	}
	now, err := l.store.Get(ctx, rows[0].Key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return false, nil
	}
	return err == nil && now.ETag == rows[0].ETag, err
}
