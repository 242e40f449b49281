package announce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Ledger is what the announcer needs of the ledger.
type Ledger interface {
	Shards() int
	Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
	) ([]ledger.Entry, string, error)
	TakeWebhook(ctx context.Context, entry ledger.Entry, hold time.Duration,
	) (*ledger.WebhookRow, *statemachine.Aggregate, error)
	SettleWebhook(ctx context.Context, taken, next *ledger.WebhookRow) (bool, error)
}

// Verdict is what became of one attempt.
type Verdict struct {
	// State is DELIVERED, GONE or REFUSED, or PENDING for an attempt that failed
	// and may be made again.
	State ledger.WebhookState
	// Status is the receiver's HTTP status, 0 where it gave none.
	Status int
	// Reason says what was wrong, in words that anybody may read.
	Reason string
	// RetryAfter is how long the receiver asked to wait, 0 where it did not.
	RetryAfter time.Duration
}

// Sender sends one webhook. It is safe for concurrent use.
type Sender interface {
	// Send makes one attempt to announce the end of the job. It returns within
	// the announcer's hold.
	Send(ctx context.Context, webhook *ledger.WebhookRow, job *statemachine.Aggregate) Verdict
}

// DefaultDelays are those before each further attempt that Standard Webhooks
// recommends: three days in all.
var DefaultDelays = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour,
	20 * time.Hour, 24 * time.Hour,
}

// maxRetryAfter bounds what a receiver may ask for.
const maxRetryAfter = 24 * time.Hour

// Config is what an [Announcer] is made of.
type Config struct {
	// Ledger holds the webhooks. Required.
	Ledger Ledger
	// Sender sends them. Required.
	Sender Sender
	// Delays are those before each further attempt; when they have run out the
	// webhook is EXHAUSTED. Optional. Defaults to [DefaultDelays].
	Delays []time.Duration
	// Jitter is the part of a delay that is randomised, 0 to 1.
	Jitter float64
	// Random returns numbers in [0, 1). Optional. Defaults to math/rand/v2. It
	// must be safe for concurrent use.
	Random func() float64
	// Interval is the time between two passes. Optional. Defaults to 1 s.
	Interval time.Duration
	// Hold is how long one attempt may take, with a margin. Optional. Defaults to
	// 1 min.
	Hold time.Duration
	// PassLimit is the most webhooks that one pass sends. Optional. Defaults to
	// 256.
	PassLimit int
	// Parallel is the number of webhooks sent side by side. Optional. Defaults to
	// 16.
	Parallel int
	// Logger is told of webhooks that could not be settled. Optional.
	Logger *slog.Logger
	// Observe is told of each attempt's outcome. Optional.
	Observe func(ledger.WebhookState)
}

// Announcer sends due webhooks. Any number may run on one store.
type Announcer struct {
	cfg   Config
	shard int // where the next pass begins
}

// New returns an announcer. The error names the field that makes no sense.
func New(cfg Config) (*Announcer, error) {
	if cfg.Ledger == nil || cfg.Sender == nil {
		return nil, errors.New("announce: Ledger and Sender are required")
	}
	if cfg.Delays == nil {
		cfg.Delays = DefaultDelays
	}
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	cfg.Hold = cmp.Or(cfg.Hold, time.Minute)
	cfg.PassLimit = cmp.Or(cfg.PassLimit, 256)
	cfg.Parallel = cmp.Or(cfg.Parallel, 16)
	switch {
	case cfg.Interval < 0 || cfg.Hold < 0 || cfg.PassLimit < 0 || cfg.Parallel < 0:
		return nil, errors.New("announce: Interval, Hold, PassLimit and Parallel must be positive")
	case cfg.Jitter < 0 || cfg.Jitter > 1:
		return nil, fmt.Errorf("announce: Jitter is %g, it must be from 0 to 1", cfg.Jitter)
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(ledger.WebhookState) {}
	}
	return &Announcer{cfg: cfg}, nil
}

// Run makes a pass at each interval until the context ends.
func (a *Announcer) Run(ctx context.Context) error {
	ticker := time.NewTicker(a.cfg.Interval)
	defer ticker.Stop()
	for {
		if _, err := a.RunOnce(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Logger.ErrorContext(ctx, "pass over the webhooks failed", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// RunOnce sends the webhooks that are due, at most PassLimit, and returns how
// many entries it looked at. One that cannot be settled is sent again later and
// does not hold up the others. The error is that of reading the schedule. One
// pass runs at a time.
func (a *Announcer) RunOnce(ctx context.Context) (int, error) {
	now := time.Now()
	done := 0
	var group errgroup.Group
	group.SetLimit(a.cfg.Parallel)
	defer func() { _ = group.Wait() }() // The webhooks' errors are logged one by one.
	for range a.cfg.Ledger.Shards() {
		entries, _, err := a.cfg.Ledger.Due(ctx, ledger.Webhook, a.shard, now, a.cfg.PassLimit-done, "")
		if err != nil {
			return done, fmt.Errorf("announce: %w", err)
		}
		for _, entry := range entries {
			group.Go(func() error {
				a.attempt(ctx, entry)
				return nil
			})
		}
		if done += len(entries); done >= a.cfg.PassLimit {
			break
		}
		a.shard = (a.shard + 1) % a.cfg.Ledger.Shards()
	}
	return done, nil
}

// attempt makes one attempt of one webhook.
func (a *Announcer) attempt(ctx context.Context, entry ledger.Entry) {
	taken, job, err := a.cfg.Ledger.TakeWebhook(ctx, entry, a.cfg.Hold)
	if err != nil {
		a.cfg.Logger.WarnContext(ctx, "webhook not taken", "jobId", entry.JobID, "error", err)
		return
	}
	if taken == nil {
		return
	}
	next := a.next(taken, a.cfg.Sender.Send(ctx, taken, job))
	// What was sent is written also when the process is asked to stop.
	if _, err := a.cfg.Ledger.SettleWebhook(context.WithoutCancel(ctx), taken, next); err != nil {
		a.cfg.Logger.WarnContext(ctx, "webhook not settled", "webhook_id", taken.ID(), "error", err)
		return
	}
	a.cfg.Observe(next.State)
}

// next is the webhook after an attempt.
func (a *Announcer) next(taken *ledger.WebhookRow, verdict Verdict) *ledger.WebhookRow {
	next := *taken
	next.Attempts++
	next.State, next.LastStatus, next.LastError = verdict.State, verdict.Status, verdict.Reason
	if verdict.State != ledger.WebhookPending {
		return &next
	}
	if next.Attempts > len(a.cfg.Delays) {
		next.State = ledger.WebhookExhausted
		return &next
	}
	delay := a.cfg.Delays[next.Attempts-1]
	delay += time.Duration(a.cfg.Jitter * (2*a.cfg.Random() - 1) * float64(delay))
	delay = max(delay, min(verdict.RetryAfter, maxRetryAfter))
	next.NextAttemptAt = time.Now().UTC().Add(delay).Truncate(time.Millisecond)
	return &next
}
