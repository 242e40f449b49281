package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// bus is what the program opens to publish directives, and to read replies if they come
// over topics. All are nil on the pull queue.
type bus struct {
	topics      *servicebus.Publisher
	deadLetters *servicebus.DeadLetters // nil if replies come by callbacks only
}

// openBus opens the topics. It connects at the first message, so that the server starts
// even if the namespace does not answer. [host.close] closes it.
func (h *host) openBus(apply server.Apply) (_ *server.Bus, err error) {
	h.bus.topics, err = servicebus.NewPublisher(servicebus.PublisherConfig{
		Namespace: namespaceOf(h.cfg), Logger: h.log,
		AckTimeout: func(m *ledger.Message) time.Duration { return m.AckTimeout },
		// A lost send is retried within the relay's deadline.
		SendTimeout: min(3*time.Second, h.cfg.PublishTimeout/3),
	})
	if err != nil {
		variable := "LUCIUS_SERVICEBUS_NAMESPACE"
		if h.cfg.ServiceBus.Connection != "" {
			variable = "LUCIUS_SERVICEBUS_CONNECTION"
		}
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	opened := &server.Bus{Publisher: h.bus.topics}
	h.metrics.Gauge("lucius_bus_sends_stuck", "Sends that were abandoned and have not returned.",
		func() float64 { return float64(h.bus.topics.Stuck()) })
	h.metrics.Count("lucius_bus_cuts_total", "Connections that were cut because a send exceeded its deadline.",
		func() float64 { return float64(h.bus.topics.Cuts()) })
	if !h.cfg.ServiceBus.Replies {
		return opened, nil
	}
	replies, err := servicebus.NewReplies(servicebus.RepliesConfig{
		ReplyTopics: replyTopics(h.cfg), Apply: apply, MaxBytes: h.cfg.MaxBodyBytes, Received: h.tracer.Received, Logger: h.log,
		Observe: func(d servicebus.Delivery) {
			h.metrics.replies.WithLabelValues(string(d.Type), string(d.Outcome)).Inc()
			h.metrics.replySeconds.WithLabelValues(string(d.Type)).Observe(d.Took.Seconds())
		},
	})
	if err == nil {
		h.bus.deadLetters, err = servicebus.NewDeadLetters(replyTopics(h.cfg))
	}
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_SERVICEBUS_REPLIES: %w", err)
	}
	opened.Replies, opened.DeadLetters = replies, h.bus.deadLetters
	return opened, nil
}

// namespaceOf returns the configured namespace.
func namespaceOf(cfg *config.Config) servicebus.Namespace {
	return servicebus.Namespace{
		Connection: cfg.ServiceBus.Connection, Host: cfg.ServiceBus.Namespace, WebSockets: cfg.ServiceBus.WebSockets,
	}
}

// replyTopics returns the configured reply topics.
func replyTopics(cfg *config.Config) servicebus.ReplyTopics {
	return servicebus.ReplyTopics{
		Namespace: namespaceOf(cfg), Prefix: cfg.ServiceBus.ReplyPrefix, Subscription: cfg.ServiceBus.ReplySubscription, Lanes: cfg.Lanes,
	}
}

// closeTimeout is how long closing the connections to the topics may take.
const closeTimeout = 2 * time.Second

// close closes the connections to the topics. No publish may be in progress.
func (b *bus) close(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	if b.topics != nil {
		err = b.topics.Close(ctx)
	}
	if b.deadLetters != nil {
		err = errors.Join(err, b.deadLetters.Close(ctx))
	}
	if err != nil {
		log.Warn("closing the bus failed", "error", err) // Nothing depends on it.
	}
}
