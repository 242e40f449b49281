package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// bus is how directives leave, and how replies come back beside the callbacks.
type bus struct {
	outbox.Publisher
	// topics and replies are nil on the pull queue, replies also where they come by
	// callbacks alone.
	topics  *servicebus.Publisher
	replies *servicebus.Replies
}

// buildBus makes the bus. Nothing is sent yet: a namespace that does not answer
// does not keep the server from starting.
func (s *system) buildBus(context.Context) error {
	if s.cfg.Bus == config.BusQueue {
		s.bus.Publisher = s.queue
		return nil
	}
	topics, err := servicebus.NewPublisher(servicebus.PublisherConfig{
		Namespace: namespaceOf(s.cfg), Logger: s.log,
		AckTimeout: func(m *ledger.Message) time.Duration { return m.AckTimeout },
		// A send that is lost is tried again within the relay's deadline.
		SendTimeout: min(3*time.Second, s.cfg.PublishTimeout/3),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", namespaceVariable(s.cfg), err)
	}
	s.bus.Publisher, s.bus.topics = topics, topics
	if err := s.buildOutages(); err != nil {
		return err
	}
	if !s.cfg.ServiceBus.Replies {
		return nil
	}
	s.bus.replies, err = servicebus.NewReplies(servicebus.RepliesConfig{
		Namespace: namespaceOf(s.cfg), Apply: s.callbacks.Apply, Lanes: s.cfg.Lanes, Logger: s.log,
		Prefix: s.cfg.ServiceBus.ReplyPrefix, Subscription: s.cfg.ServiceBus.ReplySubscription,
		MaxBytes: s.cfg.MaxBodyBytes, Observe: s.metrics.replied,
	})
	if err != nil {
		return fmt.Errorf("LUCIUS_SERVICEBUS_REPLIES: %w", err)
	}
	return nil
}

// namespaceOf is the configured namespace.
func namespaceOf(cfg *config.Config) servicebus.Namespace {
	return servicebus.Namespace{Connection: cfg.ServiceBus.Connection, Host: cfg.ServiceBus.Namespace}
}

// namespaceVariable is the variable that says which namespace is used.
func namespaceVariable(cfg *config.Config) string {
	if cfg.ServiceBus.Connection != "" {
		return "LUCIUS_SERVICEBUS_CONNECTION"
	}
	return "LUCIUS_SERVICEBUS_NAMESPACE"
}

// down lists the topics that no replies can be read from.
func (b *bus) down() []string {
	if b.replies == nil {
		return nil
	}
	return b.replies.Down()
}

// watch registers the gauges of a namespace.
func (b *bus) watch(registry *prometheus.Registry) {
	if b.topics == nil {
		return
	}
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "lucius_bus_cuts_total", Help: "Connections cut because a send did not come back.",
		}, func() float64 { return float64(b.topics.Cuts()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lucius_bus_sends_stuck", Help: "Sends that were left behind and are not back yet.",
		}, func() float64 { return float64(b.topics.Stuck()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lucius_bus_reply_topics_down", Help: "Reply topics that cannot be read.",
		}, func() float64 { return float64(len(b.down())) }),
	)
}

// close closes the connections to the topics. Nothing may be published any more.
func (b *bus) close(ctx context.Context) error {
	if b.topics == nil {
		return nil
	}
	return b.topics.Close(ctx)
}
