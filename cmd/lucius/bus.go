//go:build !nodrivers

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// openBus opens the topics. It connects at the first message, so that the server starts
// even if the namespace does not answer. [host.close] closes it.
func (h *host) openBus(apply server.Apply) (*server.Bus, error) {
	topics, err := servicebus.NewPublisher(servicebus.PublisherConfig{
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
	h.closeBus(topics.Close)
	topics.Watch(h.metrics.Registry)
	opened := &server.Bus{Publisher: topics}
	if !h.cfg.ServiceBus.Replies {
		return opened, nil
	}
	replies, err := servicebus.NewReplies(servicebus.RepliesConfig{
		ReplyTopics: replyTopics(h.cfg), Apply: apply, MaxBytes: h.cfg.MaxBodyBytes, Received: h.tracer.Received, Logger: h.log,
		Observe: servicebus.WatchReplies(h.metrics.Registry),
	})
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_SERVICEBUS_REPLIES: %w", err)
	}
	letters, err := servicebus.NewDeadLetters(replyTopics(h.cfg))
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_SERVICEBUS_REPLIES: %w", err)
	}
	h.closeBus(letters.Close)
	opened.Replies, opened.DeadLetters = replies, letters
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

// closeBus has [host.close] close a connection to the topics, when no publish is in progress.
func (h *host) closeBus(end func(context.Context) error) {
	h.closers = append(h.closers, func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := end(ctx); err != nil {
			h.log.WarnContext(ctx, "closing the bus failed", "error", err) // Nothing depends on it.
		}
	})
}
