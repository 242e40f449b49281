package topology

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrForbidden is returned by an [Admin] whose credential may not manage the
// namespace.
var ErrForbidden = errors.New("the credential has no right to manage the namespace")

// Admin is the management side of a namespace.
type Admin interface {
	// Limits says what the namespace takes at most; 0 where it does not say.
	Limits(ctx context.Context) (messageBytes int, err error)
	// Topic returns a topic as it is, nil where there is none.
	Topic(ctx context.Context, name string) (*TopicState, error)
	// CreateTopic creates a topic. One that is there already is no error.
	CreateTopic(ctx context.Context, topic *Topic) error
	// CreateSubscription creates a subscription with its rule. One that is there
	// already is no error.
	CreateSubscription(ctx context.Context, topic string, subscription Subscription) error
}

// TopicState is a topic as it is.
type TopicState struct {
	Active        bool
	Deduplicates  bool
	Window        time.Duration
	MessageBytes  int // 0 where the topic has no limit of its own
	Subscriptions []SubscriptionState
}

// SubscriptionState is a subscription as it is.
type SubscriptionState struct {
	Name   string
	Active bool
}

// Level is how bad a finding is.
type Level string

// The levels.
const (
	Wrong   Level = "wrong"   // messages would be lost, or nothing would work
	Warning Level = "warning" // it works, with less than is promised
)

// Finding is one thing that is not as it has to be.
type Finding struct {
	Entity string // a topic, or topic/subscription
	Level  Level
	Detail string
	// Missing says that provisioning creates it.
	Missing bool
}

// String is the finding on one line.
func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Level, f.Entity, f.Detail) }

// Check looks at everything that has to be there, and changes nothing. It returns
// [ErrForbidden] where the credential may not even look, and the namespace's
// errors.
func (t *Topology) Check(ctx context.Context, admin Admin) ([]Finding, error) {
	limit, err := admin.Limits(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the namespace: %w", err)
	}
	var findings []Finding
	for i := range t.Topics {
		topic := &t.Topics[i]
		state, err := admin.Topic(ctx, topic.Name)
		if err != nil {
			return nil, fmt.Errorf("look at topic %s: %w", topic.Name, err)
		}
		findings = append(findings, t.judge(topic, state, limit)...)
	}
	return findings, nil
}

// judge compares a topic with what it has to be.
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
			"that can only be chosen when a topic is created")
	case state.Window < topic.Window:
		add(Warning, "duplicates are detected for %s, and one can be sent again for %s", state.Window, topic.Window)
	}
	if state.MessageBytes > 0 {
		limit = state.MessageBytes
	}
	if limit > 0 && topic.Window > 0 && t.MessageBytes > limit {
		add(Wrong, "messages may have %d bytes, and directives up to %d", limit, t.MessageBytes)
	}
	if topic.Window > 0 && len(state.Subscriptions) == 0 {
		found = append(found, Finding{
			Entity: topic.Name, Level: Wrong, Missing: len(topic.Subscriptions) > 0,
			Detail: "the topic has no subscription, so every message is lost without a word",
		})
	}
	return append(found, judgeSubscriptions(topic, state)...)
}

// judgeSubscriptions looks for those that Lucius reads itself, and at those that
// are there.
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

// Provision creates the topics that are missing, and on each the subscriptions
// that are, and says what it has created. To do it again changes nothing. What is
// there is left as it is: see [Topology.Check].
func (t *Topology) Provision(ctx context.Context, admin Admin) (created []string, err error) {
	for i := range t.Topics {
		topic := &t.Topics[i]
		state, err := admin.Topic(ctx, topic.Name)
		if err != nil {
			return created, fmt.Errorf("look at topic %s: %w", topic.Name, err)
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

// subscribe creates the subscriptions of a topic that are missing.
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
