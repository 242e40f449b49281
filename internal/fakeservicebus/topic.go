package fakeservicebus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The parts of addresses, in lower case: addresses are compared without regard to
// case.
const (
	subscriptionsSegment = "/subscriptions/"
	deadLetterSuffix     = "/$deadletterqueue"
	managementSuffix     = "/$management"
	tokenAddress         = "$cbs"
)

// normal returns the form in which addresses are compared.
func normal(address string) string { return strings.ToLower(address) }

// topic copies each message to all of its subscriptions. It is guarded by the
// server's mutex.
type topic struct {
	server        *Server
	name          string
	window        time.Duration
	subscriptions []*queue
	sequence      int64
	xml           string               // its description, as ServeAdmin shows it
	seen          map[string]time.Time // message id to when it is forgotten
	forgetting    []string             // the ids of seen, oldest first
}

// AddTopic adds a topic with its subscriptions. It returns ErrExists for a name that
// is taken, or the error of Validate. It is safe for concurrent use.
func (s *Server) AddTopic(t Topic) error {
	if err := t.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.topics[normal(t.Name)]; taken {
		return fmt.Errorf("topic %s: %w", t.Name, ErrExists)
	}
	added := &topic{
		server: s, name: t.Name, window: cmp.Or(t.DuplicateWindow, 10*time.Minute), seen: map[string]time.Time{},
		xml: t.xml,
	}
	if added.xml == "" {
		added.xml = fmt.Sprintf("<RequiresDuplicateDetection>%t</RequiresDuplicateDetection>"+
			"<DuplicateDetectionHistoryTimeWindow>PT%dS</DuplicateDetectionHistoryTimeWindow>",
			added.window > 0, int(max(added.window, 0).Seconds()))
	}
	s.topics[normal(t.Name)] = added
	for _, subscription := range t.Subscriptions {
		if err := added.subscribe(subscription); err != nil {
			return err
		}
	}
	return nil
}

// AddSubscription adds a subscription to a topic. It returns ErrNoTopic, ErrExists,
// or the error of Validate. It is safe for concurrent use.
func (s *Server) AddSubscription(topicName string, subscription Subscription) error {
	if err := subscription.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.topics[normal(topicName)]
	if !ok {
		return fmt.Errorf("topic %s: %w", topicName, ErrNoTopic)
	}
	return t.subscribe(subscription)
}

// subscribe adds a subscription and its dead-letter queue.
func (t *topic) subscribe(subscription Subscription) error {
	path := t.name + "/Subscriptions/" + subscription.Name
	if _, taken := t.server.queues[normal(path)]; taken {
		return fmt.Errorf("subscription %s: %w", path, ErrExists)
	}
	q := newQueue(t.server, path, subscription)
	q.deadLetters = newQueue(t.server, path+"/$DeadLetterQueue", subscription)
	t.server.queues[normal(path)] = q
	t.server.queues[normal(path)+deadLetterSuffix] = q.deadLetters
	t.subscriptions = append(t.subscriptions, q)
	return nil
}

// arrivals holds how each message of a transfer reaches each subscription.
type arrivals map[*queue][]Arrival

// arrivalsOf asks the hook. It locks the mutex, but not while the hook runs.
func (t *topic) arrivalsOf(messages []*content) arrivals {
	hook := t.server.hooks.Load().OnArrival
	if hook == nil {
		return nil
	}
	t.server.mu.Lock()
	subscriptions := slices.Clone(t.subscriptions)
	t.server.mu.Unlock()
	planned := make(arrivals, len(subscriptions))
	for _, m := range messages {
		for _, q := range subscriptions {
			planned[q] = append(planned[q], hook(q.path, m.id))
		}
	}
	return planned
}

// publish stores the messages of a transfer, each once for every subscription.
func (t *topic) publish(messages []*content, planned arrivals) {
	now := t.server.now()
	t.forget(now)
	for i, m := range messages {
		if t.known(m.id, now) {
			t.server.duplicates++
			continue
		}
		t.server.accepted++
		t.sequence++
		for _, q := range t.subscriptions {
			if !q.matches(m) {
				continue
			}
			var a Arrival
			if plan := planned[q]; plan != nil {
				a = plan[i]
			}
			q.arrive(stored{content: m, sequence: t.sequence, enqueued: now}, a)
		}
	}
	for _, q := range t.subscriptions {
		q.dispatch()
	}
}

// known reports whether a message id has been seen in the window, and remembers it.
// Messages without an id are all different.
func (t *topic) known(id string, now time.Time) bool {
	if id == "" || t.window < 0 {
		return false
	}
	if _, ok := t.seen[id]; ok {
		return true
	}
	t.seen[id] = now.Add(t.window)
	t.forgetting = append(t.forgetting, id)
	return false
}

// forget drops the ids whose window has passed.
func (t *topic) forget(now time.Time) {
	for len(t.forgetting) > 0 && t.seen[t.forgetting[0]].Before(now) {
		delete(t.seen, t.forgetting[0])
		t.forgetting = t.forgetting[1:]
	}
}
