package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/internal/workerlog"
)

// Config configures [Run].
type Config struct {
	// Connection is a connection string of the namespace. Required, unless Namespace is set.
	Connection string
	// Namespace is the host name of the namespace, such as example.servicebus.windows.net,
	// and Credential signs in to it, such as the DefaultAzureCredential of azidentity.
	// Required, unless Connection is set.
	Namespace  string
	Credential azcore.TokenCredential
	// Client has further options of the Azure SDK, such as proxies. Optional. Defaults to
	// none, and its RetryOptions to short delays: a reply is sent until the bus has it anyway.
	Client *azservicebus.ClientOptions
	// Service is the service whose directives the worker does. Required, unless
	// Subscription is set.
	Service string
	// Subscription is the subscription to read on each lane. Optional. Defaults to the
	// service.
	Subscription string
	// Lanes is the number of lanes; the worker reads all of them. Optional. Defaults to 16.
	Lanes int
	// TopicPrefix and ReplyPrefix are the topics of a lane without its number. Optional.
	// Default to global-bus-p and global-bus-replies-p.
	TopicPrefix, ReplyPrefix string
	// Parallel limits the directives of one lane that are in hand at once. Optional.
	// Defaults to 4.
	Parallel int
	// Lease is how long the server waits for a heartbeat before it retries a step: 3s to a
	// day and at least three Heartbeats, at most the step's own lease. If it is shorter than
	// the lock duration of the subscription, the bus may redeliver a directive after its
	// attempt has ended. Optional. Defaults to 90s, or to three Heartbeats if that is more.
	Lease time.Duration
	// Heartbeat is the time between two heartbeats of one attempt, and between two renewals
	// of its message's lock. It must be well within the lock duration of the subscription and
	// the step's own lease. Optional. Defaults to 10s, or to a third of the Lease if that is
	// less.
	Heartbeat time.Duration
	// Grace is how long handlers may still run after a stop, before their contexts end.
	// Optional. Defaults to 10s.
	Grace time.Duration
	// Traceparent returns the traceparent of the worker's span for a directive, which its
	// replies name. Optional. Defaults to the directive's own.
	Traceparent func(directive *lucius.Directive) string
	// Log receives a line for the start, for each task, and for what fails: sdk/README.md
	// lists them. Optional. Defaults to [slog.Default].
	Log *slog.Logger

	link *workerlog.Link
}

// validate returns an error that names the first invalid field.
func (c *Config) validate() error {
	switch {
	case c.Connection == "" && c.Namespace == "":
		return errors.New("Connection is required, unless Namespace is set")
	case c.Connection != "" && (c.Namespace != "" || c.Credential != nil):
		return errors.New("Connection cannot be used with Namespace and Credential")
	case c.Connection == "" && c.Credential == nil:
		return errors.New("Credential is required with Namespace")
	case c.Service == "" && c.Subscription == "":
		return errors.New("Service is required")
	case c.Lanes < 0:
		return fmt.Errorf("Lanes is %d, it must not be negative", c.Lanes)
	case c.Parallel < 0:
		return fmt.Errorf("Parallel is %d, it must not be negative", c.Parallel)
	case c.Heartbeat < 0:
		return fmt.Errorf("Heartbeat is %s, it must not be negative", c.Heartbeat)
	case c.Lease != 0 && c.Lease < 3*time.Second || c.Lease > maxLease:
		return fmt.Errorf("Lease is %s, it must be from 3s to %s", c.Lease, maxLease)
	case c.Lease != 0 && c.Heartbeat > c.Lease/3:
		return fmt.Errorf("Heartbeat is %s, it must be at most a third of Lease, which is %s", c.Heartbeat, c.Lease)
	case c.Grace < 0:
		return fmt.Errorf("Grace is %s, it must not be negative", c.Grace)
	}
	return nil
}

// The limits of a lease: the longest that the server grants, and the default, which is longer
// than the usual lock of a message. So the bus redelivers a dead worker's directive while its
// attempt lasts, and after an outage a third of the lease has time for a reply that waited
// for a call of the bus to end.
const (
	maxLease     = 24 * time.Hour
	defaultLease = 90 * time.Second
)

