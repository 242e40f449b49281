// Package worker is a platform service that pulls its work over HTTP.
//
//	       ┌──────────── free slots ◀───────────┐
//	       ▼                                    │
//	claim (long poll, many at once, started)    │
//	       │                                    │
//	       ├──▶ handle ──▶ complete or fail ────┤
//	       │       ┆ heartbeats                 │
//	       ├──▶ handle ──▶ complete or fail ────┤
//	       ┆                                    ┆
//
// The worker survives restarts of the server. It retries a call without an answer,
// or answered with 408, 429 or 5xx, with growing delays and the same request id, so
// that the server repeats its answer and not the work. It retries a claim for as long
// as the worker runs, and a report or heartbeat until the server says that the
// attempt belongs to another worker.
//
// Delivery is at least once: a handler may see a directive again, and must be
// idempotent.
package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
)

// Config configures a [Worker].
type Config struct {
	// Client calls the server. Its transport must not have a timeout shorter than a
	// long poll of ClaimWait. Required.
	Client *api.ClientWithResponses
	// Owner is the worker's name, unique among the running workers. Required.
	Owner string
	// Services are the services whose steps the worker does. Optional. Defaults to all.
	Services []string
	// Handle does the work of one directive and returns the reference of its
	// result, a JSON object, or nil for none. It is called from many goroutines.
	// Its context ends with [ErrCancelled], [ErrLeaseLost] or [ErrStopped] as its
	// cause; it should return soon then. Required.
	Handle func(ctx context.Context, directive api.Directive) (json.RawMessage, error)
	// Permanent reports whether no other attempt can succeed after this error.
	// Optional. Defaults to never.
	Permanent func(error) bool
	// Parallel limits the directives in hand at once, up to 100. Optional. Defaults
	// to 4.
	Parallel int
	// ClaimWait is how long a claim waits for work, up to 60s. Optional. Defaults
	// to 20s.
	ClaimWait time.Duration
	// Grace is how long directives in hand may still take after a stop. Optional.
	// Defaults to 10s.
	Grace time.Duration
	// Log receives failures. Optional.
	Log *slog.Logger
}

// Validate returns an error that names the first invalid field.
func (c *Config) Validate() error {
	switch {
	case c.Client == nil:
		return errors.New("Client is required")
	case c.Owner == "":
		return errors.New("Owner is required")
	case c.Handle == nil:
		return errors.New("Handle is required")
	case c.Parallel < 0 || c.Parallel > api.MaxClaim:
		return fmt.Errorf("Parallel is %d, it must be from 1 to %d", c.Parallel, api.MaxClaim)
	case c.ClaimWait < 0 || c.ClaimWait > time.Minute:
		return fmt.Errorf("ClaimWait is %s, it must be at most a minute", c.ClaimWait)
	case c.Grace < 0:
		return fmt.Errorf("Grace is %s, it must not be negative", c.Grace)
	}
	return nil
}

// ErrStopped ends a handler's context when the grace after a stop is over.
var ErrStopped = errors.New("the worker has stopped")

// Worker pulls and does work. Create it with [New].
type Worker struct{ cfg Config }

// New returns a worker. The error names the invalid field.
func New(cfg Config) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if cfg.Permanent == nil {
		cfg.Permanent = func(error) bool { return false }
	}
	cfg.Parallel = cmp.Or(cfg.Parallel, 4)
	cfg.ClaimWait = cmp.Or(cfg.ClaimWait, 20*time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 10*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Worker{cfg: cfg}, nil
}

// Run works until the context ends, then finishes the items in hand within the grace
// and returns nil. It returns an error, a [*RefusedError], only if the server refuses
// a claim, which it would refuse again.
func (w *Worker) Run(ctx context.Context) error {
	finish, stop := afterwards(ctx, w.cfg.Grace)
	defer stop()
	slots := make(chan struct{}, w.cfg.Parallel)
	var inHand sync.WaitGroup
	defer inHand.Wait() // before stop
	for {
		free := take(ctx, slots)
		if free == 0 {
			return nil
		}
		items, err := w.claim(ctx, finish, free)
		for range free - len(items) {
			<-slots
		}
		if err != nil {
			return fmt.Errorf("worker %s: %w", w.cfg.Owner, err)
		}
		for i := range items {
			inHand.Go(func() {
				w.attend(finish, &items[i])
				<-slots
			})
		}
	}
}

// take takes all free slots, and waits for the first. It takes none once the context
// has ended.
func take(ctx context.Context, slots chan struct{}) int {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	if ctx.Err() != nil {
		<-slots
		return 0
	}
	for free := 1; ; free++ {
		select {
		case slots <- struct{}{}:
		default:
			return free
		}
	}
}

// claim claims and starts up to most items, and waits for the first. A claim that is
// interrupted by the context's end may have succeeded, so it is repeated once with
// the same request id and no wait; otherwise its items would stay claimed.
func (w *Worker) claim(ctx, finish context.Context, most int) ([]api.WorkItem, error) {
	request := api.ClaimRequest{
		Owner: w.cfg.Owner, Services: w.cfg.Services, Max: int32(most), WaitSeconds: w.cfg.ClaimWait.Seconds(),
		Start: true, RequestID: uuid.NewString(),
	}
	items, err := w.claimOnce(ctx, request)
	if ctx.Err() == nil || err == nil {
		return items, err
	}
	request.WaitSeconds = 0
	again, cancel := context.WithTimeout(finish, lastClaim)
	defer cancel()
	if items, err = w.claimOnce(again, request); err != nil {
		w.cfg.Log.WarnContext(ctx, "items may stay claimed: the last claim was not answered",
			"owner", w.cfg.Owner, "error", err)
	}
	return items, nil
}

// lastClaim is how long the repetition of an interrupted claim may take.
const lastClaim = 2 * time.Second

// claimOnce makes one claim and retries it until it is answered.
func (w *Worker) claimOnce(ctx context.Context, request api.ClaimRequest) (items []api.WorkItem, err error) {
	err = w.persist(ctx, func(ctx context.Context) (answer, error) {
		response, err := w.cfg.Client.ClaimWorkWithResponse(ctx, request)
		if err != nil {
			return answer{}, err
		}
		if response.JSON200 != nil {
			items = response.JSON200.Items
		}
		return answer{response.StatusCode(), response.Body, response.JSON200 != nil}, nil
	})
	return items, err
}

// afterwards returns a context that ends with [ErrStopped] when the grace after the
// given context's end is over.
func afterwards(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(ErrStopped)
		case <-later.Done():
		}
	})
	return later, func() {
		stop()
		cancel(ErrStopped)
	}
}
