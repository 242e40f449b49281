package busworker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"golang.org/x/sync/errgroup"
)

// errStopped ends a handler's context when the grace is over.
var errStopped = errors.New("the worker has stopped")

// Worker takes directives and answers them. Create it with [New].
type Worker struct{ cfg Config }

// New returns a worker. The error names the invalid field.
func New(cfg Config) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("busworker: %w", err)
	}
	return &Worker{cfg: cfg.withDefaults()}, nil
}

// Run works until the context ends and finishes the directives in hand within the
// grace. It retries while the bus is away. It returns an error only for an invalid
// connection string or name.
func (w *Worker) Run(ctx context.Context) error {
	client, err := azservicebus.NewClientFromConnectionString(w.cfg.Connection, &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: 2, RetryDelay: 50 * time.Millisecond, MaxRetryDelay: time.Second},
	})
	if err != nil {
		return errors.New("busworker: the connection string cannot be used") // The SDK's text may hold the key.
	}
	finish, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(errStopped)
	grace := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(w.cfg.Grace, func() { stop(errStopped) })
		<-finish.Done()
		timer.Stop()
	})
	defer grace()
	lanes := make([]*lane, w.cfg.Lanes)
	for n := range lanes {
		if lanes[n], err = openLane(client, &w.cfg, n); err != nil {
			return err
		}
	}
	var group errgroup.Group
	for _, l := range lanes {
		group.Go(func() error { l.run(ctx, finish); return nil })
	}
	_ = group.Wait() // A lane that cannot be read is retried, so there are no errors.
	closing, cancel := context.WithTimeout(finish, time.Second)
	defer cancel()
	if err := client.Close(closing); err != nil {
		w.cfg.Log.WarnContext(ctx, "bus not closed cleanly", "error", err)
	}
	return nil
}

// run reads one lane until the context ends, and waits for the directives in hand.
func (l *lane) run(ctx, finish context.Context) {
	var inHand sync.WaitGroup
	defer inHand.Wait()
	slots := make(chan struct{}, l.cfg.Parallel)
	for {
		select {
		case slots <- struct{}{}: // Wait until a slot is free.
		case <-ctx.Done():
			return
		}
		<-slots
		messages, err := l.from.ReceiveMessages(ctx, cap(slots)-len(slots), nil)
		for _, m := range messages {
			slots <- struct{}{}
			inHand.Go(func() {
				defer func() { <-slots }()
				l.attend(finish, m)
			})
		}
		if len(messages) == 0 && !sleep(ctx, 100*time.Millisecond) {
			return
		}
		if err != nil && ctx.Err() == nil {
			l.cfg.Log.WarnContext(ctx, "lane not read", "error", err)
		}
	}
}

// sleep waits, and reports false if the context ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
