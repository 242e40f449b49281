package busworker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"golang.org/x/sync/errgroup"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// Config configures a [Worker].
type Config struct {
	// Connection is a connection string of the namespace. Required.
	Connection string
	// Lanes is the number of lanes; the worker reads all of them. Required.
	Lanes int
	// TopicPrefix and ReplyPrefix are the topics of a lane without its number.
	// Optional. Default to global-bus-p and global-bus-replies-p.
	TopicPrefix, ReplyPrefix string
	// Subscription is the subscription to read on each lane. Required.
	Subscription string
	// Worker has the handlers that do the work. Required.
	Worker *lucius.Worker
	// Traceparent returns the traceparent of the worker's span for a directive, which its
	// replies name, or an empty one. Optional. Defaults to none.
	Traceparent func(directive *lucius.Directive) string
	// Heartbeat is the time between two heartbeats of one attempt; each also renews
	// the message's lock. It must be well within the lease and the lock duration of
	// the subscription. Optional. Defaults to 10 s.
	Heartbeat time.Duration
	// Parallel limits the directives of one lane in hand at once. Optional. Defaults
	// to 4.
	Parallel int
	// Grace is how long directives in hand may still take after a stop. Optional.
	// Defaults to 10 s.
	Grace time.Duration
	// Log receives failures. Optional.
	Log *slog.Logger
}

// Validate returns an error that names the first invalid field.
func (c Config) Validate() error {
	switch {
	case c.Connection == "":
		return errors.New("Connection is required")
	case c.Lanes < 1:
		return fmt.Errorf("Lanes is %d, it must be at least 1", c.Lanes)
	case c.Subscription == "":
		return errors.New("Subscription is required")
	case c.Worker == nil:
		return errors.New("Worker is required")
	case c.Heartbeat < 0 || c.Grace < 0:
		return fmt.Errorf("must not be negative: Heartbeat is %s, Grace %s", c.Heartbeat, c.Grace)
	case c.Parallel < 0:
		return fmt.Errorf("Parallel is %d, it must not be negative", c.Parallel)
	}
	return nil
}

// withDefaults returns the Config with the defaults filled in.
func (c Config) withDefaults() Config {
	c.TopicPrefix = cmp.Or(c.TopicPrefix, "global-bus-p")
	c.ReplyPrefix = cmp.Or(c.ReplyPrefix, "global-bus-replies-p")
	c.Heartbeat = cmp.Or(c.Heartbeat, 10*time.Second)
	c.Parallel = cmp.Or(c.Parallel, 4)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	if c.Traceparent == nil {
		c.Traceparent = func(*lucius.Directive) string { return "" }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// lane is one lane's receiver and the sender of its replies.
type lane struct {
	cfg     *Config
	from    *azservicebus.Receiver
	replies *azservicebus.Sender
}

// openLane returns the nth lane. It does not connect yet.
func openLane(client *azservicebus.Client, cfg *Config, n int) (*lane, error) {
	topic := cfg.TopicPrefix + strconv.Itoa(n)
	from, err := client.NewReceiverForSubscription(topic, cfg.Subscription, nil)
	if err != nil {
		return nil, fmt.Errorf("subscription %s of %s: %w", cfg.Subscription, topic, err)
	}
	replies, err := client.NewSender(cfg.ReplyPrefix+strconv.Itoa(n), nil)
	if err != nil {
		return nil, fmt.Errorf("replies of lane %d: %w", n, err)
	}
	return &lane{cfg: cfg, from: from, replies: replies}, nil
}

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
