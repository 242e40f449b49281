package topology

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Config configures a [Topology].
type Config struct {
	TopicPrefix string // Required. Topic of a lane without its number.
	Lanes       int    // Required.
	// Services are the platform services. Each gets a subscription on each lane.
	// Optional.
	Services []string
	// ReplyPrefix and ReplySubscription name the reply topics and their
	// subscription. Optional. Without a prefix there are no reply topics.
	ReplyPrefix       string
	ReplySubscription string
	// Window is how long a topic must remember message ids: as long as the relay may
	// republish a message. Optional. Defaults to 10 minutes.
	Window time.Duration
	// MessageBytes is the largest message that must fit. Optional.
	MessageBytes int
}

// Topology is the required state of a namespace.
type Topology struct {
	Topics       []Topic
	MessageBytes int
}

// Topic is a required topic.
type Topic struct {
	Name string
	// Window is how long the topic remembers message ids; 0 on reply topics, which do
	// not detect duplicates.
	Window        time.Duration
	Subscriptions []Subscription
}

// Subscription is a required subscription.
type Subscription struct {
	Name string
	// Service limits it to the directives of this service; empty gets every message.
	Service string
	// Ours is true if Lucius itself reads it, so that its name is fixed. Services may
	// name theirs as they like, as long as the topic has one.
	Ours bool
}

// legal matches the names of topics and subscriptions that Service Bus accepts.
var legal = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// The longest names that Service Bus accepts.
const (
	maxTopicName        = 260
	maxSubscriptionName = 50
)

// New returns the topology. The error names the invalid field, service or name.
func New(cfg Config) (*Topology, error) {
	if cfg.Lanes < 1 {
		return nil, fmt.Errorf("topology: Config.Lanes is %d, must be at least 1", cfg.Lanes)
	}
	if cfg.Window == 0 {
		cfg.Window = 10 * time.Minute
	}
	t := &Topology{MessageBytes: cfg.MessageBytes}
	var directives []Subscription
	for _, service := range cfg.Services {
		if !legal.MatchString(service) || len(service) > maxSubscriptionName {
			return nil, fmt.Errorf("service %q cannot be the name of a subscription: up to %d letters, digits, dots, "+
				"dashes and underscores", service, maxSubscriptionName)
		}
		directives = append(directives, Subscription{Name: service, Service: service})
	}
	for lane := range cfg.Lanes {
		t.Topics = append(t.Topics, Topic{
			Name: cfg.TopicPrefix + strconv.Itoa(lane), Window: cfg.Window, Subscriptions: directives,
		})
	}
	if cfg.ReplyPrefix != "" {
		ours := []Subscription{{Name: cfg.ReplySubscription, Ours: true}}
		for lane := range cfg.Lanes {
			t.Topics = append(t.Topics, Topic{Name: cfg.ReplyPrefix + strconv.Itoa(lane), Subscriptions: ours})
		}
	}
	return t, t.checkNames()
}

// checkNames rejects names that Service Bus would not accept and duplicate topics.
func (t *Topology) checkNames() error {
	seen := map[string]bool{}
	for i := range t.Topics {
		topic := &t.Topics[i]
		if !legal.MatchString(topic.Name) || len(topic.Name) > maxTopicName {
			return fmt.Errorf("%q cannot be the name of a topic", topic.Name)
		}
		if seen[topic.Name] {
			return fmt.Errorf("topic %q is for directives and for replies", topic.Name)
		}
		seen[topic.Name] = true
		for _, s := range topic.Subscriptions {
			if !legal.MatchString(s.Name) || len(s.Name) > maxSubscriptionName {
				return fmt.Errorf("%q cannot be the name of a subscription", s.Name)
			}
		}
	}
	return nil
}
