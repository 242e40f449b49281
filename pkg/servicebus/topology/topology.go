package topology

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Config is what the names are made of.
type Config struct {
	TopicPrefix string // Required. Topic of a lane without its number.
	Lanes       int    // Required.
	// Services are the platform services that have a subscription of their own on
	// each lane. Optional.
	Services []string
	// ReplyPrefix and ReplySubscription name the topics that replies come by.
	// Optional. Without a prefix there are none.
	ReplyPrefix       string
	ReplySubscription string
	// Window is how long a message id must be remembered: as long as one may be
	// published again. Optional. Defaults to 10 minutes.
	Window time.Duration
	// MessageBytes is the largest message that is to fit. Optional.
	MessageBytes int
}

// Topology is what has to be there.
type Topology struct {
	Topics       []Topic
	MessageBytes int
}

// Topic is a topic that has to be there.
type Topic struct {
	Name string
	// Window is how long message ids are remembered.
	Window        time.Duration
	Subscriptions []Subscription
}

// Subscription is a subscription that has to be there.
type Subscription struct {
	Name string
	// Service is whose directives it gets alone; empty gets all.
	Service string
	// Ours says that Lucius itself reads it, so that it has to have this name. Any
	// other may be named as its owner likes, as long as the topic has one.
	Ours bool
}

// legal is what Service Bus takes for the name of a topic or a subscription.
var legal = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// The longest names that Service Bus takes.
const (
	maxTopicName        = 260
	maxSubscriptionName = 50
)

// New works out the topology. The error names the field, or the service, that
// cannot be a name.
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

// checkNames finds names that Service Bus would not take, and such that stand for
// two topics.
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
