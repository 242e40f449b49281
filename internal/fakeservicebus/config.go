package fakeservicebus

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Config configures a Server.
type Config struct {
	// Address is the address to listen on. Optional. Defaults to 127.0.0.1 and a free
	// port.
	Address string
	// Topics exist from the start. Optional; AddTopic adds more.
	Topics []Topic
	// LockDuration is how long a receiver keeps a message before it is delivered
	// again. Optional. Defaults to 30 s.
	LockDuration time.Duration
	// MaxDeliveries is how often a message is delivered before it is dead-lettered.
	// Optional. Defaults to 10.
	MaxDeliveries int
	// MaxMessageSize limits a message, and a batch, in bytes. Optional. Defaults to
	// 262,144, the limit of the Standard tier.
	MaxMessageSize int
	// Tier is what the management interface says of the namespace. Optional. Defaults to
	// Standard.
	Tier string
	// KeepAlive is the time between two empty frames, which keep idle clients
	// connected. Optional. Defaults to 10 s.
	KeepAlive time.Duration
	// Hooks inject faults. Optional; SetHooks replaces them.
	Hooks Hooks
}

// Topic declares a topic.
type Topic struct {
	// Name may have several segments. Names are compared without regard to case.
	// Required.
	Name string
	// DuplicateWindow is how long a message id is remembered; a message whose id is
	// known is accepted and dropped. Optional. Defaults to 10 min; a negative one
	// turns duplicate detection off.
	DuplicateWindow time.Duration
	// Subscriptions exist from the start. Optional; AddSubscription adds more.
	Subscriptions []Subscription

	xml string // as ServeAdmin shows it; AddTopic describes a topic that has none
}

// Subscription declares a subscription of a topic. It receives a copy of every
// message that is sent after it was added and that passes its filter.
type Subscription struct {
	// Name is unique in its topic. Required.
	Name string
	// Filter selects messages that have these application properties, like a
	// correlation filter. Optional. Defaults to every message.
	Filter map[string]string
	// LockDuration overrides Config.LockDuration. Optional.
	LockDuration time.Duration
	// MaxDeliveries overrides Config.MaxDeliveries. Optional.
	MaxDeliveries int

	// As ServeAdmin shows it; AddSubscription describes a subscription that has none.
	xml   string
	rules []rule
}

// Validate names the invalid field.
func (c Config) Validate() error {
	switch {
	case c.LockDuration < 0:
		return fmt.Errorf("Config.LockDuration must not be negative, is %s", c.LockDuration)
	case c.MaxDeliveries < 0:
		return fmt.Errorf("Config.MaxDeliveries must not be negative, is %d", c.MaxDeliveries)
	case c.MaxMessageSize < 0:
		return fmt.Errorf("Config.MaxMessageSize must not be negative, is %d", c.MaxMessageSize)
	case c.KeepAlive < 0:
		return fmt.Errorf("Config.KeepAlive must not be negative, is %s", c.KeepAlive)
	}
	for i, t := range c.Topics {
		if err := t.Validate(); err != nil {
			return fmt.Errorf("Config.Topics[%d]: %w", i, err)
		}
	}
	return nil
}

// Validate names the invalid field.
func (t Topic) Validate() error {
	if !validName(t.Name) {
		return fmt.Errorf("Topic.Name must be a path without $ and without /Subscriptions/, is %q", t.Name)
	}
	for i, s := range t.Subscriptions {
		if err := s.Validate(); err != nil {
			return fmt.Errorf("Topic.Subscriptions[%d]: %w", i, err)
		}
	}
	return nil
}

// Validate names the invalid field.
func (s Subscription) Validate() error {
	switch {
	case !validName(s.Name) || strings.Contains(s.Name, "/"):
		return fmt.Errorf("Subscription.Name must be one segment without $, is %q", s.Name)
	case s.LockDuration < 0:
		return fmt.Errorf("Subscription.LockDuration must not be negative, is %s", s.LockDuration)
	case s.MaxDeliveries < 0:
		return fmt.Errorf("Subscription.MaxDeliveries must not be negative, is %d", s.MaxDeliveries)
	default:
		return nil
	}
}

// validName reports whether a name can be part of an address.
func validName(name string) bool {
	return name != "" && !strings.Contains(name, "$") && strings.Trim(name, "/") == name &&
		!strings.Contains(normal(name), subscriptionsSegment)
}

// ErrExists is returned when a topic or subscription of that name exists already.
var ErrExists = errors.New("the entity exists")

// ErrNoTopic is returned when a subscription is added to a topic that does not exist.
var ErrNoTopic = errors.New("no such topic")

// ErrRunning is returned by Restart when the server has not been stopped.
var ErrRunning = errors.New("the server is running")

// ErrClosed is returned by Restart when the server has been closed.
var ErrClosed = errors.New("the server is closed")
