package fakeservicebus

import (
	"crypto/rand"
	"fmt"
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
	k.timer = q.server.after(q.lockDuration, func() { q.overdue(k) })
	q.locked[k.token] = k
	return k
}

// overdue expires a lock when its timer fires, unless it was renewed or settled in
// the meantime.
func (q *queue) overdue(k *lock) {
	if q.locked[k.token] == k && !q.server.now().Before(k.until) {
		q.expire(k)
	}
}

// expire ends a lock and counts a failed delivery.
func (q *queue) expire(k *lock) {
	q.giveBack(k.token, true, nil)
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
		q.bury(m, "MaxDeliveryCountExceeded",
			fmt.Sprintf("Message could not be consumed after %d delivery attempts.", q.maxDeliveries))
		return true
	}
	q.putBack(m)
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
	q.bury(m, reason, description)
	return true
}

// bury puts a message into the dead-letter queue.
func (q *queue) bury(m *stored, reason, description string) {
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
