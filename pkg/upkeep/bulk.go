package upkeep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// BulkConfig is what a [Bulk] is made of.
type BulkConfig struct {
	// Failures keeps the operations. Required.
	Failures *Failures
	// Limit is the most jobs that a tenant may have in flight. Optional. 0 is no
	// limit.
	Limit int
	// Lease is how long an operation is left to a runner that is not heard of.
	// Optional. Defaults to 30 s.
	Lease time.Duration
	// Operations is how many are worked on side by side. Optional. Defaults to 8.
	Operations int
	// Parallel is how many jobs of one operation are rerun side by side. Optional.
	// Defaults to 4.
	Parallel int
	// Keep is how long an operation is kept after its end. Optional. Defaults to
	// 7 days.
	Keep time.Duration
	// Logger is told of jobs that could not be rerun. Optional.
	Logger *slog.Logger
	// Observe is told of each outcome, once it is stored. Optional. It must be
	// safe for concurrent use.
	Observe func(ItemOutcome)
}

// Bulk works on the operations that [Failures] keeps. Any number may run on one store.
//
//	operator ── Create ──► draft ──► items ──► HEAD (RUNNING)          Get, Cancel
//	                                            ▲
//	                     Bulk: lease by CAS ────┘ each second
//	                       │
//	                       └─ item by item, at rate_per_second ──► ledger.Rerun
//	                              outcome ──► item, then the sum ──► HEAD
//
// Of several processes one works on an operation: it takes a lease on the HEAD by CAS.
// It learns what is left to do from the items alone, whose outcomes are written before
// the HEAD's sum. It never repairs itself: a write that fails ends the work on that
// operation, and the next pass begins again from the rows. That is safe because
// [ledger.Ledger.Rerun] makes one job for each job and starting point, whoever asks and
// how often. The history of a new job names the operation as its request id, by which
// an operation knows after a crash which reruns are its own.
//
// Before each item the HEAD is read: when Cancel has answered, no further rerun begins,
// but for those under way at that moment. A tenant at its limit of jobs in flight is
// passed over for a second, and the other tenants' jobs go on. While the store does not
// answer, the job waits.
type Bulk struct {
	cfg     BulkConfig
	service *Failures
	// name is the owner of this runner's leases.
	name string

	mu sync.Mutex
	// busy are the operations that this runner works on.
	busy map[string]bool
}

// NewBulk returns what works on operations. The error names the field that makes no sense.
func NewBulk(cfg BulkConfig) (*Bulk, error) {
	if cfg.Failures == nil {
		return nil, errors.New("bulk: Failures is required")
	}
	cfg.Lease = cmp.Or(cfg.Lease, 30*time.Second)
	cfg.Operations = cmp.Or(cfg.Operations, 8)
	cfg.Parallel = cmp.Or(cfg.Parallel, 4)
	cfg.Keep = cmp.Or(cfg.Keep, 7*24*time.Hour)
	switch {
	case cfg.Lease < 0 || cfg.Keep < 0:
		return nil, errors.New("bulk: Lease and Keep must be positive")
	case cfg.Operations < 0 || cfg.Parallel < 0 || cfg.Limit < 0:
		return nil, errors.New("bulk: Operations, Parallel and Limit must not be negative")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(ItemOutcome) {}
	}
	name, err := cfg.Failures.cfg.Ledger.NewJobID()
	if err != nil {
		return nil, fmt.Errorf("bulk: name the runner: %w", err)
	}
	return &Bulk{cfg: cfg, service: cfg.Failures, name: name, busy: map[string]bool{}}, nil
}

// BulkPass is what one pass of a [Bulk] did.
type BulkPass struct {
	// Begun is how many operations it went on with, and Removed how many old ones
	// and leftovers it removed.
	Begun   int
	Removed int
}

