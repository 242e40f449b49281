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
	"golang.org/x/time/rate"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	bulkLease     = 30 * time.Second   // how long a runner owns an operation without renewing its lease
	bulkParallel  = 4                  // jobs of one operation that are changed concurrently
	keepOperation = 7 * 24 * time.Hour // how long an operation is kept after its end
	draftAge      = time.Hour          // no create takes this long, so an older draft is a leftover
	retryDelay    = time.Second        // the wait after a store error, and for a tenant at its limit
	lastSave      = 5 * time.Second    // bounds the save with which a worker gives up its lease
	historyPage   = 100
	maxIdle       = 3 * time.Second // a worker that would be idle for longer frees its permit
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
//	operator ── Create ──► items ──► HEAD (RUNNING) and entry          Get, Cancel
//	                                       ▲
//	           Bulk: due entry, lease ─────┘ each second
//	             │
//	             └─ item by item, at rate_per_second ──► commands.Rerun or ledger.Change
//	                    outcome ──► item, then the sum ──► HEAD
//
// One process at a time works on an operation: it takes a lease by moving the entry to the
// lease's end, under the HEAD's ETag. The items alone say what is left to do; their outcomes
// are written before the HEAD's sum. A worker never retries a failed write: it stops working on
// the operation, and the next one starts again from the rows. That is safe because
// [commands.Service.Rerun] makes one job for each job, starting point and set of corrections,
// however often it is called, and because the history of a changed job, or of a rerun, names the operation as its
// request id. So an operation recognises its own work after a crash, and does not pause a job
// again that was resumed in the meantime.
//
// A worker frees its permit for other operations if its next job is more than a few seconds
// away, or if no job got an outcome for that long. The entry then says when the work continues.
//
// The worker reads the HEAD before each item, so once Cancel has returned, no job is
// started; those being changed at that moment are finished. A tenant at its limit of jobs
// in flight is skipped for a second while the other tenants' jobs go on. If the store is
// unavailable, the job waits; in a retry of named jobs, so do those after it in its line.
type Bulk struct {
	cfg     BulkConfig
	walk    ledger.Walker
	permits chan struct{} // one for each operation that this runner works on
}

// NewBulk returns a runner.
func NewBulk(cfg BulkConfig) *Bulk {
	cfg.Parallel = cmp.Or(cfg.Parallel, 8)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(Kind, ItemOutcome) {}
	}
	return &Bulk{
		cfg: cfg, permits: make(chan struct{}, cfg.Parallel), walk: ledger.Walker{Schedule: cfg.Operations, Kind: "operation"},
	}
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

// RunOnce works on the operations that are due, each until it is done, its worker frees its
// permit or loses the lease, or the context ends. An error of one operation is logged, and the
// next pass tries again; RunOnce returns only an error of reading the schedule.
func (b *Bulk) RunOnce(ctx context.Context) (Pass, error) {
	var work sync.WaitGroup
	defer work.Wait()
	return b.begin(ctx, &work)
}

// begin fires the due entries.
func (b *Bulk) begin(ctx context.Context, work *sync.WaitGroup) (Pass, error) {
	var pass Pass
	err := b.walk.Pass(ctx, func() int { return b.cfg.Parallel - len(b.permits) }, func(entries []ledger.Entry) bool {
		for _, entry := range entries {
			if err := b.fire(ctx, &entry, &pass, work); err != nil && !lost(err) {
				b.cfg.Logger.WarnContext(ctx, "operation not handled", "operation_id", entry.JobID, "error", err)
			}
		}
		return true
	})
	return pass, err
}

// errLost is returned if another runner owns the operation, or it is over.
var errLost = errors.New("the runner no longer owns the operation")

// lost reports whether an operation is left to others.
func lost(err error) bool { return errors.Is(err, errLost) || errors.Is(err, errNoOperation) }

