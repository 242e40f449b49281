package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"golang.org/x/sync/errgroup"
)

// RepliesConfig is what [Replies] are made of.
type RepliesConfig struct {
	// Namespace is where the reply topics are. Required.
	Namespace Namespace
	// Callbacks is the use case. Required.
	Callbacks Callbacks
	// Prefix is a reply topic without its number. Required.
	Prefix string
	// Subscription is the one that is read on each reply topic. Required.
	Subscription string
	// Lanes is the number of reply topics. Required.
	Lanes int
	// InHand is the number of replies of one topic that are worked on at once, and
	// so of those whose locks are held. Optional. Defaults to 16.
	InHand int
	// Timeout bounds one call of the use case, and one settlement. It should be well
	// below the lock duration of the subscription. Optional. Defaults to 10 s.
	Timeout time.Duration
	// MinDelay and MaxDelay are the first and the longest delay after a failure of
	// the store or of the bus. Optional. Default to 100 ms and 5 s.
	MinDelay, MaxDelay time.Duration
	// Tries is how often a reply that fails for an unforeseen reason is brought
	// before it is given back to the bus, which counts that. Optional. Defaults
	// to 3.
	Tries int
	// MaxBytes is the largest body. Optional. Defaults to 1 MiB.
	MaxBytes int
	// Random returns numbers in [0, 1), for the delays. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Logger is told of replies that nobody can read and of topics that cannot be
	// read. Optional.
	Logger *slog.Logger
	// Observe is told of each delivery. Optional. It must be safe for concurrent
	// use.
	Observe func(Delivery)
}

// Delivery is what became of one delivery of a reply.
type Delivery struct {
	Type    ReplyType
	Outcome DeliveryOutcome
	// UnknownFields says that the body had fields that were ignored.
	UnknownFields bool
}

// DeliveryOutcome is what became of a delivery.
type DeliveryOutcome string

// The outcomes of deliveries. All but the last three are settled for good.
const (
	ReplyApplied      DeliveryOutcome = "applied"       // the ledger has it
	ReplyDuplicate    DeliveryOutcome = "duplicate"     // the ledger had it already
	ReplyRefused      DeliveryOutcome = "refused"       // stale, contradictory or too late: recorded, completed
	ReplyDeadLettered DeliveryOutcome = "dead_lettered" // nobody can read it, or it is about no job
	ReplyAbandoned    DeliveryOutcome = "abandoned"     // given back, to be delivered again
	ReplyLockLost     DeliveryOutcome = "lock_lost"     // it will be delivered again
	ReplyUnsettled    DeliveryOutcome = "unsettled"     // handled, but not settled: delivered again
)

// Validate names the field that makes no sense.
func (c *RepliesConfig) Validate() error {
	if err := c.Namespace.Validate(); err != nil {
		return err
	}
	switch {
	case c.Callbacks == nil:
		return errors.New("Callbacks is required")
	case c.Prefix == "":
		return errors.New("Prefix is required")
	case c.Subscription == "":
		return errors.New("Subscription is required")
	case c.Lanes < 1:
		return fmt.Errorf("Lanes must be at least 1, is %d", c.Lanes)
	}
	return notNegative([]setting{
		{"InHand", int64(c.InHand)}, {"Timeout", int64(c.Timeout)}, {"MinDelay", int64(c.MinDelay)},
		{"MaxDelay", int64(c.MaxDelay)}, {"Tries", int64(c.Tries)}, {"MaxBytes", int64(c.MaxBytes)},
	})
}

// setDefaults fills in what is not set.
func (c *RepliesConfig) setDefaults() {
	c.InHand = cmp.Or(c.InHand, 16)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
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
	if c.Observe == nil {
		c.Observe = func(Delivery) {}
	}
}

// Replies consumes the reply topics. Any number may run on one namespace.
//
// Source: Option B spec, 10.2 and 11.
type Replies struct {
	bus    *bus
	topics []*subscription
}

// NewReplies returns a consumer. Nothing is sent yet. The error names the field
// that makes no sense.
func NewReplies(cfg RepliesConfig) (*Replies, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("servicebus replies: %w", err)
	}
	opened, err := openBus(cfg.Namespace)
	if err != nil {
		return nil, fmt.Errorf("servicebus replies: %w", err)
	}
	cfg.setDefaults()
	r := &Replies{bus: opened}
	for lane := range cfg.Lanes {
		topic := cfg.Prefix + strconv.Itoa(lane)
		r.topics = append(r.topics, newSubscription(&cfg, topic, func() (receiver, error) {
			return opened.client.NewReceiverForSubscription(topic, cfg.Subscription, &azservicebus.ReceiverOptions{
				ReceiveMode: azservicebus.ReceiveModePeekLock,
			})
		}))
	}
	return r, nil
}

// Run consumes until the context ends, finishes the replies in hand, and closes
// the connections. It is called once.
func (r *Replies) Run(ctx context.Context) error {
	var group errgroup.Group
	for _, topic := range r.topics {
		group.Go(func() error {
			topic.run(ctx)
			return nil
		})
	}
	_ = group.Wait() // A topic that cannot be read is tried again, and is no error.
	// What is in hand is settled; the rest is the peer's to forget.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.bus.close(closing)
	return nil
}

// Down lists the topics that cannot be read at the moment.
func (r *Replies) Down() []string {
	var down []string
	for _, topic := range r.topics {
		if topic.down.Load() {
			down = append(down, topic.name)
		}
	}
	return down
}
