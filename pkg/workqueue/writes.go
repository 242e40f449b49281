package workqueue

import (
	"context"
	"fmt"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// writes are the batches that bring a move of an item to the store: the item
// and its history in one, which comes first, and the hint where the move takes
// what was ready.
func (s *Storage) writes(old *stored, change lifecycle.Change) []tablestore.Batch {
	batch := tablestore.Batch{{
		Verb: tablestore.Replace, Key: s.itemKey(old.id), ETag: old.row.ETag,
		Properties: encodeItem(&change.Item, old.row.Properties),
	}}
	batch = append(batch, s.events(old.id, change.Events)...)
	batches := []tablestore.Batch{batch}
	if change.Item.Status != lifecycle.StatusQueued {
		batches = append(batches, s.unhint(&old.item)...)
	}
	return batches
}

// removal are the batches that drop an item from the queue; its history stays.
func (s *Storage) removal(old *stored, change lifecycle.Change) []tablestore.Batch {
	batch := tablestore.Batch{{Verb: tablestore.Delete, Key: s.itemKey(old.id), ETag: old.row.ETag}}
	batch = append(batch, s.events(old.id, change.Events)...)
	return append([]tablestore.Batch{batch}, s.unhint(&old.item)...)
}

// commitEach applies batches one after the other. A lost race is no error:
// somebody else moved the item.
func (s *Storage) commitEach(ctx context.Context, batches []tablestore.Batch) error {
	for _, batch := range batches {
		_, err := s.store.Commit(ctx, batch)
		if _, conflict := tablestore.IsConflict(err); conflict {
			return nil
		}
		if err != nil {
			return fmt.Errorf("move a work item: %w", err)
		}
	}
	return nil
}
