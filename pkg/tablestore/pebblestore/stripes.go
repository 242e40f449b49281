package pebblestore

import (
	"context"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// stripeCount is the number of stripes: enough that two writers of different
// partitions rarely share one.
const stripeCount = 1024

// stripe serialises the writes of the partitions that hash to it.
type stripe struct {
	// lock holds one token while a writer checks preconditions and applies its
	// batch to memory, but not while the writer waits for the disk. It is a
	// channel so that a waiting writer can stop when its context ends.
	lock chan struct{}
	// last is the latest write of the stripe that is not durable yet, or nil.
	// It is set before any reader can see the write.
	last atomic.Pointer[pending]
	// skipper speeds up scans of the stripe's partitions.
	skipper tombstoneSkipper
}

// pending is a write on its way to the disk.
type pending struct {
	// done is closed when the write is durable, or the store has failed.
	done chan struct{}
}

// stripes maps partitions to stripes.
type stripes struct {
	seed maphash.Seed
	all  [stripeCount]stripe
}

func newStripes() *stripes {
	s := &stripes{seed: maphash.MakeSeed()}
	for i := range s.all {
		s.all[i].lock = make(chan struct{}, 1)
	}
	return s
}

func (s *stripes) index(table, partition string) int {
	var hash maphash.Hash
	hash.SetSeed(s.seed)
	_, _ = hash.WriteString(table)
	_ = hash.WriteByte(divider)
	_, _ = hash.WriteString(partition)
	return int(hash.Sum64() % stripeCount)
}

func (s *stripes) of(table, partition string) *stripe { return &s.all[s.index(table, partition)] }

// touched returns the stripes of the batches, each once, in the order in which
// all writers lock them, so that no two writers deadlock.
func (s *stripes) touched(batches []tablestore.Batch) []*stripe {
	var indexes []int
	for _, batch := range batches {
		indexes = append(indexes, s.index(batch[0].Key.Table, batch[0].Key.Partition))
	}
	slices.Sort(indexes)
	indexes = slices.Compact(indexes)
	found := make([]*stripe, len(indexes))
	for i, index := range indexes {
		found[i] = &s.all[index]
	}
	return found
}

// lockAll takes all locks in order. If the context ends or the store fails
// first, it releases what it took and returns the reason.
func lockAll(ctx context.Context, set []*stripe, latch *latch) error {
	for i, stripe := range set {
		select {
		case stripe.lock <- struct{}{}:
			continue
		case <-ctx.Done():
			unlockAll(set[:i])
			return ctx.Err()
		case <-latch.failed:
			unlockAll(set[:i])
			return latch.cause
		}
	}
	return nil
}

func unlockAll(set []*stripe) {
	for _, stripe := range set {
		<-stripe.lock
	}
}

// announce makes p the last write of all stripes, whose locks are held.
func announce(set []*stripe, p *pending) {
	for _, stripe := range set {
		stripe.last.Store(p)
	}
}

// settle marks p done and removes it from each stripe whose last write it still
// is.
func settle(set []*stripe, p *pending) {
	close(p.done)
	for _, stripe := range set {
		stripe.last.CompareAndSwap(p, nil)
	}
}

// lasts returns the pending writes of the stripes.
func lasts(set []*stripe) []*pending {
	var found []*pending
	for _, stripe := range set {
		if p := stripe.last.Load(); p != nil {
			found = append(found, p)
		}
	}
	return found
}
