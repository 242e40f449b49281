package background

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// cronDeadline bounds the work on one schedule: a command that hangs delays no other schedule for longer, and 15 not at
// all.
const cronDeadline = 30 * time.Second

// Schedules are the schedules that a [Cron] fires.
type Schedules interface {
	ledger.Schedule
	Act(ctx context.Context, entry ledger.Entry) (ledger.FireOutcome, error)
}

// CronConfig configures a [Cron].
type CronConfig struct {
	// Schedules holds the entries. Required.
	Schedules Schedules
	// Parallel is how many schedules are worked on at once. Optional. Defaults to 16.
	Parallel int
	// Logger logs schedules that could not be fired. Optional.
	Logger *slog.Logger
}

// Cron fires schedules whose entries are due. Any number may run on one store. A pass starts the work and does not wait for
// it, so that a slow one does not hold up the others; a schedule is worked on once at a time.
type Cron struct {
	cfg  CronConfig
	walk ledger.Walker
	work sync.WaitGroup
	wake chan struct{}

	mu   sync.Mutex // guards busy and full
	busy map[string]bool
	// full says that the last pass ended for want of room. The next work that succeeds then sends to wake.
	full bool
}

// NewCron returns a cron.
func NewCron(cfg CronConfig) *Cron {
	cfg.Parallel = cmp.Or(cfg.Parallel, 16)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Cron{
		cfg: cfg, walk: ledger.Walker{Schedule: cfg.Schedules}, wake: make(chan struct{}, 1), busy: map[string]bool{},
	}
}

// Loop returns the loop that fires schedules. While more may be due, the next pass starts as soon as there is room, so that
// many schedules that are due at once do not wait for one interval after the other.
func (c *Cron) Loop() Loop {
	return Loop{Name: "schedules", Wake: c.wake, Pass: func(ctx context.Context) error {
		_, err := c.RunOnce(ctx)
		return err
	}, Drain: c.work.Wait}
}

// Wait waits for the work that passes have started.
func (c *Cron) Wait() { c.work.Wait() }

// RunOnce starts the work on due entries, as far as there is room. The error is one of reading them. One pass runs at a time.
func (c *Cron) RunOnce(ctx context.Context) (pass Pass, err error) {
	err = c.walk.Pass(ctx, c.room, func(entries []ledger.Entry) bool {
		for _, entry := range entries {
			if !c.begin(entry.JobID) {
				continue // The next pass finds the entry again.
			}
			pass.Done++
			c.work.Go(func() { c.end(entry.JobID, c.act(ctx, entry)) })
		}
		return true
	})
	return pass, err
}

// act works on one entry. If another process was faster, that is no failure: it has done what was due.
func (c *Cron) act(ctx context.Context, entry ledger.Entry) error {
	bounded, cancel := context.WithTimeout(ctx, cronDeadline)
	defer cancel()
	_, err := c.cfg.Schedules.Act(bounded, entry)
	if errors.Is(err, tablestore.ErrConflict) || errors.Is(err, ledger.ErrClaimConflict) {
		return nil
	}
	if err != nil && ctx.Err() == nil {
		c.cfg.Logger.WarnContext(ctx, "schedule not fired", "schedule_id", entry.JobID, "error", err)
	}
	return err
}

// room returns how many more schedules can be worked on, at most 0 if the pass has to end.
func (c *Cron) room() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := c.cfg.Parallel - len(c.busy)
	c.full = free <= 0
	return free
}

// begin reports whether the schedule may be worked on.
func (c *Cron) begin(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[id] {
		return false
	}
	c.busy[id] = true
	return true
}

// end makes room, and asks for a pass if the last one found none. Failed work does not: if the store is unavailable, all work fails
// at once, and passes without a pause would log nothing but that.
func (c *Cron) end(id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, id)
	if !c.full || err != nil {
		return
	}
	c.full = false
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
