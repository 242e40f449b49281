package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
)

// PublisherConfig is what a [Publisher] is made of.
type PublisherConfig struct {
	// Namespace is where the topics are. Required.
	Namespace Namespace
	// AckTimeout is how long after its publish a worker has to ACK the message; it
	// must be positive. Required. It must be safe for concurrent use.
	AckTimeout func(*ledger.Message) time.Duration
	// Margin is how long beyond that a message lives on the bus, so that copies of
	// superseded attempts do not pile up. Optional. Defaults to 30 s.
	Margin time.Duration
	// SendTimeout bounds one send, the SDK's retries and the opening of the topic
	// included. It should fit into the relay's deadline more than once. Optional.
	// Defaults to 3 s.
	SendTimeout time.Duration
	// Grace is how much later than its timeout a send may come back before it is
	// left behind and the connections are cut. Optional. Defaults to 500 ms.
	Grace time.Duration
	// Parallel is the number of sends under way to one topic, those left behind
	// included. Optional. Defaults to 4.
	Parallel int
	// Patience is the number of sends in a row that a topic may leave without an
	// answer before it counts as out of service. Optional. Defaults to 3.
	Patience int
	// BatchBytes bounds a batch below what the topic takes. Optional. Defaults to
	// what the topic takes.
	BatchBytes int
	// Logger is told of sends that are left behind. Optional.
	Logger *slog.Logger
}

// Validate names the field that makes no sense.
func (c *PublisherConfig) Validate() error {
	if err := c.Namespace.Validate(); err != nil {
		return err
	}
	if c.AckTimeout == nil {
		return errors.New("AckTimeout is required")
	}
	return notNegative([]setting{
		{"Margin", int64(c.Margin)}, {"SendTimeout", int64(c.SendTimeout)}, {"Grace", int64(c.Grace)},
		{"Parallel", int64(c.Parallel)}, {"Patience", int64(c.Patience)}, {"BatchBytes", int64(c.BatchBytes)},
	})
}

// setting is a number or a duration of a config, by its field.
type setting struct {
	name  string
	value int64
}

// notNegative names the first setting that is negative.
func notNegative(settings []setting) error {
	for _, s := range settings {
		if s.value < 0 {
			return fmt.Errorf("%s must not be negative", s.name)
		}
	}
	return nil
}

// setDefaults fills in what is not set.
func (c *PublisherConfig) setDefaults() {
	c.Margin = cmp.Or(c.Margin, 30*time.Second)
	c.SendTimeout = cmp.Or(c.SendTimeout, 3*time.Second)
	c.Grace = cmp.Or(c.Grace, 500*time.Millisecond)
	c.Parallel = cmp.Or(c.Parallel, 4)
	c.Patience = cmp.Or(c.Patience, 3)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Publisher publishes directives to the topics of their lanes. It is an
// [outbox.Publisher], and safe for concurrent use.
type Publisher struct {
	cfg  PublisherConfig
	bus  *bus
	make func(topic string) courier
	cuts atomic.Int64

	mu    sync.Mutex
	lanes map[string]*lane
}

// NewPublisher returns a publisher. Nothing is sent yet: a topic is opened by its
// first message. The error names the field that makes no sense.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("servicebus publisher: %w", err)
	}
	opened, err := openBus(cfg.Namespace)
	if err != nil {
		return nil, fmt.Errorf("servicebus publisher: %w", err)
	}
	cfg.setDefaults()
	p := &Publisher{cfg: cfg, bus: opened, lanes: map[string]*lane{}}
	p.make = func(topic string) courier {
		return &sender{client: opened.client, topic: topic, batchBytes: uint64(cfg.BatchBytes)}
	}
	return p, nil
}

// AwaitsClaim reports false: what is on a topic is on its way to a worker, so the
// ACK deadline starts with the publish.
func (p *Publisher) AwaitsClaim() bool { return false }

// Publish sends each message to its topic, those of one topic in batches and in
// their order. It returns one outcome for each message, as the port says; it
// comes back soon after its context ends, also where the SDK does not.
//
// Source: Orchestrator flow canvas, Service Bus; Option B spec, 10.1.
func (p *Publisher) Publish(ctx context.Context, messages []ledger.Message) []error {
	outcomes := make([]error, len(messages))
	places := map[string][]int{}
	for i := range messages {
		places[messages[i].Topic] = append(places[messages[i].Topic], i)
	}
	var group errgroup.Group
	for topic, indexes := range places {
		group.Go(func() error {
			batch := make([]*azservicebus.Message, len(indexes))
			for n, i := range indexes {
				batch[n] = messageOf(&messages[i], p.cfg.AckTimeout(&messages[i])+p.cfg.Margin)
			}
			for n, err := range p.lane(topic).publish(ctx, batch) {
				outcomes[indexes[n]] = err
			}
			return nil
		})
	}
	_ = group.Wait() // Each message has an outcome of its own.
	return outcomes
}

// lane returns the lane of a topic, and makes it first where there is none.
func (p *Publisher) lane(topic string) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.lanes[topic]
	if !ok {
		l = &lane{
			topic: topic, courier: p.make(topic), timeout: p.cfg.SendTimeout, grace: p.cfg.Grace,
			patience: int32(p.cfg.Patience), connected: p.bus.dialer.connected, abandon: p.abandoned,
			places: make(chan struct{}, p.cfg.Parallel),
		}
		p.lanes[topic] = l
	}
	return l
}

// abandoned cuts the connections: whatever a send waits for there, it then
// comes back.
func (p *Publisher) abandoned(topic string) {
	p.cuts.Add(1)
	p.cfg.Logger.Error("send did not come back, its connections are cut", "topic", topic)
	p.bus.dialer.cut()
}

// Cuts is how often the connections were cut because a send did not come back.
func (p *Publisher) Cuts() int64 { return p.cuts.Load() }

// Stuck is the number of sends that were left behind and are not back yet.
func (p *Publisher) Stuck() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	stuck := 0
	for _, l := range p.lanes {
		stuck += int(l.stuck.Load())
	}
	return stuck
}

// Close closes the connections. Nothing may be published any more. The context
// bounds how politely it is done.
func (p *Publisher) Close(ctx context.Context) error {
	if err := p.bus.close(ctx); err != nil {
		return fmt.Errorf("close the bus: %w", err)
	}
	return nil
}

var _ outbox.Publisher = (*Publisher)(nil)
