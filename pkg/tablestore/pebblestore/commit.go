package pebblestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/internal/fold"
)

// Commit implements [tablestore.Store].
func (s *Store) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if err := batch.Validate(); err != nil {
		return nil, err
	}
	etags, err := s.write(ctx, []tablestore.Batch{batch})
	if err != nil {
		return nil, err
	}
	return etags[0], nil
}

// CommitAll implements [tablestore.AtomicStore].
func (s *Store) CommitAll(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error) {
	if err := tablestore.ValidateAll(batches); err != nil {
		return nil, err
	}
	return s.write(ctx, batches)
}

// write applies valid batches, all or none, and waits until they are durable.
func (s *Store) write(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	if err := s.space.admit(); err != nil {
		return nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	set := s.stripes.touched(batches)
	if err := lockAll(ctx, set, s.latch); err != nil {
		return nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	writes, etags, err := fold.Fold(batches, fold.Input{Current: s.current, Next: s.nextETag})
	if err != nil || len(writes) == 0 {
		// The answer rests on rows that may not be durable yet.
		seen := lasts(set)
		unlockAll(set)
		if err := s.durable(ctx, seen...); err != nil {
			return nil, err
		}
		return etags, err
	}
	if err := s.submit(ctx, set, writes); err != nil {
		return nil, err
	}
	return etags, nil
}

// submit hands the writes to the engine and waits until they are durable. The
// stripes are locked, and are unlocked as soon as the next writer can see
// these writes. They go on when the caller gives up.
func (s *Store) submit(ctx context.Context, set []*stripe, writes []fold.Write) error {
	batch, err := s.batch(writes)
	if err != nil {
		unlockAll(set)
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	s.space.wrote(batch.Len())
	p := &pending{done: make(chan struct{})}
	announce(set, p)
	// The engine blocks while it waits for the disk, whatever becomes of the
	// caller's context.
	s.running.Go(func() { s.carry(set, p, batch, writes) })

	select {
	case <-p.done:
		if !s.latch.tripped() {
			return nil
		}
		return fmt.Errorf("%w: local store has failed: %w", tablestore.ErrUnknown, s.latch.cause)
	case <-s.latch.failed:
		return fmt.Errorf("%w: local store has failed: %w", tablestore.ErrUnknown, s.latch.cause)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", tablestore.ErrUnknown, ctx.Err())
	}
}

// carry applies the batch to memory and to the log, unlocks the stripes, and
// waits for the sync, which it shares with all writes of the moment.
func (s *Store) carry(set []*stripe, p *pending, batch *pebble.Batch, writes []fold.Write) {
	err := s.db.ApplyNoSyncWait(batch, pebble.Sync)
	s.cutGaps(writes)
	unlockAll(set)
	if err == nil {
		err = batch.SyncWait()
	}
	if err != nil {
		s.latch.trip(fmt.Errorf("write to the log: %w", err))
	} else {
		_ = batch.Close() // It only gives memory back.
	}
	settle(set, p)
}

// cutGaps tells scans about the rows that are visible now.
func (s *Store) cutGaps(writes []fold.Write) {
	for i := range writes {
		if key := writes[i].Key; !writes[i].Removed() {
			s.stripes.of(key.Table, key.Partition).heads.put(key.Table, key.Partition, key.Row)
		}
	}
}

// batch returns the writes as the engine takes them.
func (s *Store) batch(writes []fold.Write) (*pebble.Batch, error) {
	batch := s.db.NewBatch()
	for i := range writes {
		write := &writes[i]
		var err error
		if write.Removed() {
			err = batch.Delete(storedKey(write.Key), nil)
		} else {
			err = batch.Set(storedKey(write.Key), encodeRow(write.ETag, write.Properties), nil)
		}
		if err != nil {
			return nil, errors.Join(err, batch.Close())
		}
	}
	return batch, nil
}

// current returns the ETag of the row as the next write will find it.
func (s *Store) current(key tablestore.Key) (tablestore.ETag, error) {
	data, closer, err := s.lookUp(key)
	if err != nil || closer == nil {
		return "", err
	}
	etag, _, err := splitRow(data)
	found := tablestore.ETag(etag)
	if err = errors.Join(err, closer.Close()); err != nil {
		return "", fmt.Errorf("row %s: %w", key, err)
	}
	return found, nil
}

func (s *Store) nextETag() tablestore.ETag { return formatETag(s.epoch, s.writes.Add(1)) }
