package tablestore

import (
	"context"
)

// ScanAll returns the rows of all pages of the query. The error is the store's.
func ScanAll(ctx context.Context, store Store, query Query) ([]Row, error) {
	var rows []Row
	for {
		page, err := store.Scan(ctx, query)
		if err != nil {
			return nil, err
		}
		if rows == nil {
			rows = page.Rows
		} else {
			rows = append(rows, page.Rows...)
		}
		if query.Continue = page.Next; query.Continue == "" {
			return rows, nil
		}
	}
}

// DiscardAll deletes the query's rows, whatever they hold, page by page in full
// batches, except the row with the key except. No process may still write these
// rows. The error is the store's; another call continues.
func DiscardAll(ctx context.Context, store Store, query Query, except string) error {
	query.Limit = MaxBatchOps
	for {
		page, err := store.Scan(ctx, query)
		if err != nil {
			return err
		}
		var batch Batch
		for i := range page.Rows {
			if key := page.Rows[i].Key; key.Row != except {
				batch = append(batch, Op{Verb: Discard, Key: key})
			}
		}
		if len(batch) > 0 {
			if _, err := store.Commit(ctx, batch); err != nil {
				return err
			}
		}
		if query.Continue = page.Next; query.Continue == "" {
			return nil
		}
	}
}
