package tablestore

import "context"

// DiscardAll deletes the rows of the query, whatever they hold, page by page in
// full batches, and leaves out the row of that key. It is for rows that nobody
// writes any more. The error is the store's; calling it again goes on.
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
