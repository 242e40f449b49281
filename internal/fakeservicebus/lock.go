package fakeservicebus

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"
)

// lock is the right of one receiver to settle one message.
type lock struct {
	token   uuid
	message *stored
	until   time.Time
	timer   *time.Timer
}

// newToken returns a random UUID.
func newToken() uuid {
	var token uuid
	_, _ = rand.Read(token[:]) // It never fails.
	token[6] = token[6]&0x0f | 0x40
	token[8] = token[8]&0x3f | 0x80
	return token
}

// dotNet returns the UUID in .NET's byte order, in which a delivery tag carries a
// lock's token.
func (u uuid) dotNet() []byte {
	return []byte{u[3], u[2], u[1], u[0], u[5], u[4], u[7], u[6], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]}
}

// lock locks a message until the receiver settles it or the lock expires.
func (q *queue) lock(m *stored) *lock {
	k := &lock{token: newToken(), message: m, until: q.server.now().Add(q.lockDuration)}
	k.timer = q.server.after(q.lockDuration, func() {
		if q.locked[k.token] == k && !q.server.now().Before(k.until) { // It was not renewed.
			q.giveBack(k.token, true, nil)
		}
	})
	q.locked[k.token] = k
	return k
}

// renew extends a lock and returns its new expiry. It returns false if the lock is
// lost.
func (q *queue) renew(token uuid) (time.Time, bool) {
	k, ok := q.locked[token]
	if !ok {
		return time.Time{}, false
	}
	k.until = q.server.now().Add(q.lockDuration)
	k.timer.Reset(q.lockDuration)
	return k.until, true
}

// unlock removes a lock and returns its message. It returns nil if the lock is lost.
func (q *queue) unlock(token uuid) *stored {
	k, ok := q.locked[token]
	if !ok {
		return nil
	}
	k.timer.Stop()
	delete(q.locked, token)
	return k.message
}

// complete removes a message. It returns false if the lock is lost.
func (q *queue) complete(token uuid) bool { return q.unlock(token) != nil }

// giveBack returns a message to the queue with changed application properties. A
// failed delivery is counted, and the last allowed one dead-letters the message. It
// returns false if the lock is lost.
func (q *queue) giveBack(token uuid, failed bool, properties pairs) bool {
	m := q.unlock(token)
	if m == nil {
		return false
	}
	m.content = m.content.modified(properties)
	if failed {
		m.failures++
	}
	if failed && q.deadLetters != nil && m.failures >= q.maxDeliveries {
		q.moveToDeadLetters(m, "MaxDeliveryCountExceeded",
			fmt.Sprintf("Message could not be consumed after %d delivery attempts.", q.maxDeliveries))
		return true
	}
	at, _ := slices.BinarySearchFunc(q.ready, m, byPlace) // Its place before the lock.
	q.ready = slices.Insert(q.ready, at, m)
	q.dispatch()
	return true
}

// deadLetter moves a message to the dead-letter queue with a reason. A message that
// is there already stays. It returns false if the lock is lost.
func (q *queue) deadLetter(token uuid, reason, description string, properties pairs) bool {
	if q.deadLetters == nil {
		return q.giveBack(token, false, properties)
	}
	m := q.unlock(token)
	if m == nil {
		return false
	}
	m.content = m.content.modified(properties)
	q.moveToDeadLetters(m, reason, description)
	return true
}

// moveToDeadLetters puts a message into the dead-letter queue.
func (q *queue) moveToDeadLetters(m *stored, reason, description string) {
	var why pairs
	if reason != "" {
		why = append(why, pair{"DeadLetterReason", reason})
	}
	if description != "" {
		why = append(why, pair{"DeadLetterErrorDescription", description})
	}
	m.content = m.content.modified(why)
	m.deadLetteredFrom = q.path
	q.deadLetters.append(m)
	q.deadLetters.dispatch()
}

// onDisposition settles deliveries as the client asks and answers each: a client in
// settle-second mode waits for the answer.
func (s *session) onDisposition(f fields) error {
	if f.at(0) != roleReceiver {
		return nil // This is about the client's own messages, which the broker settles.
	}
	first, ok := f.at(1).(uint32)
	if !ok {
		return errors.New("disposition: the first delivery is missing")
	}
	last := f.number(2, first)
	for id := first; id <= last && id < s.nextDelivery; id++ {
		d, ok := s.unsettled[id]
		if !ok {
			continue
		}
		answer, ok := d.settle(f.at(4), s.conn.server.hooks.Load().OnSettle)
		if !ok {
			continue // The client has not decided yet.
		}
		delete(s.unsettled, id)
		if !f.isTrue(3) {
			s.send(performativeDisposition, fields{roleSender, id, nil, true, answer}, nil)
		}
	}
	return nil
}

// settle applies the receiver's decision to a message and returns the answer. It returns
// false if the state is not a decision.
func (d delivery) settle(state any, onSettle func(queue string) *Refusal) (answer any, ok bool) {
	code, f, err := composite(state)
	if err != nil {
		return nil, false
	}
	var held bool
	switch code {
	case outcomeAccepted:
		if refusal := onSettle(d.queue.path); refusal != nil {
			return outcome(outcomeRejected, errorValue(refusal.Condition, refusal.Description)), true
		}
		held = d.queue.complete(d.token)
	case outcomeReleased:
		held = d.queue.giveBack(d.token, false, nil)
	case outcomeModified:
		if f.isTrue(1) {
			return outcome(outcomeRejected, errorValue(NotAllowed, "Messages cannot be deferred.")), true
		}
		changes, _ := f.at(2).(pairs)
		held = d.queue.giveBack(d.token, true, changes)
	case outcomeRejected:
		// The client asked for the dead-lettering; to answer rejected would be an error.
		held, state = d.reject(f), outcome(outcomeAccepted)
	default:
		return nil, false
	}
	if !held {
		return outcome(outcomeRejected, errorValue(MessageLockLost, lockLost)), true
	}
	return state, true
}

// lockLost is the answer to a client that settles too late.
const lockLost = "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."

// reject dead-letters a message. The reason is in the error's map, whose other
// entries become application properties.
func (d delivery) reject(f fields) bool {
	why := f.compositeAt(0)
	info, _ := why.at(2).(pairs)
	var changes pairs
	for _, p := range info {
		if key := textOf(p.key); key != "DeadLetterReason" && key != "DeadLetterErrorDescription" {
			changes = append(changes, p)
		}
	}
	return d.queue.deadLetter(d.token,
		textOf(info.get("DeadLetterReason")), textOf(info.get("DeadLetterErrorDescription")), changes)
}
