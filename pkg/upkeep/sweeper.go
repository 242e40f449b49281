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

// Schedule is the part of the ledger by which due work is found.
type Schedule interface {
	Shards() int
	Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
	) ([]ledger.Entry, string, error)
}

// SweeperLedger is what the sweeper needs of the ledger.
type SweeperLedger interface {
	Schedule
	Fire(ctx context.Context, entry ledger.Entry, event statemachine.Event) (ledger.Standing, ledger.Result, error)
}

// SweeperConfig is what a [Sweeper] is made of.
type SweeperConfig struct {
	// Ledger holds the jobs. Required.
	Ledger SweeperLedger
	// Page is the most entries that are read at once. Optional. Defaults to 256.
	Page int
	// PassLimit is the most entries that one pass takes from one shard, so that
	// no shard waits for another's backlog. Optional. Defaults to 4096.
	PassLimit int
	// Parallel is the number of jobs looked at side by side. Optional. Defaults
	// to 16.
	Parallel int
	// Outages says when outages of the bus ended in which workers could not be reached,
	// or could not report. Optional: without it there are none, as on the pull queue.
	Outages func(ctx context.Context) (Outages, error)
	// Random returns numbers in [0, 1), for the shard at which a pass begins.
	// Optional. Defaults to math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Logger is told of jobs that could not be looked at. Optional.
	Logger *slog.Logger
	// Observe is told of each pass that found something. Optional.
	Observe func(SweeperPass)
}

// Outages is when outages of the bus ended. One that goes on ends now.
type Outages struct {
	// Topic is that of a topic, or of the whole bus if that was later; the zero time
	// where there was none.
	Topic func(topic string) time.Time
	// Replies is that of the way back.
	Replies time.Time
}

// SweeperPass is what one pass of a [Sweeper] did.
type SweeperPass struct {
	Read      int                     // schedule entries read
	Standings map[ledger.Standing]int // of the entries that were fired
	Failed    int                     // entries that could not be handled; they stay
	// Late is how far behind the oldest entry was.
	Late time.Duration
}

// Sweeper acts on deadlines: ACK timeouts, expired leases, retries that came due,
// rows that the hot path did not publish in time, and what is left to do after a
// job's end. Any number may run on one store.
//
// It never looks for such jobs. Each job with anything left to do has an entry in
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

	mu sync.Mutex
	// outage is when the last outage ended: the start of the process, the first
	// pass that read the store again, or the first one after a standstill.
	outage time.Time
	down   bool
}

// NewSweeper returns a sweeper that takes the time until now for an outage: workers
// could not report while the process was down.
func NewSweeper(cfg SweeperConfig) (*Sweeper, error) {
	if cfg.Ledger == nil {
		return nil, errors.New("sweeper: Ledger is required")
	}
	cfg.Page = cmp.Or(cfg.Page, 256)
	cfg.PassLimit = cmp.Or(cfg.PassLimit, 4096)
	cfg.Parallel = cmp.Or(cfg.Parallel, 16)
	if cfg.Page < 0 || cfg.PassLimit < 0 || cfg.Parallel < 0 {
		return nil, errors.New("sweeper: Page, PassLimit and Parallel must be positive")
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(SweeperPass) {}
	}
	return &Sweeper{cfg: cfg, outage: time.Now()}, nil
}

// Loop returns the loop that sweeps.
func (s *Sweeper) Loop() Loop {
	return Loop{Name: "sweeper", Resumed: s.resumed, Pass: func(ctx context.Context) error {
		_, err := s.RunOnce(ctx)
		return err
	}}
}

// RunOnce looks at the jobs whose timer is due. A job that cannot be handled
// keeps its entry and does not hold up the others; the error is that of
// reading the schedule.
func (s *Sweeper) RunOnce(ctx context.Context) (SweeperPass, error) {
	now := time.Now()
	pass := &sweep{sweeper: s, now: now, outage: s.outageEnd(now)}
	if s.cfg.Outages != nil {
		var err error
		if pass.bus, err = s.cfg.Outages(ctx); err != nil {
			s.note(err)
			return SweeperPass{}, fmt.Errorf("sweep: %w", err)
		}
	}
	pass.done.Standings = map[ledger.Standing]int{}
	shards := s.cfg.Ledger.Shards()
	start := int(s.cfg.Random() * float64(shards))
	var firstErr error
	for i := range shards {
		if err := pass.shard(ctx, (start+i)%shards); err != nil && firstErr == nil {
			firstErr = fmt.Errorf("sweep: %w", err)
		}
	}
	s.note(firstErr)
	if pass.done.Read > 0 {
		s.cfg.Observe(pass.done)
	}
	return pass.done, firstErr
}

// resumed takes the time until now for an outage: the process stood still.
func (s *Sweeper) resumed(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage = now
}

// outageEnd is when the last outage ended: now, for a pass that may be the
// first to find the store back.
func (s *Sweeper) outageEnd(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		s.outage = now
	}
	return s.outage
}

// note keeps track of outages of the store: when it answers again, deadlines
// that passed meanwhile get their grace.
func (s *Sweeper) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.down = s.down || errors.Is(err, tablestore.ErrUnavailable)
		return
	}
	s.down = false
}

// sweep is one pass over the schedule.
type sweep struct {
	sweeper *Sweeper
	now     time.Time
	outage  time.Time
	bus     Outages

	mu   sync.Mutex
	done SweeperPass
}

// shard handles the due entries of one shard, page by page. What it leaves
// alone it reads past, so that it hides nothing behind it.
func (p *sweep) shard(ctx context.Context, shard int) error {
	from := ""
	for read := 0; read < p.sweeper.cfg.PassLimit; {
		entries, next, err := p.sweeper.cfg.Ledger.Due(ctx, ledger.Timer, shard, p.now, p.sweeper.cfg.Page, from)
		if err != nil {
			return err
		}
		p.page(ctx, entries)
		read += len(entries)
		if from = next; from == "" {
			break
		}
	}
	return nil
}

// page fires the entries of one page side by side.
func (p *sweep) page(ctx context.Context, entries []ledger.Entry) {
	var group errgroup.Group
	group.SetLimit(p.sweeper.cfg.Parallel)
	for _, entry := range entries {
		group.Go(func() error {
			p.fire(ctx, entry)
			return nil
		})
	}
	_ = group.Wait() // The jobs' errors are counted one by one.
}

// fire handles one entry.
func (p *sweep) fire(ctx context.Context, entry ledger.Entry) {
	event := statemachine.DeadlinePassed{Topic: p.bus.Topic, Replies: p.bus.Replies}
	if entry.Due.Before(p.outage) {
		event.Outage = p.outage
	}
	standing, result, err := p.sweeper.cfg.Ledger.Fire(ctx, entry, event)
	if err == nil && result.PostErr != nil {
		err = fmt.Errorf("after the commit: %w", result.PostErr)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done.Read++
	p.done.Late = max(p.done.Late, p.now.Sub(entry.Due))
	if err != nil {
		p.done.Failed++
		if ctx.Err() == nil { // Else the process stops, and the next one handles it.
			p.sweeper.cfg.Logger.WarnContext(ctx, "deadline not handled", "jobId", entry.JobID, "error", err)
		}
		return
	}
	p.done.Standings[standing]++
}
