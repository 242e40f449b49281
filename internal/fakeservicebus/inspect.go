package fakeservicebus

import (
	"maps"
	"slices"
	"time"
)

// Message is a message of a subscription or of a dead-letter queue, for tests to
// inspect.
type Message struct {
	// ID is the message id, empty when there is none.
	ID string
	// Subject, ContentType, CorrelationID and ReplyTo are properties of the sender,
	// empty when they are not set.
	Subject, ContentType, CorrelationID, ReplyTo string
	// Properties are the application properties; a dead letter's reason is among
	// them. The map is the caller's.
	Properties map[string]any
	// Body is the content of the data sections. The caller must not change it.
	Body []byte
	// SequenceNumber is the message's number in its topic.
	SequenceNumber int64
	// EnqueuedAt is when the topic accepted the message.
	EnqueuedAt time.Time
	// TimeToLive is the time to live that the sender set. Zero means forever.
	TimeToLive time.Duration
	// Deliveries is how many deliveries have failed.
	Deliveries int
	// Locked is true while a receiver has it, until LockedUntil unless it renews the lock.
	Locked      bool
	LockedUntil time.Time
}

// Accepted returns how many messages have been stored, each counted once however
// many subscriptions there are. Duplicates are not counted.
func (s *Server) Accepted() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// Duplicates returns how many messages were dropped because their id was known.
func (s *Server) Duplicates() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.duplicates
}

// Depth returns how many messages a path holds: ready, locked, or held back by
// OnArrival. The path is that of a subscription, such as orders/Subscriptions/audit,
// or of its $DeadLetterQueue. It returns -1 for an unknown path.
func (s *Server) Depth(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.queues[normal(path)]
	if !ok {
		return -1
	}
	return len(q.all()) + len(q.held)
}

// Messages returns the ready and locked messages at a path, in the order of delivery.
// The paths are those of Depth; it returns none for others.
func (s *Server) Messages(path string) []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.queues[normal(path)]
	if !ok {
		return nil
	}
	locked := map[*stored]time.Time{}
	for _, k := range q.locked {
		locked[k.message] = k.until
	}
	var found []Message
	for _, m := range q.all() {
		found = append(found, m.show(locked[m]))
	}
	return found
}

// ExpireLocks expires all locks at a path and returns how many there were.
func (s *Server) ExpireLocks(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.queues[normal(path)]
	if !ok {
		return 0
	}
	locks := slices.Collect(maps.Values(q.locked))
	for _, k := range locks {
		q.giveBack(k.token, true, nil)
	}
	return len(locks)
}

// show decodes a message for Messages.
func (c *stored) show(lockedUntil time.Time) Message {
	shown := Message{
		ID:             c.content.id,
		Properties:     map[string]any{},
		SequenceNumber: c.sequence,
		EnqueuedAt:     c.enqueued,
		TimeToLive:     c.content.timeToLive,
		Deliveries:     int(c.failures),
		Locked:         !lockedUntil.IsZero(),
		LockedUntil:    lockedUntil,
	}
	for _, p := range c.content.application {
		shown.Properties[textOf(p.key)] = p.value
	}
	if d := (&decoder{data: c.content.properties}); len(d.data) > 0 {
		if v, err := d.value(); err == nil {
			_, list, _ := composite(v)
			shown.Subject, shown.ReplyTo = list.text(3), list.text(4)
			shown.CorrelationID, shown.ContentType = idText(list.at(5)), list.text(6)
		}
	}
	shown.Body = bodyOf(c.content.body)
	return shown
}

// bodyOf joins the data sections of a body that was validated before.
func bodyOf(encoded []byte) []byte {
	found, err := sections(encoded)
	if err != nil {
		return nil
	}
	var body []byte
	for _, s := range found {
		if data, ok := s.value.([]byte); ok && s.code == sectionData {
			body = append(body, data...)
		}
	}
	return body
}