// Loop returns the loop that looks for operations. Its passes do not wait for the work
// on them; its end does.
func (b *Bulk) Loop() Loop {
	var work sync.WaitGroup
	return Loop{Name: "bulk", Drain: work.Wait, Pass: func(ctx context.Context) error {
		_, err := b.begin(ctx, &work)
		return err
	}}
}

// RunOnce works on the operations that no other runner works on, each to its
// end, or until it is lost or the context ends. Trouble with one is logged, and
// left to the next pass; the error is that of reading the operations.
func (b *Bulk) RunOnce(ctx context.Context) (BulkPass, error) {
	var work sync.WaitGroup
	defer work.Wait()
	return b.begin(ctx, &work)
}

// begin starts the work on operations, and removes old ones.
func (b *Bulk) begin(ctx context.Context, work *sync.WaitGroup) (BulkPass, error) {
	var pass BulkPass
	query := tablestore.Query{Table: b.service.cfg.Table, Partition: operationsPartition}
	rows, err := tablestore.ScanAll(ctx, b.service.cfg.Store, query)
	if err != nil {
		return pass, fmt.Errorf("read the retry operations: %w", err)
	}
	for i := range rows {
		if err := b.look(ctx, &rows[i], work, &pass); err != nil {
			b.cfg.Logger.WarnContext(ctx, "retry operation not handled", "row", rows[i].Key.Row, "error", err)
		}
	}
	return pass, nil
}

// draftAge is when a draft's create has surely ended.
const draftAge = time.Hour

// look does what a HEAD or draft asks for.
func (b *Bulk) look(ctx context.Context, row *tablestore.Row, work *sync.WaitGroup, pass *BulkPass) error {
	op, err := decodeOperation(row)
	if err != nil {
		return err
	}
	at := tablestore.Now()
	old := op.State == operationDraft && at.Sub(op.CreatedAt) > draftAge ||
		op.over() && at.Sub(op.UpdatedAt) > b.cfg.Keep
	switch {
	case old:
		pass.Removed++
		return b.service.discard(ctx, &op, row.Key)
	case op.State == operationDraft || op.over() || !op.free(b.name, at) || !b.reserve(op.ID):
		return nil
	}
	pass.Begun++
	work.Go(func() {
		defer b.release(op.ID)
		if err := b.work(ctx, op.ID); err != nil && ctx.Err() == nil {
			b.cfg.Logger.WarnContext(ctx, "retry operation interrupted", "retry_id", op.ID, "error", err)
		}
	})
	return nil
}

// over reports whether nothing is left to do. One that was cancelled still has
// its jobs to be summed up while it has an owner.
func (o *Operation) over() bool {
	return (o.State == OperationDone || o.State == OperationCancelled) && o.owner == ""
}

// free reports whether that runner may take the operation.
func (o *Operation) free(name string, now time.Time) bool {
	return o.owner == "" || o.owner == name || !now.Before(o.leaseUntil)
}

// reserve reports whether this runner may begin with the operation.
func (b *Bulk) reserve(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[id] || len(b.busy) == b.cfg.Operations {
		return false
	}
	b.busy[id] = true
	return true
}

func (b *Bulk) release(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.busy, id)
}

// errLost is returned where an operation is another runner's, or over.
var errLost = errors.New("the operation is not this runner's")

// work takes the lease on an operation and goes on with it.
func (b *Bulk) work(ctx context.Context, id string) error {
	op, err := b.service.move(ctx, id, func(op *Operation) (bool, error) {
		at := tablestore.Now()
		if op.over() || !op.free(b.name, at) {
			return false, errLost
		}
		op.owner, op.leaseUntil = b.name, at.Add(b.cfg.Lease)
		return true, nil
	})
	if err == nil {
		var w *bulkWorker
		if w, err = b.newWorker(ctx, op); err == nil {
			err = w.run(ctx)
		}
	}
	if errors.Is(err, errLost) || errors.Is(err, errNoOperation) {
		return nil
	}
	return err
}
