package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
)

// PublisherConfig configures a [Publisher].
type PublisherConfig struct {
	// Namespace has the topics. Required.
	Namespace Namespace
	// AckTimeout is how long after the publish a worker has to ACK the message; it
	// must be positive. Required. It must be safe for concurrent use.
	AckTimeout func(*ledger.Message) time.Duration
	// SendTimeout bounds one send, including the SDK's retries and the opening of
	// the topic. It should fit into the relay's deadline more than once. Optional.
	// Defaults to 3 s.
	SendTimeout time.Duration
	// Grace is how long after its timeout a send may still return before it is
	// abandoned and the connections are cut. Optional. Defaults to 500 ms.
	Grace time.Duration
	// Parallel limits the concurrent sends to one topic, including abandoned ones.
	// Optional. Defaults to 4.
	Parallel int
	// Patience is the number of consecutive sends that a topic may leave unanswered
	// before it counts as out of service. Optional. Defaults to 3.
	Patience int
	// Logger receives the sends that are abandoned. Optional.
	Logger *slog.Logger
}

// Validate returns an error that names the invalid field.
func (c *PublisherConfig) Validate() error {
	if err := c.Namespace.Validate(); err != nil {
		return err
	}
	if c.AckTimeout == nil {
		return errors.New("AckTimeout is required")
	}
	return notNegative([]setting{
		{"SendTimeout", int64(c.SendTimeout)}, {"Grace", int64(c.Grace)},
		{"Parallel", int64(c.Parallel)}, {"Patience", int64(c.Patience)},
	})
}

// setting is a number or a duration of a config, with its field's name.
type setting struct {
	name  string
	value int64
}

// notNegative returns an error that names the first negative setting.
func notNegative(settings []setting) error {
	for _, s := range settings {
		if s.value < 0 {
			return fmt.Errorf("%s must not be negative", s.name)
		}
	}
	return nil
}

// Publisher publishes directives to the topics of their lanes. It is an
// [outbox.Publisher], and safe for concurrent use.
type Publisher struct {
	cfg  PublisherConfig
	bus  *bus
	make func(topic string) courier
	cuts atomic.Int64

	mu    sync.Mutex // Guards lanes: each topic has one.
	lanes map[string]*lane
}

var _ outbox.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher. It does not connect yet: the first message to
// a topic opens it. The error names the invalid field.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("servicebus publisher: %w", err)
	}
	opened, err := openBus(cfg.Namespace)
	if err != nil {
		return nil, fmt.Errorf("servicebus publisher: %w", err)
	}
	cfg.SendTimeout = cmp.Or(cfg.SendTimeout, 3*time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 500*time.Millisecond)
	cfg.Parallel = cmp.Or(cfg.Parallel, 4)
	cfg.Patience = cmp.Or(cfg.Patience, 3)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Publisher{cfg: cfg, bus: opened, lanes: map[string]*lane{}}
	p.make = func(topic string) courier { return &sender{client: opened.client, topic: topic} }
	return p, nil
}

// PublishedByMark reports false: a published message is on its way to a worker, so the
// ACK deadline starts at the publish.
func (p *Publisher) PublishedByMark() bool { return false }

// Publish sends each message to its topic, those of one topic in batches and in
// order. It returns one outcome for each message, as [outbox.Publisher] defines. It
// returns soon after its context ends, even if the SDK does not.
//
// Source: Orchestrator flow canvas, Service Bus; Option B spec, 10.1.
func (p *Publisher) Publish(ctx context.Context, messages []ledger.Message) []error {
	outcomes := make([]error, len(messages))
	places := map[string][]int{}
	for i := range messages {
		places[messages[i].Topic] = append(places[messages[i].Topic], i)
	}
	var group sync.WaitGroup
	for topic, indexes := range places {
		group.Go(func() {
			batch := make([]*azservicebus.Message, len(indexes))
			for n, i := range indexes {
				batch[n] = messageOf(&messages[i], min(p.cfg.AckTimeout(&messages[i])+expiryMargin, maxTimeToLive))
			}
			for n, err := range p.lane(topic).publish(ctx, batch) {
				outcomes[indexes[n]] = err
			}
		})
	}
	group.Wait()
	return outcomes
}

const (
	// expiryMargin is how long after the ACK timeout a message expires on the bus, so
	// that copies of superseded attempts do not pile up.
	expiryMargin = 30 * time.Second
	// maxTimeToLive is the longest time to live that AMQP can carry; go-amqp wraps a longer one.
	maxTimeToLive = math.MaxUint32 * time.Millisecond
)

// messageOf returns the directive as a message of the bus. Its message id names the
// attempt, so that duplicate detection drops a copy; the SDK would make a new id for
// each send. Subscriptions can filter by the properties.
//
// Source: Orchestrator flow canvas, Service Bus; Option B spec, 10.1.
func messageOf(m *ledger.Message, timeToLive time.Duration) *azservicebus.Message {
	properties := map[string]any{
		"tenant_id": m.TenantID, "service": m.Service, "step_type": m.StepType,
		"jobId": m.JobID, "attempt_no": int64(m.AttemptNo),
	}
	if m.Traceparent != "" {
		properties["traceparent"] = m.Traceparent
	}
	message := &azservicebus.Message{
		MessageID: new(m.MessageID()), Subject: new(m.StepType), ContentType: new("application/json"),
		TimeToLive: &timeToLive, ApplicationProperties: properties, Body: m.Directive,
	}
	if m.CorrelationID != "" {
		message.CorrelationID = new(m.CorrelationID)
	}
	return message
}

// lane returns the lane of a topic, and makes it if there is none yet.
func (p *Publisher) lane(topic string) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.lanes[topic]
	if !ok {
		l = &lane{publisher: p, topic: topic, courier: p.make(topic), permits: make(chan struct{}, p.cfg.Parallel)}
		p.lanes[topic] = l
	}
	return l
}

// Cuts returns how often the connections were cut because a send did not return.
func (p *Publisher) Cuts() int64 { return p.cuts.Load() }

// Stuck returns the number of abandoned sends that have not returned yet.
func (p *Publisher) Stuck() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	stuck := 0
	for _, l := range p.lanes {
		stuck += int(l.stuck.Load())
	}
	return stuck
}

// Close closes the connections. Nothing may be published afterwards. When the
// context ends first, the connections are cut.
func (p *Publisher) Close(ctx context.Context) error {
	if err := p.bus.close(ctx); err != nil {
		return fmt.Errorf("close the bus: %w", err)
	}
	return nil
}
