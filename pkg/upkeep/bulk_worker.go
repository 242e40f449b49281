package upkeep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
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

// bulkWorker goes on with one operation. Its fields but those under mu are its own
// goroutine's.
type bulkWorker struct {
	*Bulk
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
func (b *Bulk) newWorker(ctx context.Context, op Operation) (*bulkWorker, error) {
	items, _, err := b.service.readItems(ctx, &op, 0, 0)
	if err != nil {
		return nil, err
	}
	w := &bulkWorker{
		Bulk: b, op: op, pace: newPace(op.RatePerSecond), blocked: map[string]time.Time{}, stopped: op.State != OperationRunning,
	}
	for _, item := range items {
		w.counts.add(item.Outcome)
		if item.Outcome == ItemWaiting {
			w.waiting = append(w.waiting, item)
		}
	}
	return w, nil
}

// run goes on until the operation is over, or lost, or the context ends. It
// leaves the lease to others then, if it can.
func (w *bulkWorker) run(ctx context.Context) error {
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

func (w *bulkWorker) over() bool { return w.stopped || len(w.waiting) == 0 }

// pick chooses the items of a turn of about a second, or says how long there
// are none.
func (w *bulkWorker) pick(at time.Time) (turn []*itemRow, wait time.Duration) {
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
func (w *bulkWorker) rerunAll(ctx context.Context, turn []*itemRow) {
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
		if w.tried[item] && item.Outcome == ItemWaiting {
			late = append(late, item)
		}
		return w.tried[item]
	})
	w.waiting = append(w.waiting, late...)
}

// wanted reports whether the item may be tried now.
func (w *bulkWorker) wanted(item *itemRow) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now()
	return !w.stopped && !w.until.After(at) && !w.blocked[item.tenant].After(at)
}

