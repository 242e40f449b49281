package pebblestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Commit implements [tablestore.Store].
func (s *Store) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	etags, err := s.CommitAll(ctx, []tablestore.Batch{batch})
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

// write applies all valid batches or none, and waits until they are durable.
func (s *Store) write(ctx context.Context, batches []tablestore.Batch) ([][]tablestore.ETag, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.running.Done()
	if err := s.Writable(); err != nil {
		return nil, err
	}
	set := s.stripes.touched(batches)
	if err := lockAll(ctx, set, s.latch); err != nil {
		return nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	writes, etags, err := tablestore.Fold(batches, s.current, s.nextETag)
	if err != nil || len(writes) == 0 {
		// The answer depends on rows that may not be durable yet.
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

// submit passes the writes to the engine and waits until they are durable. The
// caller holds the stripes' locks; they are released as soon as the next writer
// can see these writes. The writes go on if the caller gives up.
func (s *Store) submit(ctx context.Context, set []*stripe, writes []tablestore.RowWrite) error {
	batch, err := s.batch(writes)
	if err != nil {
		unlockAll(set)
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	s.space.wrote(batch.Len())
	p := &pending{done: make(chan struct{})}
	announce(set, p)
	// The engine blocks while it waits for the disk, even after the caller's
	// context has ended.
	s.running.Add(1)
	go s.carry(set, p, batch, writes)

	select {
	case <-p.done:
		if !s.latch.tripped() {
			return nil
		}
		return fmt.Errorf("%w: %w", tablestore.ErrUnknown, s.latch.failure())
	case <-s.latch.failed:
		return fmt.Errorf("%w: %w", tablestore.ErrUnknown, s.latch.failure())
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", tablestore.ErrUnknown, ctx.Err())
	}
}

// carry applies the batch to memory and appends it to the log, unlocks the
// stripes, and passes the write to settleAll, which waits for the sync.
func (s *Store) carry(set []*stripe, p *pending, batch *pebble.Batch, writes []tablestore.RowWrite) {
	err := s.db.ApplyNoSyncWait(batch, pebble.Sync)
	s.cutGaps(writes)
	unlockAll(set)
	s.applied <- applied{set: set, pending: p, batch: batch, err: err}
}

// applied is a write that waits for its sync.
type applied struct {
	set     []*stripe
	pending *pending
	batch   *pebble.Batch
	err     error
}

// settleAll waits for the syncs of the writes in order. Concurrent writes share
// a sync: it wakes this one goroutine, which then finds the next writes durable
// without waiting. It ends when the channel is closed.
func (s *Store) settleAll() {
	for write := range s.applied {
		err := write.err
		if err == nil {
			err = write.batch.SyncWait()
		}
		if err != nil {
			s.latch.trip(fmt.Errorf("write to the log: %w", err))
		} else {
			_ = write.batch.Close() // It only releases memory.
		}
		settle(write.set, write.pending)
		s.running.Done()
	}
}

// cutGaps tells the skippers about rows that have become visible.
func (s *Store) cutGaps(writes []tablestore.RowWrite) {
	for i := range writes {
		if key := writes[i].Key; !writes[i].Removed() {
			s.stripes.of(key.Table, key.Partition).skipper.put(key.Table, key.Partition, key.Row)
		}
	}
}

// batch returns the writes as a batch of the engine.
func (s *Store) batch(writes []tablestore.RowWrite) (*pebble.Batch, error) {
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

func (s *Store) nextETag() tablestore.ETag { return formatETag(s.header.epoch, s.writes.Add(1)) }
