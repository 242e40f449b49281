package background

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	bulkLease     = 30 * time.Second   // how long a runner owns an operation without renewing its lease
	bulkParallel  = 4                  // jobs of one operation that are changed concurrently
	keepOperation = 7 * 24 * time.Hour // how long an operation is kept after its end
	draftAge      = time.Hour          // no create takes this long, so an older draft is a leftover
	checkInterval = time.Second        // how often an idle worker checks that it still owns its operation
	retryDelay    = time.Second        // the wait after a store error, and for a tenant at its limit
	lastSave      = 5 * time.Second    // bounds the save with which a worker gives up its lease
	historyPage   = 100
	maxIdle       = 3 * time.Second // a worker that would be idle for longer frees its slot
)

// BulkConfig configures a [Bulk].
type BulkConfig struct {
	// Operations stores the operations. Required.
	Operations *Operations
	// Parallel is the most operations that this process works on at a time. Optional.
	// Defaults to 8.
	Parallel int
	// Logger logs interrupted operations, and jobs that could not be changed. Optional.
	Logger *slog.Logger
	// Observe is called with each outcome after it has been stored. Optional. It must be
	// safe for concurrent use.
	Observe func(Kind, ItemOutcome)
}

// Bulk works on the operations that [Operations] stores. Any number may run on one store.
//
//	operator ── Create ──► draft ──► items ──► HEAD (RUNNING)          Get, Cancel
//	                                            ▲
//	                     Bulk: lease by CAS ────┘ each second
//	                       │
//	                       └─ item by item, at rate_per_second ──► ledger.Rerun or Change
//	                              outcome ──► item, then the sum ──► HEAD
//
// One process at a time works on an operation: it takes a lease on the HEAD by CAS. The
// items alone say what is left to do; their outcomes are written before the HEAD's sum. A
// worker never retries a failed write: it stops working on the operation, and the next
// pass starts again from the rows. That is safe because [ledger.Ledger.Rerun] makes one
// job for each job and starting point, however often it is called, and because the history
// of a changed job, or of a rerun, names the operation as its request id. So an operation
// recognises its own work after a crash, and does not pause a job again that was resumed
// in the meantime.
//
// A worker frees its slot for other operations if its next job is more than a few seconds
// away, or if no job got an outcome for that long. The HEAD then has no owner, and its
// lease says when the work continues.
//
// The worker reads the HEAD before each item, so once Cancel has returned, no job is
// started; those being changed at that moment are finished. A tenant at its limit of jobs
// in flight is skipped for a second while the other tenants' jobs go on. If the store is
// unavailable, the job waits.
type Bulk struct {
	cfg  BulkConfig
	name string // the owner of this runner's leases

	mu   sync.Mutex
	busy map[string]bool // the operations that this runner works on
}

// NewBulk returns a runner. The error names the invalid field.
func NewBulk(cfg BulkConfig) (*Bulk, error) {
	if cfg.Operations == nil {
		return nil, errors.New("bulk: Operations is required")
	}
	cfg.Parallel = cmp.Or(cfg.Parallel, 8)
	if cfg.Parallel < 0 {
		return nil, errors.New("bulk: Parallel must not be negative")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(Kind, ItemOutcome) {}
	}
	name, err := cfg.Operations.cfg.Ledger.NewJobID()
	if err != nil {
		return nil, fmt.Errorf("bulk: name the runner: %w", err)
	}
	return &Bulk{cfg: cfg, name: name, busy: map[string]bool{}}, nil
}

// Loop returns the loop that starts the work on operations. Its passes do not wait for
// that work; Run does before it returns.
func (b *Bulk) Loop() Loop {
	var work sync.WaitGroup
	return Loop{Name: "bulk", Drain: work.Wait, Pass: func(ctx context.Context) error {
		_, err := b.begin(ctx, &work)
		return err
	}}
}

// RunOnce works on the operations that no other runner owns, each until it is done, its
// worker frees its slot or loses the lease, or the context ends. An error of one operation
// is logged, and the next pass tries again; RunOnce returns only an error of reading the
// operations.
func (b *Bulk) RunOnce(ctx context.Context) (Pass, error) {
	var work sync.WaitGroup
	defer work.Wait()
	return b.begin(ctx, &work)
}

