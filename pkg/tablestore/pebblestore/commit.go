package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Commit implements [tablestore.Store].
func (s *Store) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	etags, err := s.CommitAll(ctx, []tablestore.Batch{batch}, nil)
	if err != nil {
		return nil, err
	}
	return etags[0], nil
}

// CommitAll implements [tablestore.AtomicStore]. It returns once the write is
// durable. If the caller gives up first, the write goes on. applied is called before the
// log is synced: the log keeps the order of the writes.
func (s *Store) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	began := time.Now()
	etags, err := s.commitAll(ctx, batches, applied)
	took := time.Since(began)
	s.slow.note(took)
	s.observe("commit", took, err)
	return etags, err
}

const (
	// slowCommit is how long a commit takes on a slow disk.
	slowCommit = 2 * time.Second
	// slowFor is how long after such a commit the disk counts as slow.
	slowFor = time.Minute
)

// slowness remembers slow commits.
type slowness struct {
	mu          sync.Mutex // since and last are of the same row of slow commits.
	since, last time.Time  // when the first and the last of them ended
}

// note is told of each commit.
func (s *slowness) note(took time.Duration) {
	if took < slowCommit {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.last) > slowFor {
		s.since = now
	}
	s.last = now
}

// Pace implements [tablestore.Paced]. The commits of a slow disk need no limit: those that wait
// share its next sync.
func (s *Store) Pace() (pace tablestore.Pace) {
	s.slow.mu.Lock()
	defer s.slow.mu.Unlock()
	if time.Since(s.slow.last) <= slowFor {
		pace.Slow = s.slow.since
	}
	return pace
}

func (s *Store) commitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	if err := tablestore.ValidateAll(batches); err != nil {
		return nil, err
	}
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.running.Done()
	if err := s.admitCommit(ctx); err != nil {
		return nil, err
	}
	set := s.stripes.touched(batches)
	if err := lockAll(ctx, set); err != nil {
		return nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	writes, etags, err := tablestore.Fold(batches, s.current, s.nextETag)
	if err == nil {
		var cleared []tablestore.RowWrite
		cleared, err = tablestore.ClearedRows(batches, writes, s.rowsOf)
		writes = append(writes, cleared...)
	}
	if err != nil || len(writes) == 0 {
		// The answer depends on rows that may not be durable yet.
		seen := lasts(set...)
		unlockAll(set)
		if err := s.awaitDurable(ctx, seen); err != nil {
			return nil, err
		}
		if err == nil && applied != nil {
			applied(etags)
		}
		return etags, err
	}
	batch, learned, err := s.batch(writes)
	if err != nil {
		unlockAll(set)
		return nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	for i := range writes {
		s.stripes.of(writes[i].Key.Table, writes[i].Key.Partition).known.written(&writes[i])
	}
	s.space.written.Add(uint64(batch.Len()))
	s.commits.Add(1)
	p := &pending{done: make(chan struct{}), stripes: set, batch: batch}
	p.announce()
	// In a goroutine: the engine blocks while it waits for the disk, even after
	// the caller's context has ended.
	s.running.Add(1)
	go func() {
		p.err = s.db.ApplyNoSyncWait(batch, pebble.Sync)
		if learned != nil {
			learned(p.err)
		}
		for i := range writes {
			if key := writes[i].Key; !writes[i].Removed() {
				s.stripes.of(key.Table, key.Partition).skipper.put(key.Table, key.Partition, key.Row)
			}
		}
		if p.err == nil && applied != nil {
			applied(etags)
		}
		unlockAll(set) // The next writer sees these writes.
		s.applied <- p
	}()

	if err := s.outcome(ctx, p); err != nil {
		return nil, err
	}
	return etags, nil
}

// outcome waits until the write is durable.
func (s *Store) outcome(ctx context.Context, p *pending) error {
	ended, over := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case <-p.done:
			return nil
		case <-ended: // The write continues, and usually ends soon.
			ended, over = nil, time.After(outcomeGrace)
		case <-over:
			return fmt.Errorf("%w: %w", tablestore.ErrUnknown, ctx.Err())
		}
	}
}

// outcomeGrace is how long a commit whose context has ended waits for its outcome, which
// callers would otherwise have to find out by reading.
const outcomeGrace = time.Second

// current returns the ETag of the row as the next write will find it. The lock of the
// row's stripe is held.
func (s *Store) current(key tablestore.Key) (tablestore.ETag, error) {
	rows, err := s.stripes.of(key.Table, key.Partition).known.rows(key, s.isEmpty)
	if err != nil {
		return "", err
	}
	if rows != nil {
		return rows[key.Row], nil
	}
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

// isEmpty reports whether the partition has no row.
func (s *Store) isEmpty(table, partition string) (bool, error) {
	rows, err := s.rowKeys(table, partition, 1)
	return len(rows) == 0, err
}

// rowsOf returns all row keys of the partition as the next write will find them. The lock of
// its stripe is held.
func (s *Store) rowsOf(table, partition string) ([]string, error) {
	return s.rowKeys(table, partition, math.MaxInt)
}

// rowKeys returns the first row keys of the partition.
func (s *Store) rowKeys(table, partition string, limit int) (rows []string, err error) {
	lower, upper := bounds(tablestore.Query{Table: table, Partition: partition}, "")
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, fmt.Errorf("%w: read partition %s/%s: %w", tablestore.ErrUnavailable, table, partition, err)
	}
	for ok := iter.First(); ok && len(rows) < limit; ok = iter.Next() {
		rows = append(rows, string(iter.Key()[len(lower):]))
	}
	if err := errors.Join(iter.Error(), iter.Close()); err != nil {
		return nil, fmt.Errorf("%w: read partition %s/%s: %w", tablestore.ErrUnavailable, table, partition, err)
	}
	return rows, nil
}

