package background

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

// SweeperLedger is the part of the ledger that a [Sweeper] needs.
type SweeperLedger interface {
	ledger.Schedule
	Fire(ctx context.Context, entry ledger.Entry, event statemachine.Event) (ledger.FireOutcome, ledger.Result, error)
}

// SweeperConfig configures a [Sweeper].
type SweeperConfig struct {
	// Ledger holds the jobs. Required.
	Ledger SweeperLedger
	// Kind is [ledger.Timer], or [ledger.Date] for jobs that have not begun: a sweeper of its own, so
	// that a million due dates do not delay a lease. Optional. Defaults to Timer.
	Kind ledger.Kind
	// Page is the most entries that are read at once. Optional. Defaults to 256.
	Page int
	// Parallel is how many entries are fired concurrently. Optional. Defaults to 16.
	Parallel int
	// Outages returns when the bus last became available again, for directives and for
	// replies. Optional: the pull queue has no such outages.
	Outages func(ctx context.Context) (Outages, error)
	// Random is that of the [ledger.Walker]. Optional.
	Random func() float64
	// Logger logs entries that could not be fired. Optional.
	Logger *slog.Logger
	// Observe is called after each pass, except if the store was unavailable before it read an
	// entry. Optional.
	Observe func(SweeperPass)
}

// Outages is when outages of the bus ended; an outage that has not ended counts as ending
// now. The zero time means that there was none.
type Outages struct {
	// Topic returns the end of the last outage of a topic or of the whole bus.
	Topic func(topic string) time.Time
	// Replies is the end of the last outage of the reply topics.
	Replies time.Time
}

// SweeperPass is what one pass of a [Sweeper] did.
type SweeperPass struct {
	Read     int                        // schedule entries read
	Outcomes map[ledger.FireOutcome]int // of the entries that were fired
	Failed   int                        // entries that could not be fired; they stay
	// Late is how long the oldest entry was overdue, except for entries that must wait
	// because their change may still commit.
	Late time.Duration
}

// Sweeper acts on deadlines: ACK timeouts, expired leases, due retries, rows that the hot
// path did not publish in time, and unfinished work after a job's end. Any number may run
// on one store.
//
// It never searches for such jobs. Each job with anything left to do has an entry in
// the schedule at or before its next deadline, so a pass reads the due part of one
// partition per shard and nothing else. With a slow store, shards one after the other would
// take as long as all of their reads, so they are walked concurrently.
//
// Deadlines that passed while workers could not report, because the process or the store was
// down or the host was suspended, get a grace first; see [statemachine.DeadlinePassed].
type Sweeper struct {
	cfg SweeperConfig
	// outage is when the last outage ended: the start of the process, or of the first
	// pass after the store was unavailable or the process suspended.
	outage time.Time
	down   bool // the store was unavailable in the last pass, or accepted no write
	// unwritable are the jobs that could not be written in the last pass that wrote another one.
	unwritable map[string]bool
	walk       ledger.Walker
}

// NewSweeper returns a sweeper. It treats the time until now as an outage, because workers
// could not report while the process was down.
func NewSweeper(cfg SweeperConfig) *Sweeper {
	cfg.Kind = cmp.Or(cfg.Kind, ledger.Timer)
	cfg.Page = cmp.Or(cfg.Page, 256)
	cfg.Parallel = cmp.Or(cfg.Parallel, 16)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(SweeperPass) {}
	}
	return &Sweeper{cfg: cfg, outage: time.Now(), walk: ledger.Walker{
		Schedule: cfg.Ledger, Kind: cfg.Kind, Page: cfg.Page, Parallel: cfg.Parallel, Random: cfg.Random,
	}}
}

// Loop returns the loop that sweeps.
func (s *Sweeper) Loop() Loop {
	name := "sweeper"
	if s.cfg.Kind == ledger.Date {
		name = "dates"
	}
	return Loop{Name: name, Resumed: func(now time.Time) { s.outage = now }, Pass: func(ctx context.Context) error {
		_, err := s.RunOnce(ctx)
		return err
	}}
}

// RunOnce fires the due timers. An entry that cannot be fired stays and does not hold up
// the others, nor does a row of the schedule that cannot be decoded; the error is one of
// reading the schedule or the outages. One pass runs at a time.
func (s *Sweeper) RunOnce(ctx context.Context) (SweeperPass, error) {
	if s.down { // This pass may be the first to find the store back.
		s.outage = time.Now()
	}
	pass, unwritten, err := s.sweep(ctx)
	// A full disk can be read. Jobs that cannot be written while others can are no outage: it would put off
	// every deadline, for as long as they are due.
	readOnly := false
	if pass.Read > pass.Failed+pass.Outcomes[ledger.Early] {
		s.unwritable = unwritten
	} else {
		for jobID := range unwritten {
			readOnly = readOnly || !s.unwritable[jobID]
		}
	}
	s.down = errors.Is(err, tablestore.ErrUnavailable) || readOnly
	if pass.Read > 0 || !s.down && !errors.Is(err, tablestore.ErrCorrupt) { // A page that was not read may have late entries.
		s.cfg.Observe(pass)
	}
	if err != nil {
		return pass, fmt.Errorf("sweep: %w", err)
	}
	return pass, nil
}

// sweep fires the due timers of all shards. It returns the jobs for which the store was not available,
// and the first error of reading the timers, or the outages.
func (s *Sweeper) sweep(ctx context.Context) (SweeperPass, map[string]bool, error) {
	now := time.Now()
	var bus Outages
	if s.cfg.Outages != nil {
		var err error
		if bus, err = s.cfg.Outages(ctx); err != nil {
			return SweeperPass{}, nil, err
		}
	}
	pass, unwritten := SweeperPass{Outcomes: map[ledger.FireOutcome]int{}}, map[string]bool{}
	var mu sync.Mutex // guards both
	fire := func(entry ledger.Entry) {
		event := statemachine.DeadlinePassed{By: now, Topic: bus.Topic, Replies: bus.Replies}
		if entry.Due.Before(s.outage) {
			event.Outage = s.outage
		}
		outcome, result, err := s.cfg.Ledger.Fire(ctx, entry, event)
		if err == nil && result.PostErr != nil {
			err = fmt.Errorf("after the commit: %w", result.PostErr)
		}
		if err != nil && ctx.Err() == nil { // If the process stops, another fires the entry.
			s.cfg.Logger.WarnContext(ctx, "deadline not handled", entry.Fields().With("error", err)...)
		}
		mu.Lock()
		defer mu.Unlock()
		pass.Read++
		if outcome != ledger.Early {
			pass.Late = max(pass.Late, now.Sub(entry.Due))
		}
		switch {
		case tablestore.IsOutage(err):
			unwritten[entry.JobID] = true
			pass.Failed++
		case err != nil:
			pass.Failed++
		default:
			pass.Outcomes[outcome]++
		}
	}
	permits := make(chan struct{}, s.cfg.Parallel)
	err := s.walk.Pass(ctx, func() int { return s.cfg.Page }, func(entries []ledger.Entry) bool {
		var group sync.WaitGroup
		for _, entry := range entries {
			permits <- struct{}{}
			group.Go(func() {
				defer func() { <-permits }()
				fire(entry)
			})
		}
		group.Wait()
		return true
	})
	return pass, unwritten, err
}
