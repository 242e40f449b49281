package upkeep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// sweepLimit is the most entries that one pass reads from one shard, so that no shard
// waits for another's backlog. The next pass continues there.
const sweepLimit = 4096

// Schedule is the part of the ledger that finds due work.
type Schedule interface {
	Shards() int
	Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
	) ([]ledger.Entry, string, error)
}

// cursor walks the due entries of all shards and continues where it stopped, so that
// entries that stay due do not hide the ones after them.
type cursor struct {
	shard int
	after string // in the shard; empty at its start
}

// round reads the due entries of each shard once, and calls do with them. It ends when
// room returns 0; the next round continues there. Its error is that of reading.
func (c *cursor) round(ctx context.Context, s Schedule, kind ledger.Kind, room func() int, do func(ledger.Entry)) error {
	now := time.Now()
	for left := s.Shards(); left > 0 && ctx.Err() == nil; {
		limit := room()
		if limit <= 0 {
			return nil
		}
		entries, next, err := s.Due(ctx, kind, c.shard, now, limit, c.after)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			do(entry)
		}
		if c.after = next; next == "" {
			c.shard = (c.shard + 1) % s.Shards()
			left--
		}
	}
	return nil
}

// SweeperLedger is what the sweeper needs of the ledger.
type SweeperLedger interface {
	Schedule
	Fire(ctx context.Context, entry ledger.Entry, event statemachine.Event) (ledger.FireOutcome, ledger.Result, error)
}

// SweeperConfig configures a [Sweeper].
type SweeperConfig struct {
	// Ledger holds the jobs. Required.
	Ledger SweeperLedger
	// Page is the most entries that are read at once. Optional. Defaults to 256.
	Page int
	// Parallel is how many entries are fired concurrently. Optional. Defaults to 16.
	Parallel int
	// Outages returns when outages of the bus ended during which workers could not be
	// reached, or could not report. Optional: the pull queue has no such outages.
	Outages func(ctx context.Context) (Outages, error)
	// Random returns numbers in [0, 1), for the shard at which a pass begins.
	// Optional. Defaults to math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Logger logs entries that could not be fired. Optional.
	Logger *slog.Logger
	// Observe is called after each pass that read an entry. Optional.
	Observe func(SweeperPass)
}

// Outages is when outages of the bus ended. An outage that goes on ends now.
type Outages struct {
	// Topic returns the end of a topic's last outage, or of the whole bus's if that was
	// later; the zero time if there was none.
	Topic func(topic string) time.Time
	// Replies is the end of the last outage of the reply topics.
	Replies time.Time
}

// SweeperPass is what one pass of a [Sweeper] did.
type SweeperPass struct {
	Read      int                        // schedule entries read
	Standings map[ledger.FireOutcome]int // of the entries that were fired
	Failed    int                        // entries that could not be fired; they stay
	// Late is how long the oldest entry was overdue, without those that are left alone
	// because their change may still commit.
	Late time.Duration
}

// Sweeper acts on deadlines: ACK timeouts, expired leases, retries that came due,
// rows that the hot path did not publish in time, and unfinished work after a
// job's end. Any number may run on one store.
//
// It never searches for such jobs. Each job with anything left to do has an entry in
// the schedule at or before its next deadline, so a pass reads the due part of one
// partition per shard and nothing else:
//
//	timer:000  ──▶ due entries ──▶ Fire ──▶ load, decide, commit
//	timer:001  ──▶ (nothing due: one short read)
//	   …
//
// Each pass starts at a random shard. Deadlines that passed while workers could not
// report, because the process or the store was down or the host was suspended, get a
// grace first; see [statemachine.DeadlinePassed].
type Sweeper struct {
	cfg SweeperConfig
	// outage is when the last outage ended: the start of the process, the first
	// pass that read the store again, or the first one after a standstill.
	outage time.Time
	down   bool // the store did not answer the last pass
	// next[shard] is where the next pass begins, empty at the start of the shard.
	next []string
}

// NewSweeper returns a sweeper that treats the time until now as an outage: workers
// could not report while the process was down.
func NewSweeper(cfg SweeperConfig) (*Sweeper, error) {
	if cfg.Ledger == nil {
		return nil, errors.New("sweeper: Ledger is required")
	}
	cfg.Page = cmp.Or(cfg.Page, 256)
	cfg.Parallel = cmp.Or(cfg.Parallel, 16)
	if cfg.Page < 0 || cfg.Parallel < 0 {
		return nil, errors.New("sweeper: Page and Parallel must be positive")
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(SweeperPass) {}
	}
	return &Sweeper{cfg: cfg, outage: time.Now(), next: make([]string, cfg.Ledger.Shards())}, nil
}

// Loop returns the loop that sweeps.
func (s *Sweeper) Loop() Loop {
	return Loop{Name: "sweeper", Resumed: func(now time.Time) { s.outage = now }, Pass: func(ctx context.Context) error {
		_, err := s.RunOnce(ctx)
		return err
	}}
}

// RunOnce fires the due timers. An entry that cannot be fired stays, and does not hold
// up the others; the error is that of reading the schedule. One pass runs at a time.
func (s *Sweeper) RunOnce(ctx context.Context) (SweeperPass, error) {
	if s.down { // This pass may be the first to find the store back.
		s.outage = time.Now()
	}
	pass, err := s.sweep(ctx)
	s.down = errors.Is(err, tablestore.ErrUnavailable) || s.down && err != nil
	if pass.Read > 0 {
		s.cfg.Observe(pass)
	}
	if err != nil {
		return pass, fmt.Errorf("sweep: %w", err)
	}
	return pass, nil
}

