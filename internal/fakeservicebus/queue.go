package fakeservicebus

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// stored is one queue's copy of a message.
type stored struct {
	content          *content
	place            int64 // the order of delivery
	sequence         int64
	enqueued         time.Time
	failures         uint32 // failed deliveries
	deadLetteredFrom string
}

// expired reports whether the message's time to live has passed. Dead letters never
// expire.
func (c *stored) expired(now time.Time) bool {
	return c.deadLetteredFrom == "" && c.content.timeToLive > 0 && now.Sub(c.enqueued) > c.content.timeToLive
}

// held is a message that arrived but must not be delivered yet.
type held struct {
	message *stored
	behind  int // how many others go first; 0 means that a timer releases it
}

// queue is a subscription or its dead-letter queue. It is guarded by the server's
// mutex.
type queue struct {
	server        *Server
	path          string
	rules         []rule
	xml           string // its description, as ServeAdmin shows it
	lockDuration  time.Duration
	maxDeliveries uint32
	deadLetters   *queue // nil for a dead-letter queue

	ready     []*stored // by place
	locked    map[uuid]*lock
	held      []*held
	places    int64
	receivers []*link
	turn      int // index of the next receiver, for round robin
}

// newQueue returns an empty queue.
func newQueue(s *Server, path string, subscription Subscription) *queue {
	if subscription.rules == nil {
		subscription.rules = []rule{ruleFor(subscription.Filter)}
	}
	lockDuration := cmp.Or(subscription.LockDuration, s.config.LockDuration)
	maxDeliveries := cmp.Or(subscription.MaxDeliveries, s.config.MaxDeliveries)
	if subscription.xml == "" {
		subscription.xml = fmt.Sprintf("<LockDuration>PT%dS</LockDuration><MaxDeliveryCount>%d</MaxDeliveryCount>",
			int(lockDuration.Seconds()), maxDeliveries)
	}
	return &queue{
		server:        s,
		path:          path,
		rules:         subscription.rules,
		xml:           subscription.xml,
		lockDuration:  lockDuration,
		maxDeliveries: uint32(maxDeliveries),
		locked:        map[uuid]*lock{},
	}
}

// matches reports whether a message passes one of the rules.
func (q *queue) matches(m *content) bool {
	return slices.ContainsFunc(q.rules, func(r rule) bool { return r.passes(m) })
}

// passes reports whether a message passes the rule.
func (r *rule) passes(m *content) bool {
	if r.none {
		return false
	}
	for name, want := range r.filter {
		if !slices.ContainsFunc(m.application, func(p pair) bool { return textOf(p.key) == name && p.value == want }) {
			return false
		}
	}
	return true
}

// arrive puts a new message into the queue as the hook asked.
func (q *queue) arrive(m stored, a Arrival) {
	if a.Twice {
		second := m
		second.failures++
		defer q.append(&second)
	}
	if a.Delay <= 0 && a.Behind <= 0 {
		q.append(&m)
		q.passed()
		return
	}
	h := &held{message: &m, behind: max(a.Behind, 0)}
	if a.Delay > 0 {
		h.behind = 0
		q.server.after(a.Delay, func() { q.release(h); q.dispatch() })
	}
	q.held = append(q.held, h)
}

// passed counts a message that overtook the held ones.
func (q *queue) passed() {
	for _, h := range slices.Clone(q.held) {
		if h.behind == 0 {
			continue
		}
		if h.behind--; h.behind == 0 {
			q.release(h)
		}
	}
}

// release puts a held message at the end of the queue. Other held messages may have
// waited for it.
func (q *queue) release(h *held) {
	q.held = slices.DeleteFunc(q.held, func(other *held) bool { return other == h })
	q.append(h.message)
	q.passed()
}

// append puts a message at the end of the queue.
func (q *queue) append(m *stored) {
	q.places++
	m.place = q.places
	q.ready = append(q.ready, m)
}

// byPlace orders messages by their place.
func byPlace(a, b *stored) int { return cmp.Compare(a.place, b.place) }

// dispatch delivers ready messages to the receivers with credit, round robin.
func (q *queue) dispatch() {
	for {
		q.dropExpired()
		if len(q.ready) == 0 {
			return
		}
		m := q.ready[0]
		l := q.nextReceiver(m.content.size)
		if l == nil {
			return
		}
		q.ready[0] = nil
		q.ready = q.ready[1:]
		q.deliver(l, m)
	}
}

// dropExpired drops expired messages at the head of the queue.
func (q *queue) dropExpired() {
	at := q.server.now()
	for len(q.ready) > 0 && q.ready[0].expired(at) {
		q.ready = q.ready[1:]
	}
}

// nextReceiver returns the next receiver that can take a message of that many bytes,
// or nil.
func (q *queue) nextReceiver(size int) *link {
	for range q.receivers {
		q.turn = (q.turn + 1) % len(q.receivers)
		if l := q.receivers[q.turn]; l.canTransfer(size) {
			return l
		}
	}
	return nil
}

// deliver sends a message to a receiver, locked unless the receiver's mode is
// receive-and-delete.
func (q *queue) deliver(l *link, m *stored) {
	if l.settled {
		l.transfer(newToken(), true, m.encode(time.Time{}))
		return
	}
	k := q.lock(m)
	id := l.transfer(k.token, false, m.encode(k.until))
	l.session.unsettled[id] = delivery{queue: q, token: k.token}
}

// detach removes a receiver from the queue. Its locks stay.
func (q *queue) detach(l *link) {
	q.receivers = slices.DeleteFunc(q.receivers, func(other *link) bool { return other == l })
}

// all returns the ready and locked messages in order.
func (q *queue) all() []*stored {
	now := q.server.now()
	q.ready = slices.DeleteFunc(q.ready, func(m *stored) bool { return m.expired(now) })
	there := slices.Clone(q.ready)
	for _, k := range q.locked {
		there = append(there, k.message)
	}
	slices.SortFunc(there, byPlace)
	return there
}
