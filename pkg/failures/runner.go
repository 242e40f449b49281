package failures

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

// RunnerConfig is what a [Runner] is made of.
type RunnerConfig struct {
	// Service keeps the operations. Required.
	Service *Service
	// Limit is the most jobs that a tenant may have in flight. Optional. 0 is no
	// limit.
	Limit int
	// Interval is the time between two looks for operations. Optional. Defaults
	// to 1 s.
	Interval time.Duration
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
	Observe func(Outcome)
}

// Runner works on the operations. Any number may run on one store.
type Runner struct {
	cfg     RunnerConfig
	service *Service
	// name is the owner of this runner's leases.
	name string

	mu sync.Mutex
	// busy are the operations that this runner works on.
	busy map[string]bool
}

// NewRunner returns a runner. The error names the field that makes no sense.
func NewRunner(cfg RunnerConfig) (*Runner, error) {
	if cfg.Service == nil {
		return nil, errors.New("failures: Service is required")
	}
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	cfg.Lease = cmp.Or(cfg.Lease, 30*time.Second)
	cfg.Operations = cmp.Or(cfg.Operations, 8)
	cfg.Parallel = cmp.Or(cfg.Parallel, 4)
	cfg.Keep = cmp.Or(cfg.Keep, 7*24*time.Hour)
	switch {
	case cfg.Interval < 0 || cfg.Lease < 0 || cfg.Keep < 0:
		return nil, errors.New("failures: Interval, Lease and Keep must be positive")
	case cfg.Operations < 0 || cfg.Parallel < 0 || cfg.Limit < 0:
		return nil, errors.New("failures: Operations, Parallel and Limit must not be negative")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Outcome) {}
	}
	name, err := cfg.Service.cfg.Ledger.NewJobID()
	if err != nil {
		return nil, fmt.Errorf("failures: name the runner: %w", err)
	}
	return &Runner{cfg: cfg, service: cfg.Service, name: name, busy: map[string]bool{}}, nil
}

// Result is what one pass did.
type Result struct {
	// Begun is how many operations it went on with, and Removed how many old ones
	// and leftovers it removed.
	Begun   int
	Removed int
}

// Run looks for operations at each interval until the context ends, and returns
// when the work on them has stopped.
func (r *Runner) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ticker := time.NewTicker(r.cfg.Interval)
	defer ticker.Stop()
	for {
		if _, err := r.begin(ctx, &work); err != nil && ctx.Err() == nil {
			r.cfg.Logger.ErrorContext(ctx, "pass over retry operations failed", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// RunOnce works on the operations that no other runner works on, each to its
// end, or until it is lost or the context ends. Trouble with one is logged, and
// left to the next pass; the error is that of reading the operations.
func (r *Runner) RunOnce(ctx context.Context) (Result, error) {
	var work sync.WaitGroup
	defer work.Wait()
	return r.begin(ctx, &work)
}

// begin starts the work on operations, and removes old ones.
func (r *Runner) begin(ctx context.Context, work *sync.WaitGroup) (Result, error) {
	var result Result
	query := tablestore.Query{Table: r.service.cfg.Table, Partition: operations}
	for {
		page, err := r.service.cfg.Store.Scan(ctx, query)
		if err != nil {
			return result, fmt.Errorf("read the retry operations: %w", err)
		}
		for i := range page.Rows {
			if err := r.look(ctx, &page.Rows[i], work, &result); err != nil {
				r.cfg.Logger.WarnContext(ctx, "retry operation not handled", "row", page.Rows[i].Key.Row, "error", err)
			}
		}
		if query.Continue = page.Next; query.Continue == "" {
			return result, nil
		}
	}
}

// draftAge is when a draft's create has surely ended.
const draftAge = time.Hour

// look does what a HEAD or draft asks for.
func (r *Runner) look(ctx context.Context, row *tablestore.Row, work *sync.WaitGroup, result *Result) error {
	op, err := decode(row)
	if err != nil {
		return err
	}
	at := now()
	old := op.State == drafted && at.Sub(op.CreatedAt) > draftAge ||
		op.over() && at.Sub(op.UpdatedAt) > r.cfg.Keep
	switch {
	case old:
		result.Removed++
		return r.service.discard(ctx, &op, row.Key)
	case op.State == drafted || op.over() || !op.free(r.name, at) || !r.reserve(op.ID):
		return nil
	}
	result.Begun++
	work.Go(func() {
		defer r.release(op.ID)
		if err := r.work(ctx, op.ID); err != nil && ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "retry operation interrupted", "retry_id", op.ID, "error", err)
		}
	})
	return nil
}

// over reports whether nothing is left to do. One that was cancelled still has
// its jobs to be summed up while it has an owner.
func (o *Operation) over() bool {
	return (o.State == Done || o.State == Cancelled) && o.owner == ""
}

// free reports whether that runner may take the operation.
func (o *Operation) free(name string, now time.Time) bool {
	return o.owner == "" || o.owner == name || !now.Before(o.leaseUntil)
}

// reserve reports whether this runner may begin with the operation.
func (r *Runner) reserve(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[id] || len(r.busy) == r.cfg.Operations {
		return false
	}
	r.busy[id] = true
	return true
}

func (r *Runner) release(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, id)
}

// errLost is returned where an operation is another runner's, or over.
var errLost = errors.New("the operation is not this runner's")

// work takes the lease on an operation and goes on with it.
func (r *Runner) work(ctx context.Context, id string) error {
	op, err := r.service.move(ctx, id, func(op *Operation) (bool, error) {
		at := now()
		if op.over() || !op.free(r.name, at) {
			return false, errLost
		}
		op.owner, op.leaseUntil = r.name, at.Add(r.cfg.Lease)
		return true, nil
	})
	if err == nil {
		var w *worker
		if w, err = r.newWorker(ctx, op); err == nil {
			err = w.run(ctx)
		}
	}
	if errors.Is(err, errLost) || errors.Is(err, errNoOperation) {
		return nil
	}
	return err
}
