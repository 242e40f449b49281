package busworker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/api"
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
	// Handle does the work of one directive and returns the reference of its result,
	// or nil for none. It is called from many goroutines. Required.
	Handle func(ctx context.Context, directive api.Directive) (json.RawMessage, error)
	// Permanent reports whether no other attempt can succeed after this error.
	// Optional. Defaults to never.
	Permanent func(error) bool
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
	case c.Handle == nil:
		return errors.New("Handle is required")
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
	if c.Permanent == nil {
		c.Permanent = func(error) bool { return false }
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
