package upkeep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ReconcilerLedger is what the reconciler needs of the ledger.
type ReconcilerLedger interface {
	Schedule
	Inspect(ctx context.Context, shard, limit int, from string) ([]ledger.Finding, string, error)
	InspectReady(ctx context.Context, w *ledger.ReadyWalk, limit int,
	) (seen map[ledger.WorkKind]int, repaired int, ended bool, err error)
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
}

// maxStuck bounds the findings that are kept.
const maxStuck = 1000

// ReconcilerConfig is what a [Reconciler] is made of.
type ReconcilerConfig struct {
	// Ledger holds the jobs. Required.
	Ledger ReconcilerLedger
	// Page is the most jobs, or ready hints, looked at in one pass: the rate of the walk. Optional.
	// Defaults to 200.
	Page int
	// Rest is the time between two rounds. Optional. Defaults to 1 min.
	Rest time.Duration
	// Logger is told of each finding. Optional.
	Logger *slog.Logger
}

// Stuck is a live job without a way forward.
type Stuck struct {
	JobID   string
	State   statemachine.JobState
	Reason  string
	FoundAt time.Time
}

// ReconcilerReport is what a [Reconciler] knows.
type ReconcilerReport struct {
	// Stuck are the findings of the last whole round that could not be repaired.
	Stuck []Stuck
	// Checked is how many slots that round looked at, and RoundEnded when it did;
	// the zero time before the first.
	Checked    int
	RoundEnded time.Time
	// Ready are the ready hints that the round saw, by kind of work.
	Ready map[ledger.WorkKind]int
	// Repaired counts what was put right since the process began.
	Repaired int
	// OldestPending is how long the oldest due row has waited to be published.
	OldestPending time.Duration
}

// ReconcilerPass is what one pass of a [Reconciler] did.
type ReconcilerPass struct {
	Checked    int  // slots, or ready hints, looked at
	RoundEnded bool // it was the last pass of its round
}

// Reconciler walks the live jobs, slowly and for ever, and checks that each has a way
// forward: a pending row, a deadline or a retry time with its schedule entry, a
// directive in the pull queue with its ready hint, or a pause. At the end of each
// round it walks the ready index, for hints whose commit never came. Any number may
// run on one store.
//
// Everything else in the system makes this true with every change. The walk turns a
// defect of it into lateness: what the reconciler can repair it repairs, and counts;
// the rest it reports, so that an operator looks. Both counters are zero in a healthy
// system.
type Reconciler struct {
	cfg   ReconcilerConfig
	shard int
	from  string
	hints bool // the round is at the ready index
	ready ledger.ReadyWalk
	round ReconcilerReport // the one under way
	// rest is how long to wait after the last pass: longer after a whole round.
	rest time.Duration

	mu   sync.Mutex
	last ReconcilerReport
}