func (s *Store) nextETag() tablestore.ETag { return formatETag(s.header.epoch, s.writes.Add(1)) }

// batch returns the writes as a batch of the engine, and the result of [Store.learnNames]
// if their rows spell names.
func (s *Store) batch(writes []tablestore.RowWrite) (batch *pebble.Batch, learned func(error), err error) {
	batch = s.db.NewBatchWithSize(len(writes) * usualRowBytes)
	defer func() {
		if err != nil {
			err = errors.Join(err, batch.Close())
		}
	}()
	names, unknown := s.names.known.Load(), false
	var key, value []byte // Reused: the batch copies them.
	for i := range writes {
		write := &writes[i]
		key = appendKey(key[:0], write.Key)
		if write.Removed() {
			err = batch.Delete(key, nil)
		} else {
			var spelled bool
			value, spelled = appendRow(value[:0], write.ETag, write.Properties, names)
			unknown = unknown || spelled
			err = batch.Set(key, value, nil)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if unknown {
		learned, err = s.learnNames(batch, writes)
	}
	return batch, learned, err
}

// maxUnsynced is how many applied writes can wait for awaitSyncs without
// blocking their writers: more than the engine has in progress.
const maxUnsynced = 1024

// awaitSyncs waits for the syncs of the writes in order. Concurrent writes share
// a sync: it wakes this one goroutine, which then finds the next writes durable
// without waiting. It ends when the channel is closed.
func (s *Store) awaitSyncs() {
	for p := range s.applied {
		err := p.err
		if err == nil {
			err = p.batch.SyncWait()
		}
		if err != nil {
			s.engine.fence.check(fmt.Errorf("write to the log: %w", err))
		}
		_ = p.batch.Close() // It only releases memory.
		p.finish()
		s.running.Done()
	}
}

// awaitDurable waits until these writes are on the disk.
func (s *Store) awaitDurable(ctx context.Context, writes []*pending) error {
	for _, write := range writes {
		select {
		case <-write.done:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, ctx.Err())
		}
	}
	return nil
}

// pending is a write that is applied but may not be on the disk yet.
type pending struct {
	done    chan struct{} // Closed when the write is durable.
	stripes []*stripe
	batch   *pebble.Batch
	err     error // Why the engine did not apply the batch.
}

// announce makes p the last write of its stripes, whose locks are held.
func (p *pending) announce() {
	for _, stripe := range p.stripes {
		stripe.last.Store(p)
	}
}

// finish closes done and removes p from each stripe whose last write it still is.
func (p *pending) finish() {
	close(p.done)
	for _, stripe := range p.stripes {
		stripe.last.CompareAndSwap(p, nil)
	}
}

// stripeCount is the number of stripes: enough that two writers of different
// partitions rarely share one.
const stripeCount = 1024

// stripe serialises the writes of the partitions that hash to it.
type stripe struct {
	order int // Its index.
	// lock holds one token while a writer checks preconditions and applies its
	// batch to memory, but not while the writer waits for the disk. It is a
	// channel so that a waiting writer can stop when its context ends.
	lock chan struct{}
	// last is the latest write of the stripe that is not durable yet, or nil.
	// It is set before any reader can see the write.
	last atomic.Pointer[pending]
	// skipper speeds up scans of the stripe's partitions.
	skipper tombstoneSkipper
	known   knownPartitions // guarded by lock
}

// stripes maps partitions to stripes.
type stripes struct {
	seed maphash.Seed
	all  [stripeCount]*stripe
}

func newStripes() *stripes {
	s := &stripes{seed: maphash.MakeSeed()}
	for i := range s.all {
		s.all[i] = &stripe{order: i, lock: make(chan struct{}, 1)}
	}
	return s
}

func (s *stripes) of(table, partition string) *stripe {
	return s.all[maphash.Comparable(s.seed, [2]string{table, partition})%stripeCount]
}

// touched returns the stripes of the batches, each once, in the order in which
// all writers lock them, so that no two writers deadlock.
func (s *stripes) touched(batches []tablestore.Batch) []*stripe {
	set := make([]*stripe, len(batches))
	for i, batch := range batches {
		set[i] = s.of(batch[0].Key.Table, batch[0].Key.Partition)
	}
	slices.SortFunc(set, func(a, b *stripe) int { return a.order - b.order })
	return slices.Compact(set)
}

// lockAll takes all locks in order. If the context ends first, it releases what it took.
func lockAll(ctx context.Context, set []*stripe) error {
	for i, stripe := range set {
		select {
		case stripe.lock <- struct{}{}:
			continue
		case <-ctx.Done():
			unlockAll(set[:i])
			return ctx.Err()
		}
	}
	return nil
}

func unlockAll(set []*stripe) {
	for _, stripe := range set {
		<-stripe.lock
	}
}

// lasts returns the pending writes of the stripes.
func lasts(set ...*stripe) []*pending {
	var found []*pending
	for _, stripe := range set {
		if p := stripe.last.Load(); p != nil {
			found = append(found, p)
		}
	}
	return found
}
