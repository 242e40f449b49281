package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// bus publishes directives, and reads replies if they come over topics.
type bus struct {
	cfg       *config.Config
	publisher outbox.Publisher
	circuits  *breaker.Set
	topics    *servicebus.Publisher // nil on the pull queue
	// replies and deadLetters are nil if replies come by callbacks only.
	replies     *servicebus.Replies
	deadLetters *servicebus.DeadLetters
	// outages tells the replicas of each other's outages. It is nil on the pull queue,
	// whose workers call over HTTP.
	outages *outbox.Outages
}

// openBus makes the bus. It connects at the first message, so that the server starts
// even if the namespace does not answer. Close the result.
func openBus(c *core) (*bus, error) {
	circuits, err := breaker.NewSet(breaker.Config{})
	if err != nil {
		return nil, err
	}
	b := &bus{cfg: c.cfg, publisher: c.queue, circuits: circuits}
	if c.cfg.Bus == config.BusQueue {
		return b, nil
	}
	b.topics, err = servicebus.NewPublisher(servicebus.PublisherConfig{
		Namespace: namespaceOf(c.cfg), Logger: c.log,
		AckTimeout: func(m *ledger.Message) time.Duration { return m.AckTimeout },
		// A lost send is retried within the relay's deadline.
		SendTimeout: min(3*time.Second, c.cfg.PublishTimeout/3),
	})
	if err != nil {
		variable := "LUCIUS_SERVICEBUS_NAMESPACE"
		if c.cfg.ServiceBus.Connection != "" {
			variable = "LUCIUS_SERVICEBUS_CONNECTION"
		}
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	b.publisher = b.topics
	// Between two tries a circuit is neither open nor closed.
	margin := c.cfg.PublishTimeout + 2*c.cfg.RetryInterval + 4*time.Second
	b.outages = outbox.NewOutages(c.store, c.ledger.Tables().Schedule, margin)
	if c.cfg.ServiceBus.Replies {
		replies := repliesConfig(c.cfg, c.callbacks.Apply)
		replies.Received, replies.Logger = c.tracer.Received, c.log
		replies.Observe = func(d servicebus.Delivery) {
			c.metrics.replies.WithLabelValues(string(d.Type), string(d.Outcome)).Inc()
			c.metrics.replySeconds.WithLabelValues(string(d.Type)).Observe(d.Took.Seconds())
		}
		if b.replies, err = servicebus.NewReplies(replies); err == nil {
			b.deadLetters, err = servicebus.NewDeadLetters(replies)
		}
		if err != nil {
			return nil, fmt.Errorf("LUCIUS_SERVICEBUS_REPLIES: %w", err)
		}
		c.metrics.watchDeadLetters(b.deadLetters)
	}
	c.metrics.gauge("lucius_bus_sends_stuck", "Sends that were abandoned and have not returned.",
		func() float64 { return float64(b.topics.Stuck()) })
	c.metrics.gauge("lucius_bus_reply_topics_down", "Reply topics that cannot be read.",
		func() float64 { return float64(len(b.down())) })
	c.metrics.count("lucius_bus_cuts_total", "Connections that were cut because a send exceeded its deadline.",
		func() float64 { return float64(b.topics.Cuts()) })
	return b, nil
}

// repliesConfig returns what the reply topics are read with.
func repliesConfig(cfg *config.Config, apply func(context.Context, callbacks.Callback) (callbacks.Answer, error),
) servicebus.RepliesConfig {
	return servicebus.RepliesConfig{
		Namespace: namespaceOf(cfg), Apply: apply, Lanes: cfg.Lanes, Prefix: cfg.ServiceBus.ReplyPrefix,
		Subscription: cfg.ServiceBus.ReplySubscription, MaxBytes: cfg.MaxBodyBytes,
	}
}

// namespaceOf returns the configured namespace.
func namespaceOf(cfg *config.Config) servicebus.Namespace {
	return servicebus.Namespace{
		Connection: cfg.ServiceBus.Connection, Host: cfg.ServiceBus.Namespace, WebSockets: cfg.ServiceBus.WebSockets,
	}
}

// closeTimeout is how long closing the connections to the topics may take.
const closeTimeout = 2 * time.Second

// close closes the connections to the topics. No publish may be in progress.
func (b *bus) close(log *slog.Logger) {
	if b.topics == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := b.topics.Close(ctx)
	if b.deadLetters != nil {
		err = errors.Join(err, b.deadLetters.Close(ctx))
	}
	if err != nil {
		log.Warn("closing the bus failed", "error", err) // Nothing depends on it.
	}
}

// down lists the reply topics that cannot be read.
func (b *bus) down() []string {
	if b.replies == nil {
		return nil
	}
	return b.replies.Down()
}

// outOfService returns the topics whose circuit is open, the bus if its circuit is, and
// the replies if no reply topic can be read. A single unreadable topic does not count:
// it may be missing for good, and would suspend the deadlines of all jobs.
func (b *bus) outOfService(now time.Time) []outbox.PartOutage {
	outages := outbox.OpenCircuits(b.circuits, now)
	if down := len(b.down()); down > 0 && down == b.cfg.Lanes {
		outages = append(outages, outbox.PartOutage{Part: outbox.PartReplies})
	}
	return outages
}

// notClosed returns the open circuits of all replicas, and this replica's that are half
// open.
func (b *bus) notClosed(ctx context.Context) ([]breaker.Circuit, error) {
	own := b.circuits.Open(time.Now())
	if b.outages == nil {
		return own, nil
	}
	open, err := b.outages.Circuits(ctx)
	var found []breaker.Circuit
	for i := range open {
		circuit := &open[i]
		found = append(found, breaker.Circuit{
			Name: circuit.Name, State: breaker.Open, Since: circuit.Since, Until: circuit.Until, Reason: circuit.Reason,
		})
		own = slices.DeleteFunc(own, func(c breaker.Circuit) bool { return c.Name == circuit.Name })
	}
	return append(found, own...), err
}

// outagesForSweeper returns the sweeper's source of outages, or nil on the pull queue.
func (b *bus) outagesForSweeper() func(context.Context) (upkeep.Outages, error) {
	if b.outages == nil {
		return nil
	}
	return func(ctx context.Context) (upkeep.Outages, error) {
		ends, err := b.outages.Ends(ctx)
		found := upkeep.Outages{Topic: ends.Topic, Replies: ends[outbox.PartReplies]}
		if bus := ends[outbox.PartBus]; b.cfg.ServiceBus.Replies && bus.After(found.Replies) {
			found.Replies = bus // Replies come over the same bus.
		}
		return found, err
	}
}