// keep stores what a turn brought, and keeps the lease. Where there is neither
// to be done, it only looks whether the operation is still to be gone on with.
func (w *bulkWorker) keep(ctx context.Context) error {
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
func (w *bulkWorker) save(ctx context.Context, leave bool) error {
	before := w.counts
	if err := w.store(ctx); err != nil {
		return err
	}
	op, err := w.service.move(ctx, w.op.ID, func(op *Operation) (bool, error) {
		if op.owner != w.name {
			return false, errLost
		}
		at := tablestore.Now()
		if w.counts != before {
			op.UpdatedAt = at
		}
		op.Counts = w.counts
		if op.State == OperationRunning && len(w.waiting) == 0 {
			op.State, op.UpdatedAt = OperationDone, at
		}
		op.leaseUntil = at.Add(w.cfg.Lease)
		if leave || op.State != OperationRunning {
			op.owner, op.leaseUntil = "", at
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	w.op, w.stopped = op, op.State != OperationRunning
	return nil
}

// store writes the outcomes under the items' versions: where another runner has
// the operation, they are its own.
func (w *bulkWorker) store(ctx context.Context) error {
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
func (w *bulkWorker) check(ctx context.Context) error {
	op, err := w.service.read(ctx, w.op.ID)
	if err == nil && (op.State != OperationRunning || op.owner != w.name || !time.Now().Before(op.leaseUntil)) {
		return errLost
	}
	return err
}

// attempt tries one item, and notes what became of it.
func (w *bulkWorker) attempt(ctx context.Context, item *itemRow) {
	tenant := item.tenant
	outcome, err := w.rerun(ctx, item.JobID, &tenant)
	w.mu.Lock()
	defer w.mu.Unlock()
	item.tenant = tenant
	w.tried[item] = true
	switch {
	case err == nil:
		item.Item = outcome
		w.fresh = append(w.fresh, item)
	case errors.Is(err, errLost) || errors.Is(err, errNoOperation):
		w.stopped = true
	case errors.Is(err, ledger.ErrTenantLimit):
		w.blocked[tenant] = time.Now().Add(patience)
	default:
		w.until = time.Now().Add(patience)
		if ctx.Err() == nil {
			w.cfg.Logger.WarnContext(ctx, "rerun put off", "retry_id", w.op.ID, "jobId", item.JobID, "error", err)
		}
	}
}

// rerun reruns a job. It returns an error where the job has to wait: that of the
// store, [ledger.ErrTenantLimit], or [errLost] where it is not to be rerun any
// more. It fills in the tenant.
func (w *bulkWorker) rerun(ctx context.Context, jobID string, tenant *string) (Item, error) {
	if err := w.check(ctx); err != nil {
		return Item{}, err
	}
	agg, err := w.service.cfg.Ledger.Job(ctx, jobID)
	if err != nil {
		return w.refused(ctx, jobID, err)
	}
	*tenant = agg.Job.TenantID
	if !w.op.named && agg.Job.State != statemachine.JobFailedFinal {
		detail := fmt.Sprintf("The job is %s, and only failed ones were asked for.", agg.Job.State)
		return Item{JobID: jobID, Outcome: ItemSkipped, Detail: detail}, nil
	}
	accepted, err := w.service.cfg.Ledger.Rerun(ctx, ledger.Rerun{
		JobID: jobID, From: w.op.From, Limit: w.cfg.Limit, Actor: w.op.Actor, RequestID: w.op.ID, Reason: w.op.Reason,
	})
	if err != nil {
		return w.refused(ctx, jobID, err)
	}
	outcome := ItemRerun
	if accepted.Replayed {
		if outcome, err = w.replayed(ctx, accepted.Job.ID); err != nil {
			return Item{}, err
		}
	}
	return Item{JobID: jobID, Outcome: outcome, NewJobID: accepted.Job.ID}, nil
}

// replayed tells whether a rerun that was there already is this operation's own,
// made before a crash: its first entry in the history names the operation.
func (w *bulkWorker) replayed(ctx context.Context, newJobID string) (ItemOutcome, error) {
	entries, _, err := w.service.cfg.Ledger.History(ctx, newJobID, 0, 1)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 && entries[0].RequestID == w.op.ID {
		return ItemRerun, nil
	}
	return ItemRepeated, nil
}

// refused is what becomes of a job that was not rerun: it waits for the tenant
// and for the store, and that is an error; anything else is final.
func (w *bulkWorker) refused(ctx context.Context, jobID string, err error) (Item, error) {
	for _, later := range []error{ledger.ErrTenantLimit, tablestore.ErrUnavailable, tablestore.ErrUnknown, ctx.Err()} {
		if later != nil && errors.Is(err, later) {
			return Item{}, err
		}
	}
	told := problem.From(ledger.Problem(err))
	if told.Code == problem.JobNotFound || told.Code == problem.IllegalTransition {
		return Item{JobID: jobID, Outcome: ItemSkipped, Detail: told.Detail}, nil
	}
	w.cfg.Logger.ErrorContext(ctx, "rerun failed", "retry_id", w.op.ID, "jobId", jobID, "error", err)
	detail := told.Detail
	if told.Code == problem.Internal {
		detail = "The rerun failed for an internal reason, which is in the log."
	}
	return Item{JobID: jobID, Outcome: ItemFailed, Detail: detail}, nil
}

// maxGap bounds the time between two starts, however low the rate.
const maxGap = 24 * time.Hour

// pace lets so many starts a second pass, evenly and without bursts.
type pace struct {
	gap  time.Duration
	next time.Time // the earliest start
}

func newPace(perSecond float64) pace {
	return pace{gap: time.Duration(min(float64(time.Second)/perSecond, float64(maxGap)))}
}

// wait returns when the next start may be, false where the context ended before.
func (p *pace) wait(ctx context.Context) bool {
	sleep(ctx, time.Until(p.next))
	if ctx.Err() != nil {
		return false
	}
	p.next = time.Now().Add(p.gap)
	return true
}

// sleep waits that long, or until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
