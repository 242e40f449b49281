package ledger

import (
	"context"
	"errors"

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
	var rows []tablestore.Row
	err := tablestore.Retry(ctx, l.random, func() error {
		page, err := l.store.Scan(ctx, query)
		rows = page.Rows
		if err != nil || page.Next == "" {
			return err
		}
		rest := query
		rest.Continue = page.Next
		more, err := tablestore.ScanAll(ctx, l.store, rest)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
		same, err := l.unmoved(ctx, rows)
		if err == nil && !same {
			return tablestore.ErrConflict
		}
		return err
	})
	return rows, err
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
