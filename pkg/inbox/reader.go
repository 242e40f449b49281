package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
)

const (
	batchSize = 64
	// concurrency is how many commands are decoded and accepted concurrently.
	concurrency = 16
	// minWait and maxWait bound how long a command waits for the next attempt.
	minWait = time.Second
	maxWait = 30 * time.Second
	// passTime bounds a pass, so that a reader that always has work still reports its
	// passes.
	passTime = 30 * time.Second
	// settleTime is how long a pass waits for transactions that were committing when the
	// source notified of another one. They do not notify themselves.
	settleTime = 50 * time.Millisecond
)

// Config configures a [Reader].
type Config struct {
	// Source stores the commands. Required.
	Source Source
	// Accept accepts a command, and returns its job. Its errors are [*apierror.Error]s.
	// Required. It must be safe for concurrent use.
	Accept func(ctx context.Context, command *Command) (jobID string, err error)
	// Find returns the job that an earlier attempt has created for a command, or "". Its
	// errors are [*apierror.Error]s. Required. It must be safe for concurrent use.
	Find func(ctx context.Context, command *Command) (jobID string, err error)
	// Retention is how long decided commands are kept; 0 is forever.
	Retention time.Duration
	// Grace is how long after its submission a command waits if this replica's protocols do
	// not accept it: during a deployment, an application may know a protocol before the
	// replica does. Optional.
	Grace time.Duration
	// Logger logs commands that were refused or could not be accepted. Optional.
	Logger *slog.Logger
	// Observe is called with the decision about each command. Optional. It must be safe for
	// concurrent use.
	Observe func(decision Decision)
}

// Decision is the decision about a command.
type Decision string

// The decisions. A command that waits is decided again.
const (
	Accepts Decision = "accepted"
	Refuses Decision = "refused"
	Waits   Decision = "waits"
)

// Reader accepts the commands of an inbox. It is safe for concurrent use, but more than one
// pass at a time gains nothing.
type Reader struct {
	cfg    Config
	survey atomic.Pointer[Survey]

	mu      sync.Mutex           // Guards limited.
	limited map[string]time.Time // tenant at a limit → until when its commands are skipped
}

// NewReader returns a reader. The error names the missing field.
func NewReader(cfg Config) (*Reader, error) {
	if cfg.Source == nil || cfg.Accept == nil || cfg.Find == nil {
		return nil, errors.New("inbox: Source, Accept and Find are required")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(Decision) {}
	}
	r := &Reader{cfg: cfg, limited: map[string]time.Time{}}
	r.survey.Store(&Survey{})
	return r, nil
}

// RunOnce accepts commands until none is due, for at most half a minute. If it took some, it
// looks once more a moment after the last.
func (r *Reader) RunOnce(ctx context.Context) error {
	settled := true
	for began := time.Now(); time.Since(began) < passTime; {
		taken, err := r.cfg.Source.Take(ctx, batchSize, r.tenantsAtLimit(), r.acceptAll)
		if err != nil || taken == 0 && settled || ctx.Err() != nil {
			return err
		}
		if settled = taken == 0; settled {
			select {
			case <-time.After(settleTime):
			case <-ctx.Done():
				return nil
			}
		}
	}
	return nil
}

// tenantsAtLimit returns the tenants whose commands are skipped now.
func (r *Reader) tenantsAtLimit() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.limited, func(_ string, until time.Time) bool { return !time.Now().Before(until) })
	return slices.Collect(maps.Keys(r.limited))
}

// atLimit reports whether the tenant's commands are skipped now.
func (r *Reader) atLimit(tenantID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.limited[tenantID])
}

// limit skips the tenant's commands until the problem may be over, with a jitter so that
// replicas try again at different times.
func (r *Reader) limit(tenantID string, fault *apierror.Error) {
	pause := max(minWait, fault.RetryAfter)
	pause += rand.N(pause / 4) //nolint:gosec // jitter is not a secret
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limited[tenantID] = time.Now().Add(pause)
}

// acceptAll accepts commands concurrently, so that they share the store's syncs, and those of
// one order key one after another. Once a tenant is at its limit, the rest of its commands are
// put back, and once a command waits, the rest of its key.
func (r *Reader) acceptAll(ctx context.Context, taken []Command) []Outcome {
	outcomes := make([]Outcome, len(taken))
	sequences := sequencesOf(taken)
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(concurrency, len(sequences)) {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(sequences)); i = next.Add(1) - 1 {
				waits := false
				for _, at := range sequences[i] {
					outcomes[at] = r.try(ctx, &taken[at], waits)
					waits = waits || outcomes[at].Wait > 0 || outcomes[at].PutBack && !taken[at].Discard
				}
			}
		})
	}
	group.Wait()
	return outcomes
}

