package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Ledger is what the purger needs of the ledger.
type Ledger interface {
	Shards() int
	Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
	) ([]ledger.Entry, string, error)
	Purge(ctx context.Context, entry ledger.Entry) (ledger.Purged, error)
}

// Config is what a [Purger] is made of.
type Config struct {
	// Ledger holds the jobs. Required.
	Ledger Ledger
	// Interval is the time between two passes. Optional. Defaults to 1 s.
	Interval time.Duration
	// PassLimit is the most jobs that one pass purges: the rate is PassLimit per
	// Interval. Optional. Defaults to 50.
	PassLimit int
	// Logger is told of jobs that could not be purged. Optional.
	Logger *slog.Logger
	// Observe is told of each outcome. Optional.
	Observe func(ledger.Purged)
}

// Purger purges ended jobs. Any number may run on one store.
type Purger struct {
	cfg Config
	// shard is where the next pass begins, so that a pass that is cut short by its
	// limit does not favour some shards.
	shard int
}

// New returns a purger. The error names the field that makes no sense.
func New(cfg Config) (*Purger, error) {
	if cfg.Ledger == nil {
		return nil, errors.New("retention: Ledger is required")
	}
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	cfg.PassLimit = cmp.Or(cfg.PassLimit, 50)
	if cfg.Interval < 0 || cfg.PassLimit < 0 {
		return nil, errors.New("retention: Interval and PassLimit must be positive")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(ledger.Purged) {}
	}
	return &Purger{cfg: cfg}, nil
}

// Run makes a pass at each interval until the context ends.
func (p *Purger) Run(ctx context.Context) error {
	ticker := time.NewTicker(p.cfg.Interval)
	defer ticker.Stop()
	for {
		if _, err := p.RunOnce(ctx); err != nil && ctx.Err() == nil {
			p.cfg.Logger.ErrorContext(ctx, "pass over ended jobs failed", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// RunOnce purges jobs whose time has come, at most PassLimit, and returns how
// many entries it looked at. One that cannot be purged keeps its entry and does
// not hold up the others. The error is that of reading the schedule. One pass
// runs at a time.
func (p *Purger) RunOnce(ctx context.Context) (int, error) {
	now := time.Now()
	done := 0
	for range p.cfg.Ledger.Shards() {
		entries, _, err := p.cfg.Ledger.Due(ctx, ledger.Retention, p.shard, now, p.cfg.PassLimit-done, "")
		if err != nil {
			return done, fmt.Errorf("retention: %w", err)
		}
		for _, entry := range entries {
			p.purge(ctx, entry)
		}
		if done += len(entries); done >= p.cfg.PassLimit {
			break
		}
		p.shard = (p.shard + 1) % p.cfg.Ledger.Shards()
	}
	return done, nil
}

// purge purges one job.
func (p *Purger) purge(ctx context.Context, entry ledger.Entry) {
	outcome, err := p.cfg.Ledger.Purge(ctx, entry)
	if err != nil {
		p.cfg.Logger.WarnContext(ctx, "job not purged", "jobId", entry.JobID, "error", err)
		return
	}
	p.cfg.Observe(outcome)
}
