package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/callbacks"
)

// RepliesConfig configures [Replies].
type RepliesConfig struct {
	ReplyTopics

	// Apply applies a reply to its job, as [callbacks.Service] does. Its errors are
	// [*apierror.Error]s. It must be safe for concurrent use. Required.
	Apply func(ctx context.Context, callback callbacks.Callback) (callbacks.Answer, error)
	// Received returns the context in which a reply is applied, whose sender names the
	// traceparent, possibly empty. Optional. It must be safe for concurrent use.
	Received func(ctx context.Context, traceparent string) context.Context
	// InHand limits the replies of one topic that are handled at once, and so the
	// locks that are held. Optional. Defaults to 16.
	InHand int
	// MinDelay and MaxDelay are the first and the longest delay after a failure of
	// the store or of the bus. Optional. Default to 100 ms and 5 s.
	MinDelay, MaxDelay time.Duration
	// Tries is how often a reply that fails for an unforeseen reason is applied
	// before it is abandoned to the bus, which counts deliveries. Optional. Defaults
	// to 3.
	Tries int
	// MaxBytes limits the body. Optional. Defaults to 1 MiB.
	MaxBytes int
	// Random returns numbers in [0, 1), for the delays. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Logger receives dead-lettered replies and topics that cannot be read. Optional.
	Logger *slog.Logger
	// Observe is called for each delivery. Optional. It must be safe for concurrent
	// use.
	Observe func(Delivery)
}

// Delivery is one delivery of a reply, with its outcome.
type Delivery struct {
	Type    ReplyType
	Outcome DeliveryOutcome
	// UnknownFields is true if the body had fields that were ignored.
	UnknownFields bool
	// Took is the time from the receipt of the reply until it was settled.
	Took time.Duration
}

// DeliveryOutcome is the outcome of a delivery.
type DeliveryOutcome string

// The outcomes of deliveries. After one of the last three the bus redelivers.
const (
	ReplyApplied      DeliveryOutcome = "applied"       // committed to the ledger
	ReplyDuplicate    DeliveryOutcome = "duplicate"     // the ledger had it already
	ReplyRefused      DeliveryOutcome = "refused"       // stale, contradictory or too late: recorded, completed
	ReplyDeadLettered DeliveryOutcome = "dead_lettered" // unreadable, or its job is unknown
	ReplyAbandoned    DeliveryOutcome = "abandoned"     // not handled
	ReplyLockLost     DeliveryOutcome = "lock_lost"     // another consumer may have it
	ReplyUnsettled    DeliveryOutcome = "unsettled"     // handled, but settling it failed
)

// Validate returns an error that names the invalid field.
func (c *RepliesConfig) Validate() error {
	if err := c.ReplyTopics.Validate(); err != nil {
		return err
	}
	if c.Apply == nil {
		return errors.New("Apply is required")
	}
	return notNegative([]setting{
		{"InHand", int64(c.InHand)}, {"MinDelay", int64(c.MinDelay)},
		{"MaxDelay", int64(c.MaxDelay)}, {"Tries", int64(c.Tries)}, {"MaxBytes", int64(c.MaxBytes)},
	})
}

// withDefaults fills in what is optional, or returns the error of Validate.
func (c *RepliesConfig) withDefaults() error {
	if err := c.Validate(); err != nil {
		return err
	}
	c.InHand = cmp.Or(c.InHand, 16)
	c.MinDelay = cmp.Or(c.MinDelay, 100*time.Millisecond)
	c.MaxDelay = max(cmp.Or(c.MaxDelay, 5*time.Second), c.MinDelay)
	c.Tries = cmp.Or(c.Tries, 3)
	c.MaxBytes = cmp.Or(c.MaxBytes, 1<<20)
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Received == nil {
		c.Received = func(ctx context.Context, _ string) context.Context { return ctx }
	}
	if c.Observe == nil {
		c.Observe = func(Delivery) {}
	}
	return nil
}

// Replies consumes the reply topics. Several may run on one namespace.
//
// Source: Option B spec, 10.2 and 11.
type Replies struct {
	bus    *bus
	topics []*subscription
}

// NewReplies returns a consumer. It does not connect yet. The error names the
// invalid field.
func NewReplies(cfg RepliesConfig) (*Replies, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("servicebus replies: %w", err)
	}
	opened, err := openBus(cfg.Namespace)
	if err != nil {
		return nil, fmt.Errorf("servicebus replies: %w", err)
	}
	r := &Replies{bus: opened}
	for lane := range cfg.Lanes {
		topic := cfg.Prefix + strconv.Itoa(lane)
		open := func() (receiver, error) {
			return opened.client.NewReceiverForSubscription(topic, cfg.Subscription, &azservicebus.ReceiverOptions{
				ReceiveMode: azservicebus.ReceiveModePeekLock,
			})
		}
		r.topics = append(r.topics, &subscription{cfg: &cfg, name: topic, open: open, permits: make(chan struct{}, cfg.InHand)})
	}
	return r, nil
}

// Run consumes until the context ends, finishes the replies in hand and closes the
// connections. It may be called once.
func (r *Replies) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, topic := range r.topics {
		group.Go(func() { topic.run(ctx) })
	}
	group.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.bus.close(closing)
	return nil
}

// Down lists the topics that cannot be read now.
func (r *Replies) Down() []callbacks.UnreadTopic {
	var down []callbacks.UnreadTopic
	for _, topic := range r.topics {
		if reason := topic.down.Load(); reason != nil {
			down = append(down, callbacks.UnreadTopic{Topic: topic.name, Reason: *reason})
		}
	}
	return down
}
