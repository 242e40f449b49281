package upkeep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// RetentionLedger is what the retention needs of the ledger.
type RetentionLedger interface {
	Schedule
	Purge(ctx context.Context, entry ledger.Entry) (ledger.Purged, error)
}

// RetentionConfig is what a [Retention] is made of.
type RetentionConfig struct {
	// Ledger holds the jobs. Required.
	Ledger RetentionLedger
	// PassLimit is the most jobs that one pass purges, so that a backlog of them never
	// competes with the work at hand. Optional. Defaults to 50.
	PassLimit int
	// Logger is told of jobs that could not be purged. Optional.
	Logger *slog.Logger
	// Observe is told of each outcome. Optional.
	Observe func(ledger.Purged)
}

// Retention purges ended jobs whose time has come. What a purge is, and in which
// order it deletes, is decided by [ledger.Ledger.Purge]; one that fails or is cut
// short is found again through its schedule entry. Any number may run on one store.
type Retention struct {
	cfg RetentionConfig
	// shard is where the next pass begins, so that a pass that is cut short by its
	// limit does not favour some shards.
	shard int
}

// RetentionPass is what one pass of a [Retention] did.
type RetentionPass struct {
	Read int // schedule entries looked at
}

// NewRetention returns a retention. The error names the field that makes no sense.
func NewRetention(cfg RetentionConfig) (*Retention, error) {
	if cfg.Ledger == nil {
		return nil, errors.New("retention: Ledger is required")
	}
	cfg.PassLimit = cmp.Or(cfg.PassLimit, 50)
	if cfg.PassLimit < 0 {
		return nil, errors.New("retention: PassLimit must be positive")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(ledger.Purged) {}
	}
	return &Retention{cfg: cfg}, nil
}

// Loop returns the loop that purges.
func (r *Retention) Loop() Loop {
	return Loop{Name: "retention", Pass: func(ctx context.Context) error {
		_, err := r.RunOnce(ctx)
		return err
	}}
}

// RunOnce purges jobs whose time has come, at most PassLimit. One that cannot be
// purged keeps its entry and does not hold up the others. The error is that of
// reading the schedule. One pass runs at a time.
func (r *Retention) RunOnce(ctx context.Context) (RetentionPass, error) {
	now := time.Now()
	var pass RetentionPass
	for range r.cfg.Ledger.Shards() {
		entries, _, err := r.cfg.Ledger.Due(ctx, ledger.Retention, r.shard, now, r.cfg.PassLimit-pass.Read, "")
		if err != nil {
			return pass, fmt.Errorf("retention: %w", err)
		}
		for _, entry := range entries {
			r.purge(ctx, entry)
		}
		if pass.Read += len(entries); pass.Read >= r.cfg.PassLimit {
			break
		}
		r.shard = (r.shard + 1) % r.cfg.Ledger.Shards()
	}
	return pass, nil
}

// purge purges one job.
func (r *Retention) purge(ctx context.Context, entry ledger.Entry) {
	outcome, err := r.cfg.Ledger.Purge(ctx, entry)
	if err != nil {
		r.cfg.Logger.WarnContext(ctx, "job not purged", "jobId", entry.JobID, "error", err)
		return
	}
	r.cfg.Observe(outcome)
}