// fire removes the operation of an entry, or takes the lease and starts a worker. The worker of
// an operation that was cancelled only stores the sum of its items.
func (b *Bulk) fire(ctx context.Context, entry *ledger.Entry, pass *Pass, work *sync.WaitGroup) error {
	at, old := tablestore.Now(), false
	op, head, err := b.cfg.Operations.update(ctx, entry.JobID, func(op *Operation) (bool, error) {
		if op.Set != entry.Nonce {
			return false, errNoOperation
		}
		if !op.Due.Equal(entry.Due) {
			return false, errLost
		}
		old = op.State != OperationRunning && at.Sub(op.UpdatedAt) >= keepOperation
		op.Due = at.Add(bulkLease)
		return !old, nil
	})
	switch {
	case old:
	case errors.Is(err, errNoOperation):
		head = "" // None, or that of other items.
	case err != nil:
		return err
	default:
		if op.State == OperationRunning {
			pass.Done++
		}
		b.permits <- struct{}{}
		work.Go(func() {
			defer func() { <-b.permits }()
			if err := b.work(ctx, op); err != nil && !lost(err) && ctx.Err() == nil {
				b.cfg.Logger.WarnContext(ctx, "operation interrupted", "operation_id", op.ID, "error", err)
			}
		})
		return nil
	}
	pass.Removed++
	due := b.cfg.Operations.entryKey(entry.Due, entry.JobID, entry.Nonce)
	return b.cfg.Operations.discard(ctx, entry.JobID, entry.Nonce, due, head)
}

// bulkWorker works on one operation. mu guards the fields below it; only the worker's own
// goroutine uses the others.
type bulkWorker struct {
	*Bulk
	op      Operation
	waiting []*itemRow // without an outcome, in the order of their turns
	counts  Counts     // the sum of the stored outcomes
	pace    *rate.Limiter
	inOrder bool      // reruns of a line's jobs are made in the order of the items: a retry of named jobs
	began   time.Time // when the turn began: what waits then waits for the whole turn

	mu      sync.Mutex           // Guards all below. Not held while a job is changed.
	fresh   []*itemRow           // items with an outcome that is not stored yet
	blocked map[string]time.Time // tenant → when it is tried again, after reaching its limit
	held    map[string]*itemRow  // line → with inOrder, its first item that was tried and has no outcome
	until   time.Time            // no job is tried before, after a store error
	worked  time.Time            // when a job last got an outcome
	stopped bool                 // the operation is over, or another runner owns it
}

