package inbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/problem"
)

const (
	batchSize = 64
	// leastWait and mostWait bound how long a command waits that could not be accepted now.
	leastWait = time.Second
	mostWait  = 30 * time.Second
)

// Config configures a [Reader].
type Config struct {
	// Source is where the commands are. Required.
	Source Source
	// Accept accepts a command, and returns its job. Its errors are [*problem.Error]s. It is
	// called from several goroutines. Required.
	Accept func(ctx context.Context, command *Command) (jobID string, err error)
	// Retention is how long a discarded command is kept; 0 is for ever.
	Retention time.Duration
	// Logger logs refused commands. Optional.
	Logger *slog.Logger
	// Observe is called with what was decided of each command. Optional.
	Observe func(decision Decision)
}

// Decision is what was decided of a command.
type Decision string

// The decisions. A command that waits is decided on again.
const (
	Accepts Decision = "accepted"
	Refuses Decision = "refused"
	Waits   Decision = "waits"
)

// Reader takes commands from the inbox. It is safe for concurrent use, but a process needs
// one pass at a time.
type Reader struct {
	cfg    Config
	survey atomic.Pointer[Survey]
	cursor string // of Forget; used by one goroutine
}

// NewReader returns a reader. The error names the missing field.
func NewReader(cfg Config) (*Reader, error) {
	if cfg.Source == nil || cfg.Accept == nil {
		return nil, errors.New("inbox: Source and Accept are required")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(Decision) {}
	}
	r := &Reader{cfg: cfg}
	r.survey.Store(&Survey{})
	return r, nil
}

// RunOnce takes commands until none is due.
func (r *Reader) RunOnce(ctx context.Context) error {
	for {
		taken, err := r.cfg.Source.Take(ctx, batchSize, r.acceptAll)
		if err != nil || taken < batchSize || ctx.Err() != nil {
			return err
		}
	}
}

// acceptAll accepts the commands at the same time, so that they share the store's syncs.
func (r *Reader) acceptAll(ctx context.Context, taken []Command) []Outcome {
	outcomes := make([]Outcome, len(taken))
	var group sync.WaitGroup
	for i := range taken {
		group.Go(func() { outcomes[i] = r.accept(ctx, &taken[i]) })
	}
	group.Wait()
	return outcomes
}

// accept accepts one command.
func (r *Reader) accept(ctx context.Context, command *Command) Outcome {
	jobID, err := r.cfg.Accept(ctx, command)
	if err == nil {
		r.cfg.Observe(Accepts)
		return Outcome{JobID: jobID}
	}
	fault := problem.From(err)
	outcome := Outcome{Problem: fault}
	log := []any{"command_id", command.ID, "tenant_id", command.TenantID, "error", err}
	switch fault.Code {
	case problem.TenantLimit, problem.RateLimited, problem.Conflict, problem.StoreUnavailable, problem.ShuttingDown:
		outcome.Wait = waitOf(fault, command.Tries)
	case problem.Internal:
		outcome.Wait = waitOf(fault, command.Tries)
		r.cfg.Logger.ErrorContext(ctx, "submitted command could not be accepted", log...)
	default:
		r.cfg.Observe(Refuses)
		r.cfg.Logger.WarnContext(ctx, "submitted command refused", log...)
		return outcome
	}
	r.cfg.Observe(Waits)
	return outcome
}

// waitOf returns how long a command waits that had to wait that often before.
func waitOf(fault *problem.Error, tries int) time.Duration {
	wait := mostWait
	if tries < 5 {
		wait = min(leastWait<<tries, mostWait)
	}
	return max(wait, fault.RetryAfter)
}

// Maintain counts the commands, and forgets those whose job was purged.
func (r *Reader) Maintain(ctx context.Context) error {
	survey, err := r.cfg.Source.Survey(ctx)
	if err != nil {
		return err
	}
	r.survey.Store(&survey)
	r.cursor, _, err = r.cfg.Source.Forget(ctx, r.cursor, r.cfg.Retention)
	return err
}

// Survey returns the counts of the last [Reader.Maintain]. A nil reader has no commands.
func (r *Reader) Survey() Survey {
	if r == nil {
		return Survey{}
	}
	return *r.survey.Load()
}
