package failures

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// beat is how often a worker that waits looks whether it is still wanted.
	beat = time.Second
	// patience is how long it leaves a tenant alone that is at its limit, and all
	// where the store does not answer.
	patience = time.Second
	// leaveTime is what it has for its last writes when the process stops.
	leaveTime = 5 * time.Second
)

// worker goes on with one operation. Its fields but those under mu are its own
// goroutine's.
type worker struct {
	*Runner
	op Operation
	// waiting are the items without an outcome, in the order of their turns.
	waiting []*itemRow
	// counts is the sum of the items that are stored with an outcome.
	counts Counts
	pace   pace

	mu sync.Mutex
	// fresh are items with an outcome that is not stored yet.
	fresh   []*itemRow
	tried   map[*itemRow]bool    // of the turn under way
	blocked map[string]time.Time // tenants at their limit, until then
	until   time.Time            // the store is left alone until then
	stopped bool                 // the operation is not to be gone on with
}

// newWorker returns a worker that knows the operation from its items.
func (r *Runner) newWorker(ctx context.Context, op Operation) (*worker, error) {
	items, _, err := r.service.readItems(ctx, &op, 0, 0)
	if err != nil {
		return nil, err
	}
	w := &worker{
		Runner: r, op: op, pace: newPace(op.RatePerSecond), blocked: map[string]time.Time{}, stopped: op.State != Running,
	}
	for _, item := range items {
		w.counts.add(item.Outcome)
		if item.Outcome == Waiting {
			w.waiting = append(w.waiting, item)
		}
	}
	return w, nil
}

// run goes on until the operation is over, or lost, or the context ends. It
// leaves the lease to others then, if it can.
func (w *worker) run(ctx context.Context) error {
	for !w.over() && ctx.Err() == nil {
		if turn, wait := w.pick(time.Now()); wait > 0 {
			sleep(ctx, min(wait, beat))
		} else {
			w.rerunAll(ctx, turn)
		}
		if w.over() || ctx.Err() != nil {
			break
		}
		if err := w.keep(ctx); err != nil {
			return err
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	return w.save(last, true)
}

func (w *worker) over() bool { return w.stopped || len(w.waiting) == 0 }

// pick chooses the items of a turn of about a second, or says how long there
// are none.
func (w *worker) pick(at time.Time) (turn []*itemRow, wait time.Duration) {
	if wait := w.until.Sub(at); wait > 0 {
		return nil, wait
	}
	if wait := w.pace.next.Sub(at); wait > beat {
		return nil, wait
	}
	size := min(max(int(math.Ceil(w.op.RatePerSecond)), 1), tablestore.MaxBatchOps)
	var soonest time.Time
	for _, item := range w.waiting {
		if until := w.blocked[item.tenant]; until.After(at) {
			if soonest.IsZero() || until.Before(soonest) {
				soonest = until
			}
			continue
		}
		if turn = append(turn, item); len(turn) == size {
			break
		}
	}
	if len(turn) == 0 {
		return nil, soonest.Sub(at)
	}
	return turn, 0
}

// rerunAll tries the items of a turn, some side by side. Those that were tried
// in vain come last from now on, so that none holds up the others.
func (w *worker) rerunAll(ctx context.Context, turn []*itemRow) {
	w.tried = map[*itemRow]bool{}
	var group errgroup.Group
	group.SetLimit(w.cfg.Parallel)
	for _, item := range turn {
		if !w.wanted(item) {
			continue
		}
		if !w.pace.wait(ctx) {
			break
		}
		group.Go(func() error {
			w.attempt(ctx, item)
			return nil
		})
	}
	_ = group.Wait() // Each attempt notes what became of it.
	var late []*itemRow
	w.waiting = slices.DeleteFunc(w.waiting, func(item *itemRow) bool {
		if w.tried[item] && item.Outcome == Waiting {
			late = append(late, item)
		}
		return w.tried[item]
	})
	w.waiting = append(w.waiting, late...)
}

// wanted reports whether the item may be tried now.
func (w *worker) wanted(item *itemRow) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now()
	return !w.stopped && !w.until.After(at) && !w.blocked[item.tenant].After(at)
}

// keep stores what a turn brought, and keeps the lease. Where there is neither
// to be done, it only looks whether the operation is still to be gone on with.
func (w *worker) keep(ctx context.Context) error {
	if len(w.fresh) > 0 || time.Until(w.op.leaseUntil) < w.cfg.Lease/2 {
		return w.save(ctx, false)
	}
	err := w.check(ctx)
	if errors.Is(err, errLost) {
		w.stopped = true
		return nil
	}
	return err
}

// save stores the outcomes, then their sum, and keeps the lease, or with leave
// gives it up. It returns [errLost] where the operation is another runner's.
func (w *worker) save(ctx context.Context, leave bool) error {
	before := w.counts
	if err := w.store(ctx); err != nil {
		return err
	}
	op, err := w.service.move(ctx, w.op.ID, func(op *Operation) (bool, error) {
		if op.owner != w.name {
			return false, errLost
		}
		at := now()
		if w.counts != before {
			op.UpdatedAt = at
		}
		op.Counts = w.counts
		if op.State == Running && len(w.waiting) == 0 {
			op.State, op.UpdatedAt = Done, at
		}
		op.leaseUntil = at.Add(w.cfg.Lease)
		if leave || op.State != Running {
			op.owner, op.leaseUntil = "", at
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	w.op, w.stopped = op, op.State != Running
	return nil
}

// store writes the outcomes under the items' versions: where another runner has
// the operation, they are its own.
func (w *worker) store(ctx context.Context) error {
	for part := range slices.Chunk(w.fresh, tablestore.MaxBatchOps) {
		batch := make(tablestore.Batch, len(part))
		for i, item := range part {
			batch[i] = tablestore.Op{
				Verb: tablestore.Replace, Key: w.service.itemKey(&w.op, item.index), ETag: item.tag, Properties: item.encode(),
			}
		}
		if _, err := w.service.cfg.Store.Commit(ctx, batch); err != nil {
			return fmt.Errorf("write the items of retry operation %s: %w", w.op.ID, err)
		}
		for _, item := range part {
			w.counts.add(item.Outcome)
			w.cfg.Observe(item.Outcome)
		}
	}
	w.fresh = nil
	return nil
}

// check reads whether the operation is still to be gone on with, by this
// runner. It returns [errLost] where not.
func (w *worker) check(ctx context.Context) error {
	op, _, err := w.service.read(ctx, w.op.ID)
	if err == nil && (op.State != Running || op.owner != w.name || !time.Now().Before(op.leaseUntil)) {
		return errLost
	}
	return err
}
