package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

// Config is what a [Worker] is made of.
type Config struct {
	// Client calls the server. Required.
	Client *api.ClientWithResponses
	// Owner is the worker's name. Required.
	Owner string
	// Services are what the worker can do. Required.
	Services []string
	// Handle does the work of one directive and returns the reference of its
	// result. Required.
	Handle func(ctx context.Context, directive api.Directive) (json.RawMessage, error)
	// Permanent reports whether no other attempt can succeed after this error.
	// Optional. Defaults to never.
	Permanent func(error) bool
	// Parallel is the most directives at once. Optional. Defaults to 4.
	Parallel int
	// Log is told of failures. Optional.
	Log *slog.Logger
}

// Worker pulls and does work.
type Worker struct{ cfg Config }

// New returns a worker. The error names the field that is missing.
func New(cfg Config) (*Worker, error) {
	if cfg.Client == nil || cfg.Owner == "" || len(cfg.Services) == 0 || cfg.Handle == nil {
		return nil, errors.New("worker: Client, Owner, Services and Handle are required")
	}
	if cfg.Permanent == nil {
		cfg.Permanent = func(error) bool { return false }
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = 4
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Worker{cfg: cfg}, nil
}

// Run works until the context ends, and then finishes what it holds.
func (w *Worker) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		items, err := w.claim(ctx)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("worker %s: %w", w.cfg.Owner, err)
		}
		var group errgroup.Group
		for _, item := range items {
			group.Go(func() error { return w.work(context.WithoutCancel(ctx), item) })
		}
		if err := group.Wait(); err != nil {
			return fmt.Errorf("worker %s: %w", w.cfg.Owner, err)
		}
	}
	return nil
}

// claim waits for work.
func (w *Worker) claim(ctx context.Context) ([]api.WorkItem, error) {
	request := api.ClaimRequest{
		Owner: w.cfg.Owner, Services: w.cfg.Services, Max: int32(w.cfg.Parallel), WaitSeconds: 5, Start: true,
		RequestID: uuid.NewString(),
	}
	var items []api.WorkItem
	err := persist(ctx, func() (int, error) {
		response, err := w.cfg.Client.ClaimWorkWithResponse(ctx, request)
		if err != nil {
			return 0, err
		}
		if response.JSON200 != nil {
			items = response.JSON200.Items
		}
		return response.StatusCode(), nil
	})
	return items, err
}

// work does one directive and reports what came of it. A report that the
// server refuses, because the attempt is not current any more, is dropped.
func (w *Worker) work(ctx context.Context, item api.WorkItem) error {
	var directive api.Directive
	if err := json.Unmarshal(item.Directive, &directive); err != nil {
		return fmt.Errorf("directive of %s: %w", item.WorkID, err)
	}
	handling, stop := context.WithCancel(ctx)
	defer stop()
	beats := make(chan int64, 1)
	go w.heartbeats(handling, item, beats)
	result, workErr := w.cfg.Handle(handling, directive)
	stop()
	rev := <-beats
	var err error
	if workErr == nil {
		err = w.complete(ctx, item.WorkID, rev, result)
	} else {
		w.cfg.Log.WarnContext(ctx, "work failed", "work_id", item.WorkID, "error", workErr)
		err = w.fail(ctx, item.WorkID, rev, workErr)
	}
	if refused, ok := errors.AsType[*refusedError](err); ok {
		w.cfg.Log.WarnContext(ctx, "report refused", "work_id", item.WorkID, "status", refused.status)
		return nil
	}
	return err
}

// heartbeats extends the lease at a third of its length until the context
// ends, and then tells the item's rev.
func (w *Worker) heartbeats(ctx context.Context, item api.WorkItem, rev chan<- int64) {
	current := item.Rev
	defer func() { rev <- current }()
	if item.Lease == nil {
		return
	}
	ticker := time.NewTicker(max(time.Until(item.Lease.ExpiresAt.Time)/3, 10*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		request := api.WorkVerb{Owner: w.cfg.Owner, ExpectedRev: current, RequestID: uuid.NewString()}
		// A heartbeat under way is not cut off: its rev has to be known.
		err := persist(context.WithoutCancel(ctx), func() (int, error) {
			response, err := w.cfg.Client.HeartbeatWorkWithResponse(context.WithoutCancel(ctx), item.WorkID, request)
			if err != nil {
				return 0, err
			}
			if response.JSON200 != nil {
				current = response.JSON200.Rev
			}
			return response.StatusCode(), nil
		})
		if err != nil {
			w.cfg.Log.WarnContext(ctx, "heartbeat refused", "work_id", item.WorkID, "error", err)
			return
		}
	}
}

func (w *Worker) complete(ctx context.Context, workID string, rev int64, result json.RawMessage) error {
	request := api.WorkCompletion{
		Owner: w.cfg.Owner, ExpectedRev: rev, RequestID: uuid.NewString(), ResultRef: result,
	}
	return persist(ctx, func() (int, error) {
		response, err := w.cfg.Client.CompleteWorkWithResponse(ctx, workID, request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode(), nil
	})
}

func (w *Worker) fail(ctx context.Context, workID string, rev int64, cause error) error {
	request := api.WorkFailure{
		Owner: w.cfg.Owner, ExpectedRev: rev, RequestID: uuid.NewString(), Retryable: !w.cfg.Permanent(cause),
		Error: api.ReportedError{Code: "work_failed", Message: truncate(cause.Error(), 1000)},
	}
	return persist(ctx, func() (int, error) {
		response, err := w.cfg.Client.FailWorkWithResponse(ctx, workID, request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode(), nil
	})
}

// truncate cuts a text to so many bytes.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return s[:limit]
}

// refusedError is an answer that no repetition would change.
type refusedError struct{ status int }

func (e *refusedError) Error() string { return fmt.Sprintf("the server answered %d", e.status) }

// persist makes the same call again, with growing delays, until it is
// answered: a server that restarts is back within that time.
func persist(ctx context.Context, call func() (status int, err error)) error {
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(2*time.Minute))
	return backoff.Retry(func() error {
		status, err := call()
		switch {
		case err != nil:
			return err
		case status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests || status >= 500:
			return &refusedError{status: status}
		case status >= 400:
			return backoff.Permanent(&refusedError{status: status})
		}
		return nil
	}, backoff.WithContext(pause, ctx))
}
