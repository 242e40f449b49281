package topology

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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

// judge compares the state of a topic with the required one.
func (t *Topology) judge(topic *Topic, state *TopicState, limit int) []Finding {
	if state == nil {
		return []Finding{{Entity: topic.Name, Level: Wrong, Detail: "the topic is not there", Missing: true}}
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
	return append(found, judgeSubscriptions(topic, state)...)
}

// judgeSubscriptions reports disabled subscriptions and missing ones that Lucius
// itself reads.
func judgeSubscriptions(topic *Topic, state *TopicState) []Finding {
	var found []Finding
	there := map[string]bool{}
	for _, s := range state.Subscriptions {
		there[s.Name] = true
		if !s.Active {
			found = append(found, Finding{
				Entity: topic.Name + "/" + s.Name, Level: Warning, Detail: "the subscription is disabled",
			})
		}
	}
	for _, s := range topic.Subscriptions {
		if s.Ours && !there[s.Name] {
			found = append(found, Finding{
				Entity: topic.Name + "/" + s.Name, Level: Wrong, Detail: "the subscription is not there", Missing: true,
			})
		}
	}
	return found
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
		more, err := subscribe(ctx, admin, topic, state)
		if created = append(created, more...); err != nil {
			return created, err
		}
	}
	return created, nil
}

// subscribe creates the missing subscriptions of a topic.
func subscribe(ctx context.Context, admin Admin, topic *Topic, state *TopicState) (created []string, err error) {
	there := map[string]bool{}
	for _, s := range state.Subscriptions {
		there[s.Name] = true
	}
	for _, s := range topic.Subscriptions {
		if there[s.Name] {
			continue
		}
		if err := admin.CreateSubscription(ctx, topic.Name, s); err != nil {
			return created, fmt.Errorf("create subscription %s of topic %s: %w", s.Name, topic.Name, err)
		}
		created = append(created, topic.Name+"/"+s.Name)
	}
	return created, nil
}