// NewReconciler returns a reconciler. The error names the field that makes no sense.
func NewReconciler(cfg ReconcilerConfig) (*Reconciler, error) {
	if cfg.Ledger == nil {
		return nil, errors.New("reconciler: Ledger is required")
	}
	cfg.Page = cmp.Or(cfg.Page, 200)
	cfg.Rest = cmp.Or(cfg.Rest, time.Minute)
	if cfg.Page < 0 || cfg.Rest < 0 {
		return nil, errors.New("reconciler: Page and Rest must be positive")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reconciler{cfg: cfg}, nil
}

// Report returns what the reconciler knows. It is safe for concurrent use.
func (r *Reconciler) Report() ReconcilerReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Loop returns the loop that walks: a page in each interval, and a rest after each
// round.
func (r *Reconciler) Loop() Loop {
	return Loop{Name: "reconciler", Rest: func() time.Duration { return r.rest }, Pass: func(ctx context.Context) error {
		pass, err := r.RunOnce(ctx)
		if r.rest = 0; pass.RoundEnded {
			r.rest = r.cfg.Rest
		}
		return err
	}}
}

// RunOnce looks at one page of jobs. After an error the page is looked at again. One
// call runs at a time.
func (r *Reconciler) RunOnce(ctx context.Context) (ReconcilerPass, error) {
	if err := r.age(ctx); err != nil {
		return ReconcilerPass{}, err
	}
	if r.hints {
		return r.inspectReady(ctx)
	}
	findings, next, err := r.cfg.Ledger.Inspect(ctx, r.shard, r.cfg.Page, r.from)
	if err != nil {
		return ReconcilerPass{}, fmt.Errorf("reconcile: %w", err)
	}
	for i := range findings {
		r.note(ctx, &findings[i])
	}
	if r.from = next; next == "" {
		r.shard = (r.shard + 1) % r.cfg.Ledger.Shards()
		r.hints = r.shard == 0
	}
	return ReconcilerPass{Checked: len(findings)}, nil
}

// inspectReady looks at one page of the ready index, with which a round ends.
func (r *Reconciler) inspectReady(ctx context.Context) (ReconcilerPass, error) {
	seen, repaired, ended, err := r.cfg.Ledger.InspectReady(ctx, &r.ready, r.cfg.Page)
	pass := ReconcilerPass{RoundEnded: ended}
	for kind, n := range seen {
		if r.round.Ready == nil {
			r.round.Ready = map[ledger.WorkKind]int{}
		}
		r.round.Ready[kind] += n
		pass.Checked += n
	}
	if repaired > 0 {
		r.cfg.Logger.WarnContext(ctx, "defect repaired", "hints", repaired, "defect", "ready hint of a commit that never came")
		r.mu.Lock()
		r.last.Repaired += repaired
		r.mu.Unlock()
	}
	if ended {
		r.hints = false
		r.close()
	}
	if err != nil {
		return pass, fmt.Errorf("reconcile: %w", err)
	}
	return pass, nil
}

// close makes the round's findings the report.
func (r *Reconciler) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.Stuck, r.last.Checked, r.last.Ready = r.round.Stuck, r.round.Checked, r.round.Ready
	r.last.RoundEnded = time.Now()
	r.round = ReconcilerReport{}
}

// note takes a finding over.
func (r *Reconciler) note(ctx context.Context, found *ledger.Finding) {
	r.round.Checked++
	switch {
	case found.Repaired != "":
		r.cfg.Logger.WarnContext(ctx, "defect repaired", "jobId", found.JobID, "defect", found.Repaired)
		r.mu.Lock()
		r.last.Repaired++
		r.mu.Unlock()
	case found.Stuck != "" && len(r.round.Stuck) < maxStuck:
		r.cfg.Logger.ErrorContext(ctx, "job is stuck", "jobId", found.JobID, "reason", found.Stuck)
		r.round.Stuck = append(r.round.Stuck, Stuck{
			JobID: found.JobID, State: found.Job.Job.State, Reason: found.Stuck, FoundAt: time.Now(),
		})
	}
}

// age finds out how long the row has waited that has been due the longest. A row that
// could not be published is due again a little later, so its age is that of the row.
func (r *Reconciler) age(ctx context.Context) error {
	now := time.Now()
	oldest := time.Duration(0)
	for shard := range r.cfg.Ledger.Shards() {
		entries, _, err := r.cfg.Ledger.Due(ctx, ledger.Dispatch, shard, now, 1, "")
		if err != nil {
			return fmt.Errorf("reconcile: %w", err)
		}
		if len(entries) == 0 {
			continue
		}
		job, err := r.cfg.Ledger.Job(ctx, entries[0].JobID)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound):
		case errors.Is(err, tablestore.ErrUnavailable):
			return fmt.Errorf("reconcile: %w", err)
		case err != nil: // A job that cannot be read must not hide the others.
			r.cfg.Logger.ErrorContext(ctx, "age of a pending row not known", "jobId", entries[0].JobID, "error", err)
		case job.Outbox != nil && job.Outbox.State == statemachine.OutboxPending:
			oldest = max(oldest, now.Sub(job.Outbox.CreatedAt))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.OldestPending = oldest
	return nil
}
