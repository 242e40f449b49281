package sim

import (
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// disk models the disk of the embedded store, which applies each write at once and syncs it
// later, in the order of the writes. As in the store, a reply that reveals a write waits until
// that write is synced. Only the driver uses it. A nil disk syncs at once.
//
//	invariant: the checker's rows are those of the synced writes
type disk struct {
	w    *world
	lag  time.Duration // the longest time until a write is synced
	tail memstore.Tail
	// unsynced are the writes of the tail.
	//
	//	invariant: unsynced[i] has the position synced+i+1
	unsynced []diskWrite
	synced   int
	failed   bool // the disk rejects writes until the process restarts
}

// diskWrite is a write that was applied but not synced.
type diskWrite struct {
	due     time.Time // when it is synced
	batches []tablestore.Batch
	check   func() // passes the write to the checker
}

func newDisk(w *world, lag time.Duration) *disk { return &disk{w: w, lag: lag} }

// write records a write that the store has applied, and returns its position.
func (d *disk) write(batches []tablestore.Batch, check func()) int {
	if d == nil {
		check()
		return 0
	}
	due := time.Now()
	if d.lag > 0 && d.w.faulty {
		due = due.Add(d.w.logUniform(time.Millisecond, d.lag))
	}
	if last := len(d.unsynced) - 1; last >= 0 {
		due = later(due, d.unsynced[last].due)
	}
	d.unsynced = append(d.unsynced, diskWrite{due, batches, check})
	position := d.synced + len(d.unsynced)
	d.sync(false)
	return position
}

// sync syncs the writes that are due, or all.
func (d *disk) sync(all bool) {
	if d == nil {
		return
	}
	now := time.Now()
	for len(d.unsynced) > 0 && (all || !d.unsynced[0].due.After(now)) {
		d.keep(1)
	}
}

// keep syncs the oldest n writes.
func (d *disk) keep(n int) {
	d.tail.Sync(n)
	for range n {
		check := d.unsynced[0].check
		d.unsynced = slices.Delete(d.unsynced, 0, 1)
		d.synced++
		check()
	}
}

// fail makes the disk fail: it loses writes as in a crash, but the process continues.
func (d *disk) fail() {
	d.crash()
	d.failed = true
}

// crash loses a random number of the last unsynced writes: none, as if only the process had
// crashed, up to all.
func (d *disk) crash() {
	d.keep(d.w.rng.IntN(len(d.unsynced) + 1))
	d.w.faults[Undone] += len(d.unsynced)
	d.tail.Lose()
	d.unsynced, d.failed = nil, false
}

// next returns when the next write is synced, or the zero time if there is none.
func (d *disk) next() time.Time {
	if d == nil || len(d.unsynced) == 0 {
		return time.Time{}
	}
	return d.unsynced[0].due
}

// durable reports whether the write at the position is synced.
func (d *disk) durable(position int) bool { return d == nil || position <= d.synced }

// mayYetSync reports whether the write at the position is not synced but may be later.
func (d *disk) mayYetSync(position int) bool { return !d.durable(position) && !d.failed }

// last returns the position of the last unsynced write to the partition, 0 if there is none.
func (d *disk) last(table, partition string) int {
	if d == nil {
		return 0
	}
	for i, write := range slices.Backward(d.unsynced) {
		if slices.ContainsFunc(write.batches, func(batch tablestore.Batch) bool {
			return batch[0].Key.Table == table && batch[0].Key.Partition == partition
		}) {
			return d.synced + i + 1
		}
	}
	return 0
}

// lastOf returns the position of the last unsynced write to the partitions of the batches.
func (d *disk) lastOf(batches ...tablestore.Batch) int {
	position := 0
	for _, batch := range batches {
		position = max(position, d.last(batch[0].Key.Table, batch[0].Key.Partition))
	}
	return position
}
