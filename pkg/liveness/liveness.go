package liveness

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

// Ledger is what the check needs of the ledger.
type Ledger interface {
	Shards() int
	Inspect(ctx context.Context, shard, limit int, from string) ([]ledger.Finding, string, error)
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
	Message(ctx context.Context, agg *statemachine.Aggregate) (*ledger.Message, error)
	Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
	) ([]ledger.Entry, string, error)
}

// maxStuck bounds the findings that are kept.
const maxStuck = 1000

// Config is what a [Checker] is made of.
type Config struct {
	// Ledger holds the jobs. Required.
	Ledger Ledger
	// Ensure makes sure that a directive that waits for its claim is within reach of
	// a worker, and reports whether it was not. Optional: without a pull queue no job
	// waits there.
	Ensure func(ctx context.Context, message *ledger.Message) (missing bool, err error)
	// Interval is the time between two pages. Optional. Defaults to 1 s.
	Interval time.Duration
	// Page is the most jobs looked at in one interval: the rate of the walk.
	// Optional. Defaults to 200.
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

// Report is what the check knows.
type Report struct {
	// Stuck are the findings of the last whole round that could not be repaired.
	Stuck []Stuck
	// Checked is how many slots that round looked at, and RoundEnded when it did;
	// the zero time before the first.
	Checked    int
	RoundEnded time.Time
	// Repaired counts what was put right since the process began.
	Repaired int
	// OldestPending is how long the oldest due row has waited to be published.
	OldestPending time.Duration
}

// Checker walks the live jobs. Any number may run on one store.
type Checker struct {
	cfg   Config
	shard int
	from  string
	round Report // the one under way

	mu   sync.Mutex
	last Report
}

// New returns a checker. The error names the field that makes no sense.
func New(cfg Config) (*Checker, error) {
	if cfg.Ledger == nil {
		return nil, errors.New("liveness: Ledger is required")
	}
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	cfg.Page = cmp.Or(cfg.Page, 200)
	cfg.Rest = cmp.Or(cfg.Rest, time.Minute)
	if cfg.Interval < 0 || cfg.Page < 0 || cfg.Rest < 0 {
		return nil, errors.New("liveness: Interval, Page and Rest must be positive")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Checker{cfg: cfg}, nil
}

// Report returns what the check knows. It is safe for concurrent use.
func (c *Checker) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Run walks until the context ends.
func (c *Checker) Run(ctx context.Context) error {
	timer := time.NewTimer(c.cfg.Interval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		pause := c.cfg.Interval
		ended, err := c.RunOnce(ctx)
		if err != nil && ctx.Err() == nil {
			c.cfg.Logger.WarnContext(ctx, "liveness not checked", "error", err)
		}
		if ended {
			pause = c.cfg.Rest
		}
		timer.Reset(pause)
	}
}

// RunOnce looks at one page of jobs, and reports whether it was the last of its
// round. After an error the page is looked at again. One call runs at a time.
func (c *Checker) RunOnce(ctx context.Context) (ended bool, err error) {
	if err := c.age(ctx); err != nil {
		return false, err
	}
	findings, next, err := c.cfg.Ledger.Inspect(ctx, c.shard, c.cfg.Page, c.from)
	if err != nil {
		return false, fmt.Errorf("liveness: %w", err)
	}
	for i := range findings {
		if err := c.note(ctx, &findings[i]); err != nil {
			return false, fmt.Errorf("liveness: job %s: %w", findings[i].JobID, err)
		}
	}
	if c.from = next; next != "" {
		return false, nil
	}
	c.shard = (c.shard + 1) % c.cfg.Ledger.Shards()
	if c.shard != 0 {
		return false, nil
	}
	c.close()
	return true, nil
}

// close makes the round's findings the report.
func (c *Checker) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last.Stuck, c.last.Checked, c.last.RoundEnded = c.round.Stuck, c.round.Checked, time.Now()
	c.round = Report{}
}

// note takes a finding over.
func (c *Checker) note(ctx context.Context, found *ledger.Finding) error {
	c.round.Checked++
	if found.Waits && c.cfg.Ensure != nil {
		message, err := c.cfg.Ledger.Message(ctx, found.Job)
		if err != nil {
			return err
		}
		missing, err := c.cfg.Ensure(ctx, message)
		if err != nil {
			return err
		}
		if missing {
			found.Repaired = "directive out of reach of workers"
		}
	}
	switch {
	case found.Repaired != "":
		c.cfg.Logger.WarnContext(ctx, "defect repaired", "jobId", found.JobID, "defect", found.Repaired)
		c.mu.Lock()
		c.last.Repaired++
		c.mu.Unlock()
	case found.Stuck != "" && len(c.round.Stuck) < maxStuck:
		c.cfg.Logger.ErrorContext(ctx, "job is stuck", "jobId", found.JobID, "reason", found.Stuck)
		c.round.Stuck = append(c.round.Stuck, Stuck{
			JobID: found.JobID, State: found.Job.Job.State, Reason: found.Stuck, FoundAt: time.Now(),
		})
	}
	return nil
}

// age finds out how long the row has waited that has been due the longest. A row that
// could not be published is due again a little later, so its age is that of the row.
func (c *Checker) age(ctx context.Context) error {
	now := time.Now()
	oldest := time.Duration(0)
	for shard := range c.cfg.Ledger.Shards() {
		entries, _, err := c.cfg.Ledger.Due(ctx, ledger.Dispatch, shard, now, 1, "")
		if err != nil {
			return fmt.Errorf("liveness: %w", err)
		}
		if len(entries) == 0 {
			continue
		}
		job, err := c.cfg.Ledger.Job(ctx, entries[0].JobID)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound):
		case errors.Is(err, tablestore.ErrUnavailable):
			return fmt.Errorf("liveness: %w", err)
		case err != nil: // A job that cannot be read must not hide the others.
			c.cfg.Logger.ErrorContext(ctx, "age of a pending row not known", "jobId", entries[0].JobID, "error", err)
		case job.Outbox != nil && job.Outbox.State == statemachine.OutboxPending:
			oldest = max(oldest, now.Sub(job.Outbox.CreatedAt))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last.OldestPending = oldest
	return nil
}