// sweep fires the due timers of all shards. It returns the first error of reading them.
func (s *Sweeper) sweep(ctx context.Context) (SweeperPass, error) {
	now := time.Now()
	var bus Outages
	if s.cfg.Outages != nil {
		var err error
		if bus, err = s.cfg.Outages(ctx); err != nil {
			return SweeperPass{}, err
		}
	}
	pass := SweeperPass{Standings: map[ledger.FireOutcome]int{}}
	var mu sync.Mutex // guards pass
	fire := func(entry ledger.Entry) {
		event := statemachine.DeadlinePassed{Topic: bus.Topic, Replies: bus.Replies}
		if entry.Due.Before(s.outage) {
			event.Outage = s.outage
		}
		standing, result, err := s.cfg.Ledger.Fire(ctx, entry, event)
		if err == nil && result.PostErr != nil {
			err = fmt.Errorf("after the commit: %w", result.PostErr)
		}
		if err != nil && ctx.Err() == nil { // When the process stops, the next one fires it.
			s.cfg.Logger.WarnContext(ctx, "deadline not handled", entry.Fields().With("error", err)...)
		}
		mu.Lock()
		defer mu.Unlock()
		pass.Read++
		if standing != ledger.Early {
			pass.Late = max(pass.Late, now.Sub(entry.Due))
		}
		if err != nil {
			pass.Failed++
		} else {
			pass.Standings[standing]++
		}
	}
	shards := s.cfg.Ledger.Shards()
	start := int(s.cfg.Random() * float64(shards))
	var firstErr error
	for i := range shards {
		if err := s.sweepShard(ctx, (start+i)%shards, now, fire); err != nil && firstErr == nil {
			firstErr = err
		}
	}
	return pass, firstErr
}

// sweepShard fires the due entries of one shard page by page, those of a page
// concurrently. Entries that stay, however many, do not hide the ones after them.
func (s *Sweeper) sweepShard(ctx context.Context, shard int, now time.Time, fire func(ledger.Entry)) error {
	for read := 0; read < sweepLimit; {
		entries, next, err := s.cfg.Ledger.Due(ctx, ledger.Timer, shard, now, s.cfg.Page, s.next[shard])
		if err != nil {
			return err
		}
		var group errgroup.Group
		group.SetLimit(s.cfg.Parallel)
		for _, entry := range entries {
			group.Go(func() error {
				fire(entry)
				return nil
			})
		}
		_ = group.Wait() // fire counts the errors.
		read += len(entries)
		if s.next[shard] = next; next == "" {
			break
		}
	}
	return nil
}

// RetentionLedger is what the retention needs of the ledger.
type RetentionLedger interface {
	Schedule
	Purge(ctx context.Context, entry ledger.Entry) (ledger.Purged, error)
}

// RetentionConfig configures a [Retention].
type RetentionConfig struct {
	// Ledger holds the jobs. Required.
	Ledger RetentionLedger
	// PassLimit is the most jobs that one pass purges, so that a backlog of them never
	// competes with the work at hand. Optional. Defaults to 50.
	PassLimit int
	// Random returns numbers in [0, 1), for the shard at which the first pass begins:
	// replicas that begin at different ones seldom purge the same job side by side.
	// Optional. Defaults to math/rand/v2.
	Random func() float64
	// Logger logs jobs that could not be purged. Optional.
	Logger *slog.Logger
	// Observe is called after each purge. Optional.
	Observe func(ledger.Purged)
}

// Retention purges ended jobs when their retention has passed. [ledger.Ledger.Purge]
// decides what a purge deletes, and in which order; the schedule entry of one that fails
// or is cut short stays. Any number may run on one store.
type Retention struct {
	cfg  RetentionConfig
	next cursor // where the next pass begins
}

// NewRetention returns a retention. The error names the invalid field.
func NewRetention(cfg RetentionConfig) (*Retention, error) {
	if cfg.Ledger == nil {
		return nil, errors.New("retention: Ledger is required")
	}
	if cfg.PassLimit = cmp.Or(cfg.PassLimit, 50); cfg.PassLimit < 0 {
		return nil, errors.New("retention: PassLimit must be positive")
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(ledger.Purged) {}
	}
	return &Retention{cfg: cfg, next: cursor{shard: int(cfg.Random() * float64(cfg.Ledger.Shards()))}}, nil
}

// Loop returns the loop that purges.
func (r *Retention) Loop() Loop {
	return Loop{Name: "retention", Pass: func(ctx context.Context) error {
		_, err := r.RunOnce(ctx)
		return err
	}}
}

// RunOnce tries to purge at most PassLimit jobs. A job that cannot be purged keeps its
// entry, and does not hold up the others. The error is that of reading the schedule. One
// pass runs at a time. It goes on when the disk is too full for other writes.
func (r *Retention) RunOnce(ctx context.Context) (Pass, error) {
	ctx = tablestore.Reclaiming(ctx)
	var pass Pass
	room := func() int { return r.cfg.PassLimit - pass.Done }
	err := r.next.round(ctx, r.cfg.Ledger, ledger.Retention, room, func(entry ledger.Entry) {
		pass.Done++
		outcome, err := r.cfg.Ledger.Purge(ctx, entry)
		if err != nil {
			r.cfg.Logger.WarnContext(ctx, "job not purged", entry.Fields().With("error", err)...)
			return
		}
		r.cfg.Observe(outcome)
	})
	if err != nil {
		return pass, fmt.Errorf("retention: %w", err)
	}
	pass.More = room() == 0
	return pass, nil
}