// work processes the items of an operation that have no outcome, until the operation is over,
// the lease is lost, the worker would be idle for too long, or the context ends. Then it tries
// to give up the lease.
func (b *Bulk) work(ctx context.Context, op Operation) error {
	w := &bulkWorker{
		Bulk: b, op: op, inOrder: op.Kind == KindRetry && op.Named, pace: rate.NewLimiter(rate.Limit(op.RatePerSecond), 1),
		blocked: map[string]time.Time{}, held: map[string]*itemRow{}, worked: time.Now(), stopped: op.State != OperationRunning,
	}
	rows, err := tablestore.ScanAll(ctx, b.cfg.Operations.cfg.Store, b.cfg.Operations.itemQuery(op.ID, op.Set, 0))
	if err != nil {
		return fmt.Errorf("read the items of operation %s: %w", op.ID, err)
	}
	for i := range rows {
		item, err := decodeItem(&rows[i])
		if err != nil {
			return err
		}
		if w.counts.add(item.Outcome); item.Outcome == ItemWaiting {
			w.waiting = append(w.waiting, item)
		}
	}
	gap := time.Duration(float64(time.Second) / op.RatePerSecond)
	pause := time.Duration(0) // until the work continues, if the worker frees its permit
	for !w.over() && ctx.Err() == nil {
		now := time.Now()
		next := w.pace.ReserveN(now, 1)
		if pause = next.DelayFrom(now); now.Sub(w.worked) > maxIdle+gap {
			pause = max(pause, 2*maxIdle) // No progress: the tenants are at their limits, or the store fails.
		}
		// At a later time than now, as Cancel takes, it would not give back a token that was available.
		if next.CancelAt(now); pause > maxIdle {
			break
		}
		pause = 0
		if w.turn(ctx) == 0 {
			sleep(ctx, retryDelay)
		}
		if w.over() || ctx.Err() != nil {
			break
		}
		if len(w.fresh) > 0 || time.Until(w.op.Due) < bulkLease/2 {
			if err := w.save(ctx, bulkLease); err != nil {
				return err
			}
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
	defer cancel()
	return w.save(last, pause)
}

func (w *bulkWorker) over() bool { return w.stopped || len(w.waiting) == 0 }

// turn tries items for about a second of work at the operation's rate, some concurrently, and
// returns how many. Items that get no outcome move to the end of the queue, so that they hold
// up no others.
//
// Reruns take their places in the lines in the order in which they are made. So a retry of named
// jobs tries one at a time, and an item without an outcome holds up those of its line; of all, while
// its job cannot be read. It must not hold up its tenant: at its limit, a tenant may have room only for
// a rerun of the job that blocks a line.
func (w *bulkWorker) turn(ctx context.Context) int {
	w.began = time.Now()
	size := min(max(int(math.Ceil(w.op.RatePerSecond)), 1), tablestore.MaxBatchOps)
	tried := map[*itemRow]bool{}
	var group errgroup.Group
	if group.SetLimit(bulkParallel); w.inOrder {
		group.SetLimit(1)
	}
	for _, item := range w.waiting {
		if len(tried) == size {
			break
		}
		if !w.ready(item) {
			continue
		}
		if w.pace.Wait(ctx) != nil {
			break
		}
		tried[item] = true
		group.Go(func() error {
			w.note(ctx, item, w.apply(ctx, item))
			return nil
		})
	}
	_ = group.Wait() // note handles the errors.
	var late []*itemRow
	w.waiting = slices.DeleteFunc(w.waiting, func(item *itemRow) bool {
		moved := item.Outcome == ItemWaiting && tried[item] && (!w.inOrder || item.Tenant != "")
		if moved {
			late = append(late, item)
		}
		return moved || item.Outcome != ItemWaiting
	})
	w.waiting = append(w.waiting, late...)
	return len(tried)
}

// ready reports whether the item may be tried in this turn.
func (w *bulkWorker) ready(item *itemRow) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.stopped && !w.until.After(w.began) && !w.blocked[item.Tenant].After(w.began) && !w.heldUp(item)
}

// heldUp reports whether the item must wait for one of its line. The caller holds mu.
func (w *bulkWorker) heldUp(item *itemRow) bool {
	first := w.held[item.line]
	return first != nil && first != item
}

// errHeldUp is returned for an item that must wait for one of its line.
var errHeldUp = errors.New("a job of the line that is named before this one has no rerun yet")

// note records that an item got its outcome or, for an error, what must wait: the tenant,
// or all items.
func (w *bulkWorker) note(ctx context.Context, item *itemRow, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && w.held[item.line] == item {
		delete(w.held, item.line)
	} else if err != nil && w.inOrder && item.line != "" && w.held[item.line] == nil {
		w.held[item.line] = item
	}
	switch {
	case err == nil:
		w.fresh, w.worked = append(w.fresh, item), time.Now()
	case lost(err):
		w.stopped = true
	case errors.Is(err, errHeldUp):
	case errors.Is(err, ledger.ErrTenantLimit):
		w.blocked[item.Tenant] = time.Now().Add(retryDelay)
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
	if err == nil && (op.State != OperationRunning || !op.Due.Equal(w.op.Due) || !time.Now().Before(op.Due)) {
		return errLost
	}
	return err
}

// save stores the outcomes under the items' ETags, which fails if another runner has
// changed them. Then it stores their sum, and moves the entry: to the end of the lease, or to
// when another worker continues. It returns [errLost] if another runner owns the operation.
func (w *bulkWorker) save(ctx context.Context, next time.Duration) error {
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
	op, _, err := w.cfg.Operations.update(ctx, w.op.ID, func(op *Operation) (bool, error) {
		if !op.Due.Equal(w.op.Due) {
			return false, errLost
		}
		at := tablestore.Now()
		op.Due = at.Add(next).Truncate(time.Millisecond)
		if w.counts != before {
			op.UpdatedAt = at
		}
		op.Counts = w.counts
		if op.State == OperationRunning && len(w.waiting) == 0 {
			op.State, op.UpdatedAt = OperationDone, at
		}
		if op.State != OperationRunning {
			op.Due = op.UpdatedAt.Add(keepOperation)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	w.op, w.stopped = op, op.State != OperationRunning
	return nil
}

// sleep waits for d, at most until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