// withDefaults returns the Config with the defaults filled in.
func (c *Config) withDefaults() *Config {
	filled := *c
	c = &filled
	var options azservicebus.ClientOptions
	if c.Client != nil {
		options = *c.Client
	}
	if options.RetryOptions == (azservicebus.RetryOptions{}) {
		// At least one: a sender of the SDK recovers only between two tries.
		options.RetryOptions = azservicebus.RetryOptions{MaxRetries: 2, RetryDelay: 50 * time.Millisecond, MaxRetryDelay: time.Second}
	}
	c.Client = &options
	c.Subscription = cmp.Or(c.Subscription, c.Service)
	c.Lanes = cmp.Or(c.Lanes, 16)
	c.TopicPrefix = cmp.Or(c.TopicPrefix, "global-bus-p")
	c.ReplyPrefix = cmp.Or(c.ReplyPrefix, "global-bus-replies-p")
	c.Parallel = cmp.Or(c.Parallel, 4)
	c.Heartbeat = cmp.Or(c.Heartbeat, min(10*time.Second, cmp.Or(c.Lease, defaultLease)/3))
	c.Lease = cmp.Or(c.Lease, min(max(defaultLease, 3*c.Heartbeat), maxLease))
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	if c.Traceparent == nil {
		c.Traceparent = func(directive *lucius.Directive) string {
			if directive.Traceparent == nil {
				return ""
			}
			return *directive.Traceparent
		}
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	c.link = &workerlog.Link{Log: c.Log, Server: c.address()}
	return c
}

// open returns a client of the namespace. It does not connect yet.
func (c *Config) open() (*azservicebus.Client, error) {
	options := *c.Client
	options.NewWebSocketConn = c.dial
	if c.Namespace != "" {
		return azservicebus.NewClient(c.Namespace, c.Credential, &options)
	}
	client, err := azservicebus.NewClientFromConnectionString(c.Connection, &options)
	if err != nil {
		return nil, errors.New("Connection cannot be used") // The SDK's text may hold the key.
	}
	return client, nil
}

// lastCalls is how long the calls after the grace may take: those that give unfinished
// work to other workers. It leaves time for a second try after linkTimeout.
const lastCalls = 5 * time.Second

// Run has the worker's handlers do directives until the context ends. Then it receives no
// more, lets handlers finish within the grace, and returns nil. Of the worker's own
// configuration only the Log counts. While the bus is away Run tries again; it returns an
// error only for a configuration that cannot be used.
func Run(ctx context.Context, worker *lucius.Worker, cfg Config) error {
	if worker == nil {
		return errors.New("lucius servicebus: Worker is required")
	}
	if err := cfg.validate(); err != nil {
		return fmt.Errorf("lucius servicebus: %w", err)
	}
	if err := run(ctx, worker, cfg.withDefaults()); err != nil {
		return fmt.Errorf("lucius servicebus: %w", err)
	}
	return nil
}

func run(ctx context.Context, worker *lucius.Worker, cfg *Config) error {
	// Each client is one connection, and while one is opened again everything on it waits:
	// replies must not wait for receivers.
	receiving, err := cfg.open()
	if err != nil {
		return err
	}
	sending, err := cfg.open()
	if err != nil {
		return err
	}
	lanes := make([]*lane, cfg.Lanes)
	for n := range lanes {
		if lanes[n], err = openLane(receiving, sending, cfg, n); err != nil {
			return err
		}
	}
	// Handlers run within handling, and replies are sent within replying.
	replying, stopReplying := afterwards(ctx, cfg.Grace+lastCalls)
	defer stopReplying()
	handling, stopHandling := afterwards(ctx, cfg.Grace)
	defer stopHandling()
	cfg.Log.InfoContext(ctx, "worker started", "services", cfg.Subscription, "steps", workerlog.Names(worker.StepTypes()),
		"server", cfg.address(), "parallel", cfg.Lanes*cfg.Parallel)
	var reading sync.WaitGroup
	for _, l := range lanes {
		l.worker = worker
		reading.Go(func() { l.run(ctx, handling, replying) })
	}
	reading.Wait()
	for _, client := range []*azservicebus.Client{receiving, sending} {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if err := client.Close(closing); err != nil {
			cfg.Log.WarnContext(ctx, "connection not closed cleanly", "error", err)
		}
		cancel()
	}
	return nil
}

// afterwards returns a context that ends with [lucius.ErrStopped] when the time after the
// given context's end is over.
func afterwards(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if pause(later, grace) {
			cancel(lucius.ErrStopped)
		}
	})
	return later, func() {
		stop()
		cancel(lucius.ErrStopped)
	}
}

// pause waits, and reports false if the context ends first.
func pause(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
