// Package topology defines which topics and subscriptions a namespace of Service
// Bus must have, checks them, and creates missing ones.
//
//	global-bus-p0 … p15              one for each lane: directives
//	   └─ <service>                  a platform service's subscription: its directives
//	global-bus-replies-p0 … p15      with replies by bus
//	   └─ lucius-invoker             ACK, RESULT and heartbeat messages
//
// A topic without a subscription silently drops every message, so the check reports
// it as an error.
//
// Source: Option B spec, 9 and 10.
package topology

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
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
	seen := map[string]bool{}
	for i := range t.Topics {
		name := t.Topics[i].Name
		if !legal.MatchString(name) || len(name) > maxTopicName {
			return nil, fmt.Errorf("%q cannot be the name of a topic", name)
		}
		if seen[name] {
			return nil, fmt.Errorf("topic %q is for directives and for replies", name)
		}
		seen[name] = true
		for _, s := range t.Topics[i].Subscriptions {
			if !legal.MatchString(s.Name) || len(s.Name) > maxSubscriptionName {
				return nil, fmt.Errorf("%q cannot be the name of a subscription", s.Name)
			}
		}
	}
	return t, nil
}

// ErrForbidden is returned by an [Admin] without the right to manage the namespace.
var ErrForbidden = errors.New("the credential has no right to manage the namespace")

// Admin is the management side of a namespace.
type Admin interface {
	// Limits returns the namespace's largest message, 0 if each topic has its own
	// limit.
	Limits(ctx context.Context) (messageBytes int, err error)
	// Topic returns the present state of a topic, nil if it does not exist.
	Topic(ctx context.Context, name string) (*TopicState, error)
	// CreateTopic creates a topic, unless it exists.
	CreateTopic(ctx context.Context, topic *Topic) error
	// CreateSubscription creates a subscription with its rule, unless it exists.
	CreateSubscription(ctx context.Context, topic string, subscription Subscription) error
}

// TopicState is the present state of a topic.
type TopicState struct {
	Active        bool
	Deduplicates  bool
	Window        time.Duration
	MessageBytes  int // 0 if the topic has no limit of its own
	Subscriptions []SubscriptionState
}

// SubscriptionState is the present state of a subscription.
type SubscriptionState struct {
	Name   string
	Active bool
}

// Level is the severity of a finding.
type Level string

// The levels.
const (
	Wrong   Level = "wrong"   // messages would be lost or refused
	Warning Level = "warning" // it works, but a guarantee is weaker
)

// Finding is one difference from the required state.
type Finding struct {
	Entity string // a topic, or topic/subscription
	Level  Level
	Detail string
	// Missing is true if provisioning would create the entity.
	Missing bool
}

// String returns the finding on one line.
func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Level, f.Entity, f.Detail) }

// Check compares the namespace with the topology and changes nothing. It returns
// the namespace's errors, and [ErrForbidden] if the credential has no right to look.
func (t *Topology) Check(ctx context.Context, admin Admin) ([]Finding, error) {
	limit, err := admin.Limits(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the namespace's properties: %w", err)
	}
	var findings []Finding
	for i := range t.Topics {
		topic := &t.Topics[i]
		state, err := admin.Topic(ctx, topic.Name)
		if err != nil {
			return nil, fmt.Errorf("read topic %s: %w", topic.Name, err)
		}
		findings = append(findings, t.judge(topic, state, limit)...)
	}
	return findings, nil
}

// judge compares the state of a topic with the required one. Of its subscriptions
// it reports the disabled ones, and the missing ones that Lucius itself reads.
func (t *Topology) judge(topic *Topic, state *TopicState, limit int) []Finding {
	if state == nil {
		return []Finding{{Entity: topic.Name, Level: Wrong, Detail: "the topic is missing", Missing: true}}
	}
	var found []Finding
	add := func(level Level, format string, args ...any) {
		found = append(found, Finding{Entity: topic.Name, Level: level, Detail: fmt.Sprintf(format, args...)})
	}
	if !state.Active {
		add(Wrong, "the topic is disabled")
	}
	switch {
	case topic.Window == 0:
	case !state.Deduplicates:
		add(Warning, "the topic does not detect duplicates, so a directive that is sent twice arrives twice; "+
			"duplicate detection can only be enabled when a topic is created")
	case state.Window < topic.Window:
		add(Warning, "duplicates are detected for %s, but a directive may be resent for %s", state.Window, topic.Window)
	}
	if state.MessageBytes > 0 {
		limit = state.MessageBytes
	}
	if limit > 0 && topic.Window > 0 && t.MessageBytes > limit {
		add(Wrong, "messages may have %d bytes, but directives have up to %d", limit, t.MessageBytes)
	}
	if topic.Window > 0 && len(state.Subscriptions) == 0 {
		found = append(found, Finding{
			Entity: topic.Name, Level: Wrong, Missing: len(topic.Subscriptions) > 0,
			Detail: "the topic has no subscription, so every message is lost silently",
		})
	}
	for _, s := range state.Subscriptions {
		if !s.Active {
			found = append(found, Finding{Entity: topic.Name + "/" + s.Name, Level: Warning, Detail: "the subscription is disabled"})
		}
	}
	for _, s := range topic.Subscriptions {
		if s.Ours && !state.has(s.Name) {
			found = append(found, Finding{
				Entity: topic.Name + "/" + s.Name, Level: Wrong, Detail: "the subscription is missing", Missing: true,
			})
		}
	}
	return found
}

// has reports whether the topic has a subscription of that name.
func (s *TopicState) has(name string) bool {
	return slices.ContainsFunc(s.Subscriptions, func(s SubscriptionState) bool { return s.Name == name })
}

// Provision creates the missing topics and subscriptions and returns their names.
// It never changes existing ones, whose differences [Topology.Check] reports.
func (t *Topology) Provision(ctx context.Context, admin Admin) (created []string, err error) {
	for i := range t.Topics {
		topic := &t.Topics[i]
		state, err := admin.Topic(ctx, topic.Name)
		if err != nil {
			return created, fmt.Errorf("read topic %s: %w", topic.Name, err)
		}
		if state == nil {
			if err := admin.CreateTopic(ctx, topic); err != nil {
				return created, fmt.Errorf("create topic %s: %w", topic.Name, err)
			}
			created, state = append(created, topic.Name), &TopicState{}
		}
		for _, s := range topic.Subscriptions {
			if state.has(s.Name) {
				continue
			}
			if err := admin.CreateSubscription(ctx, topic.Name, s); err != nil {
				return created, fmt.Errorf("create subscription %s of topic %s: %w", s.Name, topic.Name, err)
			}
			created = append(created, topic.Name+"/"+s.Name)
		}
	}
	return created, nil
}