// sequencesOf returns the indexes of the commands, those of one order key in one sequence.
func sequencesOf(taken []Command) (sequences [][]int) {
	type line struct{ tenantID, key string }
	found := map[line]int{}
	for at := range taken {
		key := line{taken[at].TenantID, taken[at].OrderKey}
		in, known := found[key]
		if !known || key.key == "" {
			in, sequences = len(sequences), append(sequences, nil)
			found[key] = in
		}
		sequences[in] = append(sequences[in], at)
	}
	return sequences
}

// try discards a command, puts it back if its tenant is at a limit or a command before it
// waits, or accepts it.
func (r *Reader) try(ctx context.Context, command *Command, behind bool) Outcome {
	switch {
	case command.Discard:
		return r.discard(ctx, command)
	case behind, r.atLimit(command.TenantID):
		return Outcome{PutBack: true, Unsure: command.Unsure}
	}
	return r.accept(ctx, command)
}

// accept accepts one command.
func (r *Reader) accept(ctx context.Context, command *Command) Outcome {
	jobID, err := r.call(ctx, r.cfg.Accept, command)
	if err == nil {
		r.cfg.Observe(Accepts)
		return Outcome{JobID: jobID}
	}
	fault := apierror.From(err)
	outcome := Outcome{Problem: fault}
	log := []any{"command_id", command.ID, "tenant_id", command.TenantID, "tries", command.Tries, "error", err}
	switch fault.Code {
	case apierror.TenantLimit:
		r.limit(command.TenantID, fault)
		outcome.PutBack = true
	case apierror.RateLimited: // The ledger did not look for a job, so Unsure stays.
		r.limit(command.TenantID, fault)
		outcome.PutBack, outcome.Unsure = true, command.Unsure
	case apierror.Conflict, apierror.StoreUnavailable, apierror.ShuttingDown:
		outcome.Wait, outcome.Unsure = waitOf(fault, command.Tries), true
	case apierror.Internal:
		outcome.Wait, outcome.Unsure = waitOf(fault, command.Tries), true
		r.cfg.Logger.ErrorContext(ctx, "submitted command could not be accepted", log...)
	case apierror.LineFull: // The tenant's other commands go on.
		outcome.Wait = waitOf(fault, command.Tries)
	default:
		if fault.Unfit && time.Since(command.SubmittedAt) < r.cfg.Grace {
			outcome.Wait = waitOf(fault, command.Tries)
			break
		}
		r.cfg.Observe(Refuses)
		r.cfg.Logger.WarnContext(ctx, "submitted command refused", log...)
		return outcome
	}
	r.cfg.Observe(Waits)
	return outcome
}

// discard checks whether a command to be discarded is already a job.
func (r *Reader) discard(ctx context.Context, command *Command) Outcome {
	jobID, err := r.call(ctx, r.cfg.Find, command)
	switch {
	case err != nil:
		fault := apierror.From(err)
		return Outcome{Problem: fault, Wait: waitOf(fault, command.Tries), Unsure: true}
	case jobID != "":
		return Outcome{JobID: jobID}
	}
	return Outcome{PutBack: true}
}

// call calls Accept or Find. It turns a panic into an error, so that one command cannot
// crash every process that takes it.
func (r *Reader) call(ctx context.Context, verb func(context.Context, *Command) (string, error), command *Command,
) (jobID string, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			r.cfg.Logger.ErrorContext(ctx, "panic", "command_id", command.ID, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			err = &apierror.Error{Code: apierror.Internal, Err: fmt.Errorf("panic: %v", cause)}
		}
	}()
	return verb(ctx, command)
}

// waitOf returns how long a command waits after that many earlier attempts.
func waitOf(fault *apierror.Error, tries int) time.Duration {
	wait := maxWait
	if tries < 5 {
		wait = min(minWait<<tries, maxWait)
	}
	return max(wait, fault.RetryAfter)
}

// Maintain counts the commands, and deletes old ones as [Source] Forget does, for at most
// half a minute.
func (r *Reader) Maintain(ctx context.Context) error {
	survey, err := r.cfg.Source.Survey(ctx)
	if err != nil {
		return err
	}
	r.survey.Store(&survey)
	if r.cfg.Retention == 0 {
		return nil
	}
	cursor := ""
	for began := time.Now(); time.Since(began) < passTime && ctx.Err() == nil; {
		if cursor, _, err = r.cfg.Source.Forget(ctx, cursor, r.cfg.Retention); err != nil || cursor == "" {
			return err
		}
	}
	return nil
}

// Survey returns the counts of the last [Reader.Maintain]. Those of a nil reader are zero.
func (r *Reader) Survey() Survey {
	if r == nil {
		return Survey{}
	}
	return *r.survey.Load()
}
