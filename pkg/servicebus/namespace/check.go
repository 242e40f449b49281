package namespace

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// TopicState is the present state of a topic.
type TopicState struct {
	Active       bool
	Deduplicates bool
	Window       time.Duration
	MessageBytes int // 0 if the topic has no separate limit
	Lifetime
	Subscriptions []SubscriptionState
}

// SubscriptionState is the present state of a subscription.
type SubscriptionState struct {
	Name     string
	Active   bool
	Sessions bool          // it delivers only messages with a session id
	Lock     time.Duration // of a delivered message; 0 if it is unknown
	Lifetime
	Rules []Rule
}

// Lifetime is how long an entity keeps its messages, and itself. The longest duration,
// or 0, is forever.
type Lifetime struct {
	Messages time.Duration // the default time to live, which bounds that of each message
	Idle     time.Duration // an entity that is not used for this long is deleted
}

// find returns the subscription of that name, or nil.
func (s *TopicState) find(name string) *SubscriptionState {
	for i := range s.Subscriptions {
		if strings.EqualFold(s.Subscriptions[i].Name, name) {
			return &s.Subscriptions[i]
		}
	}
	return nil
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

// concurrent is how many topics are read concurrently.
const concurrent = 8

// Check compares the namespace with the topology and changes nothing. It returns
// the namespace's errors, and [ErrForbidden] if the credential has no right to look.
func (t *Topology) Check(ctx context.Context, admin Admin) ([]Finding, error) {
	limit, err := admin.Limits(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the namespace's properties: %w", err)
	}
	findings := make([][]Finding, len(t.Topics))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrent)
	for i := range t.Topics {
		group.Go(func() error {
			topic := &t.Topics[i]
			state, err := admin.Topic(ctx, topic.Name)
			if err != nil {
				return fmt.Errorf("read topic %s: %w", topic.Name, err)
			}
			j := judge{topology: t, topic: topic, state: state, limit: limit}
			j.judge()
			findings[i] = j.found
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(findings...), nil
}

// judge compares the state of one topic with the required one.
type judge struct {
	topology *Topology
	topic    *Topic
	state    *TopicState // nil if the topic does not exist
	limit    int         // the namespace's largest message, 0 if there is none
	found    []Finding
}

// add adds a finding about the topic, or about one of its subscriptions.
func (j *judge) add(level Level, subscription, format string, args ...any) *Finding {
	entity := j.topic.Name
	if subscription != "" {
		entity += "/" + subscription
	}
	j.found = append(j.found, Finding{Entity: entity, Level: level, Detail: fmt.Sprintf(format, args...)})
	return &j.found[len(j.found)-1]
}

// judge judges the topic, who takes its messages, and each subscription.
func (j *judge) judge() {
	if j.state == nil {
		j.add(Wrong, "", "the topic is missing").Missing = true
		return
	}
	j.judgeTopic()
	switch {
	case j.topic.directives() && len(j.state.Subscriptions) == 0:
		j.add(Wrong, "", "the topic has no subscription, so every message is lost silently").Missing = len(j.topic.Subscriptions) > 0
	case j.topic.directives():
		j.judgeCoverage()
	default:
		for _, s := range j.topology.missing(j.topic, j.state) {
			j.add(Wrong, s.Name, "the subscription is missing").Missing = true
		}
	}
	for i := range j.state.Subscriptions {
		j.judgeSubscription(&j.state.Subscriptions[i])
	}
}

// judgeTopic judges the properties of the topic itself.
func (j *judge) judgeTopic() {
	if !j.state.Active {
		j.add(Wrong, "", "the topic is disabled")
	}
	j.judgeLifetime("", j.state.Lifetime)
	if !j.topic.directives() {
		return
	}
	switch {
	case !j.state.Deduplicates:
		j.add(Warning, "", "the topic does not detect duplicates, so a directive that is sent twice arrives twice; "+
			"duplicate detection can only be enabled when a topic is created")
	case j.state.Window < j.topic.Window:
		j.add(Warning, "", "duplicates are detected for %s, but a directive may be resent for %s", j.state.Window, j.topic.Window)
	}
	if j.state.MessageBytes > 0 {
		j.limit = j.state.MessageBytes
	}
	if j.limit > 0 && j.topology.MessageBytes > j.limit {
		j.add(Wrong, "", "messages may have %d bytes, but directives have up to %d: lower LUCIUS_MAX_PAYLOAD_BYTES, or raise "+
			"the limit, which takes the Premium tier", j.limit, j.topology.MessageBytes)
	}
}

// judgeCoverage checks that some subscription takes the directives of each service, and
// that a subscription named after a service takes only its own.
func (j *judge) judgeCoverage() {
	for _, service := range j.topology.services() {
		var untaken, unsure []string
		for _, d := range j.topology.Directives {
			if d.Service != service {
				continue
			}
			switch j.state.takes(d) {
			case none:
				untaken = append(untaken, d.StepType)
			case some:
				unsure = append(unsure, d.StepType)
			case all:
			}
		}
		own := j.state.find(service)
		if len(untaken) > 0 {
			advice := "add a subscription with the correlation filter service = '" + service + "'"
			if own != nil {
				advice = "this one has other rules (" + own.rules() + "): add one with the correlation filter service = '" + service + "'"
			}
			j.add(Wrong, service, "no subscription takes the directives of service %s (step types %s), so each is lost silently; %s",
				service, strings.Join(untaken, ", "), advice).Missing = own == nil
		}
		if len(unsure) > 0 {
			j.add(Warning, service, "only filters that take some of the directives of service %s (step types %s), or that cannot be "+
				"judged, were found; a directive that passes none is lost silently: compare them by hand, or use the correlation "+
				"filter service = '%s'", service, strings.Join(unsure, ", "), service)
		}
		if own != nil {
			j.judgeForeign(own, service)
		}
	}
}

// judgeForeign checks that a subscription named after a service takes no directives of
// another one.
func (j *judge) judgeForeign(s *SubscriptionState, service string) {
	var foreign []string
	for _, d := range j.topology.Directives {
		if d.Service != service && s.takes(d) == all {
			foreign = append(foreign, d.Service)
		}
	}
	if len(foreign) > 0 {
		j.add(Warning, s.Name, "it takes the directives of %s as well (%s): its worker would refuse or run another service's work; "+
			"replace its rules by the correlation filter service = '%s'",
			strings.Join(slices.Compact(foreign), ", "), s.rules(), service)
	}
}

// takes returns which directives of that kind any subscription takes.
func (s *TopicState) takes(d Directive) coverage {
	taken := none
	for i := range s.Subscriptions {
		taken = max(taken, s.Subscriptions[i].takes(d))
	}
	return taken
}

// missing returns the required subscriptions that do not exist, and whose messages no
// other subscription may take.
func (t *Topology) missing(topic *Topic, state *TopicState) []Subscription {
	var missing []Subscription
	for _, s := range topic.Subscriptions {
		taken := func(d Directive) bool { return d.Service != s.Service || state != nil && state.takes(d) != none }
		switch {
		case state != nil && state.find(s.Name) != nil:
		case !s.ours() && !slices.ContainsFunc(t.Directives, func(d Directive) bool { return !taken(d) }):
		default:
			missing = append(missing, s)
		}
	}
	return missing
}

// requires reports whether the topology has a subscription of that name.
func (t *Topic) requires(s *SubscriptionState) bool {
	return slices.ContainsFunc(t.Subscriptions, func(required Subscription) bool { return strings.EqualFold(required.Name, s.Name) })
}

// minReplyLock is the shortest lock that Lucius can renew in time: each of its calls on
// a reply may take ten seconds.
const minReplyLock = 30 * time.Second

// longestLock is the longest lock that Service Bus allows.
const longestLock = 5 * time.Minute

// judgeSubscription judges the properties of a subscription that takes messages of
// Lucius. Of others it reports only that they are disabled.
func (j *judge) judgeSubscription(s *SubscriptionState) {
	switch {
	case s.Active:
	case j.needs(s):
		j.add(Wrong, s.Name, "the subscription is disabled, and no other takes these messages: enable it, or no service receives them")
	default:
		j.add(Warning, s.Name, "the subscription is disabled")
	}
	relevant := j.topic.requires(s) || slices.ContainsFunc(j.topology.Directives, func(d Directive) bool {
		return j.topic.directives() && s.takes(d) > none
	})
	if !relevant {
		return
	}
	if s.Sessions {
		j.add(Wrong, s.Name, "it requires sessions, and messages here have no session id, so each goes to its dead letters; "+
			"create it again without sessions")
	}
	j.judgeLifetime(s.Name, s.Lifetime)
	switch {
	case s.Lock == 0:
	case !j.topic.directives() && s.Lock < minReplyLock:
		j.add(Warning, s.Name, "its locks last %s, too short for Lucius to renew them: set the lock duration to at least %s",
			s.Lock, minReplyLock)
	case j.topic.directives() && s.Lock < min(j.topology.AckTimeout, longestLock):
		j.add(Warning, s.Name, "its locks last %s, less than the ACK timeout of %s: until a worker has renewed its lock, a second "+
			"worker may get the same directive; set the lock duration to at least %s",
			s.Lock, j.topology.AckTimeout, min(j.topology.AckTimeout, longestLock))
	}
}

// needs reports whether some messages of Lucius pass no other subscription that is
// enabled.
func (j *judge) needs(s *SubscriptionState) bool {
	if !j.topic.directives() {
		return j.topic.requires(s)
	}
	return slices.ContainsFunc(j.topology.Directives, func(d Directive) bool {
		return s.takes(d) > none && !slices.ContainsFunc(j.state.Subscriptions, func(other SubscriptionState) bool {
			return other.Active && other.takes(d) >= s.takes(d)
		})
	})
}

// judgeLifetime judges how long messages and the entity live.
func (j *judge) judgeLifetime(subscription string, l Lifetime) {
	switch {
	case l.Messages == 0:
	case j.topic.directives() && l.Messages < j.topology.AckTimeout:
		j.add(Wrong, subscription, "messages expire after %s, before the ACK timeout of %s, so a directive that waits for its worker "+
			"is lost with its attempt: set the default time to live to at least %[2]s", l.Messages, j.topology.AckTimeout)
	case !j.topic.directives() && l.Messages < j.topology.Lease:
		j.add(Warning, subscription, "messages expire after %s, before the lease of %s ends, so replies are lost if Lucius is away "+
			"that long: set the default time to live to at least %[2]s", l.Messages, j.topology.Lease)
	}
	if l.Idle > 0 && l.Idle < forever {
		j.add(Warning, subscription, "it is deleted after %s without use, and messages are lost from then on: turn auto-delete off", l.Idle)
	}
}
