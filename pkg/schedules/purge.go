package schedules

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// partitionDeleted lists the deleted schedules, oldest first, until their rows are deleted.
	partitionDeleted = "deleted"
	// mostPurged is how many schedules a round purges at most.
	mostPurged = 32
)

// deletedRow is a row of the list of deleted schedules. Its key begins with the time.
type deletedRow struct {
	ID string `column:"schedule_id"`
}

var deletedCodec = tablestore.NewCodec[deletedRow]()

// listDeleted returns the write that puts the schedule into the list. It comes before HEAD:
//
//	invariant: HEAD is deleted ⇒ the schedule is listed
func (s *Service) listDeleted(sc *stored) tablestore.Op {
	return tablestore.Op{
		Verb: tablestore.Put,
		Key: tablestore.Key{
			Table: s.table, Partition: partitionDeleted, Row: tablestore.Join(tablestore.Pad(sc.UpdatedAt.UnixMilli(), 13), sc.id),
		},
		Properties: deletedCodec.Encode(&deletedRow{ID: sc.id}, nil),
	}
}

// purgeDeleted deletes the rows of schedules that were deleted longer than keepFor ago. Until then a stalled process or the end of a
// backfill may read them. A schedule whose rows cannot be read is skipped, and its error is returned.
func (s *Service) purgeDeleted(ctx context.Context) (bad error) {
	page, err := s.cfg.Store.Scan(ctx, tablestore.Query{
		Table: s.table, Partition: partitionDeleted, To: tablestore.Pad(s.cfg.Now().Add(-keepFor).UnixMilli(), 13), Limit: mostPurged,
	})
	if err != nil {
		return fmt.Errorf("list the deleted schedules: %w", err)
	}
	for i := range page.Rows {
		var row deletedRow
		err := deletedCodec.Decode(&page.Rows[i], &row)
		if err == nil {
			err = s.purge(ctx, row.ID)
		}
		if err == nil {
			_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: page.Rows[i].Key}})
		}
		switch {
		case errors.Is(err, tablestore.ErrUnavailable), ctx.Err() != nil:
			return fmt.Errorf("purge a deleted schedule: %w", err)
		case err != nil && !errors.Is(err, tablestore.ErrConflict): // After a conflict, another process does it, or the next round.
			bad = errors.Join(bad, fmt.Errorf("purge a deleted schedule: %w", err))
		}
	}
	return bad
}

// purge deletes the rows of a schedule, HEAD last, unless the deletion that listed it has failed: then it may be deleted later,
// which lists it again.
func (s *Service) purge(ctx context.Context, id string) error {
	sc, err := s.loadHead(ctx, id)
	if errors.Is(err, ErrNotFound) || err == nil && (sc.State != Deleted || sc.UpdatedAt.After(s.cfg.Now().Add(-keepFor))) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := tablestore.DiscardAll(ctx, s.cfg.Store, tablestore.Query{Table: s.table, Partition: id}, rowHead); err != nil {
		return err
	}
	_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: sc.asRead.Key, ETag: sc.asRead.ETag}})
	return err
}
