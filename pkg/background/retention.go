package background

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// purgePage is the most jobs that are purged together. On a busy store most of the time of a
	// page is the wait for one commit: with small pages, purging would fall behind completing.
	purgePage = 256
	// maxLag is how late a purge may be before it goes before other work.
	maxLag = 10 * time.Second
	// maxOverdue bounds the entries that [Retention.Survey] counts.
	maxOverdue = 10_000
)

// RetentionLedger is the part of the ledger that a [Retention] needs.
type RetentionLedger interface {
	ledger.Schedule
	Purge(ctx context.Context, entries []ledger.Entry) []ledger.PurgeResult
}

// RetentionConfig configures a [Retention].
type RetentionConfig struct {
	// Ledger holds the jobs. Required.
	Ledger RetentionLedger
	// PassLimit is the most jobs that one pass purges. Optional. Defaults to 1024.
	PassLimit int
	// Random is that of the [ledger.Walker]: replicas that begin at different shards seldom
	// purge the same job. Optional.
	Random func() float64
	// Logger logs jobs that could not be purged. Optional.
	Logger *slog.Logger
	// Observe is called after each purge. Optional.
	Observe func(ledger.Purged)
}

// Overdue are the jobs that are due and not purged.
type Overdue struct {
	Jobs   int       // at most 10,000
	Oldest time.Time // when the first of them was due; zero if there is none
}

// Retention purges ended jobs after their retention time. [ledger.Ledger.Purge] decides
// what to delete, in which order. The schedule entry of a job stays until its purge is
// complete. Any number may run on one store.
//
// A backlog of any size is purged page by page. After each page the pass rests as long as the
// page took, so that purging hardly slows the jobs that are under way. Once it is late, it rests
// for half of that: a store that grows for ever is worse than a slower one.
type Retention struct {
	cfg     RetentionConfig
	walk    ledger.Walker
	wake    chan struct{}
	overdue atomic.Pointer[Overdue]
	// probing: the store refused the last purge. The next one is of a single job, because jobs are
	// archived before their purge, and so once for each try. It belongs to the pass.
	probing bool
}

// NewRetention returns a retention.
func NewRetention(cfg RetentionConfig) *Retention {
	cfg.PassLimit = cmp.Or(cfg.PassLimit, 1024)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(ledger.Purged) {}
	}
	r := &Retention{
		cfg: cfg, wake: make(chan struct{}, 1),
		walk: ledger.Walker{Schedule: cfg.Ledger, Kind: ledger.Retention, Page: purgePage, Random: cfg.Random},
	}
	r.overdue.Store(&Overdue{})
	return r
}

// Loop returns the loop that purges. While more jobs may be due, the next pass starts at once.
func (r *Retention) Loop() Loop {
	return Loop{Name: "retention", Wake: r.wake, Pass: func(ctx context.Context) error {
		pass, err := r.RunOnce(ctx)
		if pass.More {
			select {
			case r.wake <- struct{}{}:
			default:
			}
		}
		return err
	}}
}

// RunOnce purges at most PassLimit jobs. A job that cannot be purged keeps its entry and
// does not hold up the others; a store that refuses all purges of a page, or two jobs that are tried
// alone, ends the pass with its error. Any other error is one of reading the schedule. One pass runs
// at a time. A pass may write even if the disk is too full for other writes.
func (r *Retention) RunOnce(ctx context.Context) (Pass, error) {
	ctx = tablestore.Reclaiming(ctx)
	var pass Pass
	var refused error
	purged := 0
	room := func() int {
		switch {
		case refused != nil:
			return 0
		case r.probing:
			return 1
		}
		return r.cfg.PassLimit - pass.Done
	}
	err := r.walk.Pass(ctx, room, func(entries []ledger.Entry) bool {
		began, taken := time.Now(), false
		results := r.cfg.Ledger.Purge(ctx, entries)
		cause := refusal(results)
		alone := len(entries) == 1 && !r.probing // It may be this job and not the store: another one is tried.
		if r.probing = cause != nil; r.probing && !alone {
			refused = cause
			return false
		}
		for i, result := range results {
			if result.Err != nil {
				r.cfg.Logger.WarnContext(ctx, "job not purged", entries[i].Fields().With("error", result.Err)...)
				continue
			}
			purged++
			taken = taken || result.Outcome == ledger.PurgeElsewhere
			r.cfg.Observe(result.Outcome)
		}
		pass.Done += len(entries)
		rest := time.Since(began)
		if began.Sub(entries[0].Due) > maxLag {
			rest /= 2
		}
		sleep(ctx, rest)
		return !taken // Another process purges the jobs of this shard.
	})
	pass.More = refused == nil && room() == 0 && purged > 0 // After the error of a row, too.
	if err = cmp.Or(err, refused); err != nil {
		return pass, fmt.Errorf("retention: %w", err)
	}
	return pass, nil
}

// refusal returns the error of a store that refuses all of these purges, or nil.
func refusal(results []ledger.PurgeResult) error {
	for _, result := range results {
		if !errors.Is(result.Err, tablestore.ErrUnavailable) {
			return nil
		}
	}
	return results[0].Err
}

// Survey counts the jobs that are due and not purged. It reads at most 10,000 entries.
func (r *Retention) Survey(ctx context.Context) error {
	now, shards := time.Now(), r.cfg.Ledger.Shards()
	var found Overdue
	for shard := range shards {
		entries, _, err := r.cfg.Ledger.Due(ctx, ledger.Retention, shard, now, max(1, maxOverdue/shards), "")
		if err != nil && entries == nil { // [Retention.RunOnce] returns errors of single rows.
			return fmt.Errorf("count the jobs to purge: %w", err)
		}
		if found.Jobs += len(entries); len(entries) > 0 && (found.Oldest.IsZero() || entries[0].Due.Before(found.Oldest)) {
			found.Oldest = entries[0].Due
		}
	}
	r.overdue.Store(&found)
	return nil
}

// Overdue returns the result of the last [Retention.Survey]. It is safe for concurrent use.
func (r *Retention) Overdue() Overdue { return *r.overdue.Load() }