// begin starts a worker for each operation that is free, and removes old operations.
func (b *Bulk) begin(ctx context.Context, work *sync.WaitGroup) (Pass, error) {
	var pass Pass
	query := tablestore.Query{Table: b.cfg.Operations.cfg.Table, Partition: operationsPartition}
	rows, err := tablestore.ScanAll(ctx, b.cfg.Operations.cfg.Store, query)
	if err != nil {
		return pass, fmt.Errorf("read the operations: %w", err)
	}
	for i := range rows {
		op, err := decodeOperation(&rows[i])
		at := tablestore.Now()
		switch {
		case err != nil:
		case op.State == operationDraft && at.Sub(op.CreatedAt) > draftAge,
			op.over() && at.Sub(op.UpdatedAt) > keepOperation:
			pass.Removed++
			err = b.cfg.Operations.discard(ctx, &op, rows[i].Key)
		case op.State != operationDraft && !op.over() && op.free(b.name, at) && b.reserve(op.ID):
			pass.Done++
			work.Go(func() {
				err := b.work(ctx, op.ID)
				lost := errors.Is(err, errLost) || errors.Is(err, errNoOperation)
				if err != nil && !lost && ctx.Err() == nil {
					b.cfg.Logger.WarnContext(ctx, "operation interrupted", "operation_id", op.ID, "error", err)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				delete(b.busy, op.ID)
			})
		}
		if err != nil {
			b.cfg.Logger.WarnContext(ctx, "operation not handled", "row", rows[i].Key.Row, "error", err)
		}
	}
	return pass, nil
}

// over reports whether nothing is left to do. The owner of a cancelled operation still has
// to store the sum of its items.
func (o *Operation) over() bool {
	return (o.State == OperationDone || o.State == OperationCancelled) && o.owner == ""
}

// free reports whether the named runner may take the lease.
func (o *Operation) free(name string, now time.Time) bool {
	return o.owner == name || !now.Before(o.leaseUntil)
}

// reserve takes a slot for the operation. It reports false if this runner already works on
// the operation or has no free slot.
func (b *Bulk) reserve(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[id] || len(b.busy) == b.cfg.Parallel {
		return false
	}
	b.busy[id] = true
	return true
}

// errLost is returned if another runner owns the operation, or it is over.
var errLost = errors.New("the runner no longer owns the operation")

// bulkWorker works on one operation. mu guards the fields below it; only the worker's own
// goroutine uses the others.
type bulkWorker struct {
	*Bulk
	op      Operation
	resumed bool       // a worker of this or another process had it before
	waiting []*itemRow // without an outcome, in the order of their turns
	counts  Counts     // the sum of the stored outcomes
	gap     time.Duration
	next    time.Time     // the earliest start of the next job: gap after the last one
	pause   time.Duration // until the work continues, if the worker frees its slot

	mu      sync.Mutex
	fresh   []*itemRow           // items with an outcome that is not stored yet
	blocked map[string]time.Time // tenant → when it is tried again, after reaching its limit
	until   time.Time            // no job is tried before, after a store error
	worked  time.Time            // when a job last got an outcome
	stopped bool                 // the operation is over, or another runner owns it
}

// work takes the lease on an operation and processes the items that have no outcome.
func (b *Bulk) work(ctx context.Context, id string) error {
	resumed := false
	op, err := b.cfg.Operations.update(ctx, id, func(op *Operation) (bool, error) {
		at := tablestore.Now()
		resumed = !op.leaseUntil.Equal(op.CreatedAt)
		if op.over() || !op.free(b.name, at) {
			return false, errLost
		}
		op.owner, op.leaseUntil = b.name, at.Add(bulkLease)
		return true, nil
	})
	if err != nil {
		return err
	}
	rows, err := tablestore.ScanAll(ctx, b.cfg.Operations.cfg.Store, b.cfg.Operations.itemQuery(&op, 0))
	if err != nil {
		return fmt.Errorf("read the items of operation %s: %w", id, err)
	}
	w := &bulkWorker{
		Bulk: b, op: op, resumed: resumed, gap: time.Duration(float64(time.Second) / op.RatePerSecond),
		blocked: map[string]time.Time{}, worked: time.Now(), stopped: op.State != OperationRunning,
	}
	for i := range rows {
		item := decodeItem(&rows[i])
		w.counts.add(item.Outcome)
		if item.Outcome == ItemWaiting {
			w.waiting = append(w.waiting, item)
		}
	}
	return w.run(ctx)
}

// run processes items until the operation is over, the lease is lost, the worker would be
// idle for too long, or the context ends. Then it tries to give up the lease.
func (w *bulkWorker) run(ctx context.Context) error {
	for !w.over() && ctx.Err() == nil {
		turn, wait := w.pick(time.Now())
		if time.Since(w.worked) > maxIdle+w.gap {
			wait = max(wait, 2*maxIdle) // No progress: the tenants are at their limits, or the store fails.
		}
		if w.pause = wait; wait > maxIdle {
			break
		}
		if w.pause = 0; wait > 0 {
			sleep(ctx, min(wait, checkInterval))
		} else {
			w.changeAll(ctx, turn)
		}
		if w.over() || ctx.Err() != nil {
			break
		}
		if len(w.fresh) > 0 || time.Until(w.op.leaseUntil) < bulkLease/2 {
			if err := w.save(ctx, false); err != nil {
				return err
			}
			continue
		}
		err := w.check(ctx)
		if w.stopped = errors.Is(err, errLost); err != nil && !w.stopped {
			return err
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
	defer cancel()
	return w.save(last, true)
}

func (w *bulkWorker) over() bool { return w.stopped || len(w.waiting) == 0 }

// pick returns items for about a second of work, or how long to wait if none can be tried
// now.
func (w *bulkWorker) pick(at time.Time) (turn []*itemRow, wait time.Duration) {
	if wait := w.until.Sub(at); wait > 0 {
		return nil, wait
	}
	if wait := w.next.Sub(at); wait > checkInterval {
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

// changeAll tries the picked items at the operation's rate, some concurrently. Items that
// get no outcome move to the end of the queue, so that they hold up no others.
func (w *bulkWorker) changeAll(ctx context.Context, turn []*itemRow) {
	tried := map[*itemRow]bool{}
	var group errgroup.Group
	group.SetLimit(bulkParallel)
	for _, item := range turn {
		w.mu.Lock()
		at := time.Now()
		ready := !w.stopped && !w.until.After(at) && !w.blocked[item.tenant].After(at)
		w.mu.Unlock()
		if !ready {
			continue
		}
		if sleep(ctx, time.Until(w.next)); ctx.Err() != nil {
			break
		}
		w.next = time.Now().Add(w.gap)
		tried[item] = true
		group.Go(func() error {
			w.note(ctx, item, w.apply(ctx, item))
			return nil
		})
	}
	_ = group.Wait() // note handles the errors.
	var late []*itemRow
	w.waiting = slices.DeleteFunc(w.waiting, func(item *itemRow) bool {
		if tried[item] && item.Outcome == ItemWaiting {
			late = append(late, item)
		}
		return tried[item]
	})
	w.waiting = append(w.waiting, late...)
}

// note records that an item got its outcome or, for an error, what must wait: the tenant,
// or all items.
func (w *bulkWorker) note(ctx context.Context, item *itemRow, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.fresh, w.worked = append(w.fresh, item), time.Now()
	case errors.Is(err, errLost) || errors.Is(err, errNoOperation):
		w.stopped = true
	case errors.Is(err, ledger.ErrTenantLimit):
		w.blocked[item.tenant] = time.Now().Add(retryDelay)
	default:
		w.until = time.Now().Add(retryDelay)
		if ctx.Err() == nil {
			w.cfg.Logger.WarnContext(ctx, "job of an operation deferred", item.fields().With("operation_id", w.op.ID, "error", err)...)
		}
	}
}

// check returns [errLost] unless the operation is running and this runner has the lease.
func (w *bulkWorker) check(ctx context.Context) error {
	op, err := w.cfg.Operations.read(ctx, w.op.ID)
	if err == nil && (op.State != OperationRunning || op.owner != w.name || !time.Now().Before(op.leaseUntil)) {
		return errLost
	}
	return err
}

// save stores the outcomes under the items' ETags, which fails if another runner has
// changed them. Then it stores their sum, and renews the lease or gives it up. It returns
// [errLost] if another runner owns the operation.
func (w *bulkWorker) save(ctx context.Context, leave bool) error {
	before := w.counts
	for part := range slices.Chunk(w.fresh, tablestore.MaxBatchOps) {
		if err := w.cfg.Operations.writeItems(ctx, &w.op, part, tablestore.Replace); err != nil {
			return err
		}
		for _, item := range part {
			w.counts.add(item.Outcome)
			w.cfg.Observe(w.op.Kind, item.Outcome)
		}
	}
	w.fresh = nil
	op, err := w.cfg.Operations.update(ctx, w.op.ID, func(op *Operation) (bool, error) {
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
		op.leaseUntil = at.Add(bulkLease)
		if leave || op.State != OperationRunning {
			op.owner, op.leaseUntil = "", at.Add(w.pause)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	w.op, w.stopped = op, op.State != OperationRunning
	return nil
}

// sleep waits for d, or until the context ends.
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
