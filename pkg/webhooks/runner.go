package webhooks

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// settleTimeout bounds the write after an attempt, also while the process stops.
const settleTimeout = 10 * time.Second

// Runner sends what is due. Any number may run on one queue.
type Runner struct {
	cfg   RunnerConfig
	slots chan struct{} // one for each attempt under way
	freed chan struct{} // there is a slot again
	busy  sync.WaitGroup
}

// NewRunner returns a runner. The error names the field that makes no sense.
func NewRunner(cfg RunnerConfig) (*Runner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	full := cfg.withDefaults()
	return &Runner{cfg: full, slots: make(chan struct{}, full.Workers), freed: make(chan struct{}, 1)}, nil
}

// Run sends until the context ends. Attempts under way then are broken off, and
// left due.
func (r *Runner) Run(ctx context.Context) error {
	defer r.Wait()
	ticker := time.NewTicker(r.cfg.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		full, err := r.RunOnce(ctx)
		if err != nil && ctx.Err() == nil {
			r.cfg.Logger.ErrorContext(ctx, "due webhooks could not be taken", "error", err)
		}
		more := r.freed
		if !full {
			more = nil
		}
		select {
		case <-more:
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// RunOnce takes as many due deliveries as there are workers without one, and sets
// them to it; it does not wait for their attempts. It reports whether all workers
// are busy now, so that there may be more that is due. One pass runs at a time.
func (r *Runner) RunOnce(ctx context.Context) (full bool, err error) {
	select {
	case <-r.freed: // counted below
	default:
	}
	free := cap(r.slots) - len(r.slots)
	if free == 0 {
		return true, nil
	}
	claims, err := r.cfg.Queue.Take(ctx, free, r.cfg.Hold)
	for _, claim := range claims {
		r.slots <- struct{}{}
		r.busy.Go(func() {
			defer r.release()
			r.handle(ctx, claim)
		})
	}
	if err != nil {
		return false, fmt.Errorf("webhooks: %w", err)
	}
	return len(claims) >= free, nil
}

// Wait returns when no attempt is under way.
func (r *Runner) Wait() { r.busy.Wait() }

func (r *Runner) release() {
	<-r.slots
	select {
	case r.freed <- struct{}{}:
	default:
	}
}

// handle makes one attempt and writes what became of it.
func (r *Runner) handle(ctx context.Context, claim Claim) {
	delivery := claim.Delivery()
	next, result := r.attempt(ctx, delivery)
	r.cfg.Observe(result)
	// The attempt was made, whether the process goes on or not.
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	moved, err := claim.Settle(settle, next)
	switch {
	case err != nil:
		r.cfg.Logger.WarnContext(ctx, "webhook not settled; it will be sent again",
			"webhook_id", delivery.ID, "outcome", result.Outcome, "error", err)
	case !moved:
		r.cfg.Logger.WarnContext(ctx, "webhook settled by somebody else",
			"webhook_id", delivery.ID, "outcome", result.Outcome)
	}
}

func (r *Runner) attempt(ctx context.Context, delivery Delivery) (Delivery, Result) {
	now := time.Now()
	pass, turn := r.cfg.Gate.Enter(hostOf(delivery.URL), now)
	if pass == nil {
		return delivery.deferred(turn, now), Result{Outcome: Deferred, Reason: "the receiver's host is busy or in trouble"}
	}
	result := r.cfg.Send(ctx, delivery.message())
	now = time.Now()
	pass.Leave(result, now)
	return r.cfg.Policy.Apply(delivery, result, now, r.cfg.Random()), result
}
