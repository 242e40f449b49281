package workqueue

import (
	"context"
	"fmt"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Forget removes the items of a job that is purged, with their directives and
// history. Such a job has ended, so none of them is ready.
func (s *Storage) Forget(ctx context.Context, jobID string) error {
	partition := tablestore.Query{Table: s.table, Partition: tablestore.Escape(jobID)}
	if err := tablestore.DiscardAll(ctx, s.store, partition, ""); err != nil {
		return fmt.Errorf("forget the work items of job %s: %w", jobID, err)
	}
	return nil
}
