// Package namespace defines which topics and subscriptions a namespace of Service
// Bus must have, checks them, and creates missing ones.
//
//	global-bus-p0 … p15              one for each lane: directives
//	   └─ <service>                  a platform service's subscription: its directives
//	global-bus-replies-p0 … p15      with replies by bus
//	   └─ lucius-invoker             ACK, RESULT and heartbeat messages
//
// A topic silently drops a message that no subscription takes, so the check compares
// the filters of the subscriptions with the directives of the protocols.
//
// Source: Option B spec, 9 and 10.
package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config configures a [Topology].
type Config struct {
	TopicPrefix string // Required. Topic of a lane without its number.
	Lanes       int    // Required.
	// Directives are the kinds of directives that the protocols send. Each service gets
	// a subscription on each lane. Optional.
	Directives []Directive
	// ReplyPrefix and ReplySubscription name the reply topics and their
	// subscription. Optional. Without a prefix there are no reply topics.
	ReplyPrefix       string
	ReplySubscription string
	// Window is how long a topic must remember message ids: as long as the relay may
	// republish a message. Optional. Defaults to 10 minutes.
	Window time.Duration
	// MessageBytes is the largest message that must fit. Optional.
	MessageBytes int
	// AckTimeout is the longest time that a worker has from the publish to its ACK.
	// Optional.
	AckTimeout time.Duration
	// Lease is the longest time that a worker has from its ACK to its RESULT. Optional.
	Lease time.Duration
}

// Directive is a kind of directive.
type Directive struct{ Service, StepType string }

// Topology is the required state of a namespace.
type Topology struct {
	Topics       []Topic
	Directives   []Directive
	MessageBytes int
	AckTimeout   time.Duration
	Lease        time.Duration
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
}

// ours reports whether Lucius itself reads the subscription, so that its name is fixed.
// Services may name theirs as they like, as long as each directive is taken.
func (s *Subscription) ours() bool { return s.Service == "" }

// directives reports whether the topic carries directives, not replies.
func (t *Topic) directives() bool { return t.Window > 0 }

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
	t := &Topology{MessageBytes: cfg.MessageBytes, AckTimeout: cfg.AckTimeout, Lease: cfg.Lease, Directives: slices.Clone(cfg.Directives)}
	slices.SortFunc(t.Directives, func(a, b Directive) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.StepType, b.StepType))
	})
	t.Directives = slices.Compact(t.Directives)
	var services []Subscription
	for _, service := range t.services() {
		if !legal.MatchString(service) || len(service) > maxSubscriptionName {
			return nil, fmt.Errorf("service %q cannot be the name of a subscription: up to %d letters, digits, dots, "+
				"dashes and underscores", service, maxSubscriptionName)
		}
		services = append(services, Subscription{Name: service, Service: service})
	}
	for lane := range cfg.Lanes {
		t.Topics = append(t.Topics, Topic{Name: cfg.TopicPrefix + strconv.Itoa(lane), Window: cfg.Window, Subscriptions: services})
	}
	if cfg.ReplyPrefix != "" {
		ours := []Subscription{{Name: cfg.ReplySubscription}}
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

// services returns the services of the directives, each once, in order.
func (t *Topology) services() []string {
	var services []string
	for _, d := range t.Directives {
		services = append(services, d.Service)
	}
	return slices.Compact(services)
}

// Admin is the management side of a namespace. Its methods are safe for concurrent use.
type Admin interface {
	// Limits returns the namespace's largest message, 0 if each topic has its own
	// limit.
	Limits(ctx context.Context) (messageBytes int, err error)
	// Topic returns the present state of a topic, nil if it does not exist.
	Topic(ctx context.Context, name string) (*TopicState, error)
	// CreateTopic creates a topic. It returns [ErrConflict] if the topic exists, and if
	// another change is under way.
	CreateTopic(ctx context.Context, topic *Topic) error
	// CreateSubscription creates a subscription with its rule. It returns [ErrConflict]
	// as CreateTopic does.
	CreateSubscription(ctx context.Context, topic string, subscription Subscription) error
}

// ErrForbidden is returned by an [Admin] without the right to manage the namespace.
var ErrForbidden = errors.New("the credential has no right to manage the namespace")

// ErrConflict is returned by an [Admin] for an entity that exists, and for one that
// cannot be created because another change is under way. The namespace answers 409 to
// both.
var ErrConflict = errors.New("the namespace answers 409: the entity exists, or another change is under way")

// Between two tries, creation waits for the other change to end.
const (
	firstWait = 500 * time.Millisecond
	maxWait   = 8 * time.Second
	maxTries  = 10
)

// Provision creates the topics and subscriptions that [Topology.Check] reports as
// missing, and returns the names of those that it has created itself. It never changes
// existing ones.
func (t *Topology) Provision(ctx context.Context, admin Admin) (created []string, err error) {
	for i := range t.Topics {
		topic := &t.Topics[i]
		state, err := admin.Topic(ctx, topic.Name)
		if err != nil {
			return created, fmt.Errorf("read topic %s: %w", topic.Name, err)
		}
		if state == nil {
			done, err := create(ctx, func() error { return admin.CreateTopic(ctx, topic) }, func() (bool, error) {
				state, err = admin.Topic(ctx, topic.Name)
				return state != nil, err
			})
			if err != nil {
				return created, fmt.Errorf("create topic %s: %w", topic.Name, err)
			}
			if done {
				created = append(created, topic.Name)
			}
		}
		for _, s := range t.missing(topic, state) {
			done, err := create(ctx, func() error { return admin.CreateSubscription(ctx, topic.Name, s) }, func() (bool, error) {
				state, err := admin.Topic(ctx, topic.Name)
				return state != nil && state.find(s.Name) != nil, err
			})
			if err != nil {
				return created, fmt.Errorf("create subscription %s of topic %s: %w", s.Name, topic.Name, err)
			}
			if done {
				created = append(created, topic.Name+"/"+s.Name)
			}
		}
	}
	return created, nil
}

// create makes an entity. After a conflict it checks whether the entity exists, and tries
// again if it does not. It reports whether this call has created the entity.
func create(ctx context.Context, put func() error, exists func() (bool, error)) (created bool, err error) {
	wait := firstWait
	for range maxTries {
		if err = put(); !errors.Is(err, ErrConflict) {
			return err == nil, err
		}
		if there, err := exists(); there || err != nil {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, maxWait)
	}
	return false, err
}
