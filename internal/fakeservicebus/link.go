package fakeservicebus

import "math"

// Credit of senders: granted at first, and again when half is used.
const (
	fullCredit  = 1000
	halfCredit  = fullCredit / 2
	modeSettled = 1 // a sender that settles what it sends

	// brokerMargin leaves room for annotations and for the reason of a dead letter.
	brokerMargin = 4096
)

// link is the broker's end of a link. It is guarded by the server's mutex.
type link struct {
	session *session
	handle  uint32
	address string // as the client wrote it

	// One of these is set: what the link is for.
	topic    *topic // the client sends to it
	queue    *queue // the client receives from it
	requests *entity
	replyTo  string // the client receives replies under this name

	deliveries uint32 // the delivery count of the protocol
	credit     uint32
	draining   bool
	settled    bool // messages to the client need no settlement

	partial *incoming // the unfinished transfer
	replies [][]byte  // waiting for credit
}

// receives reports whether the broker receives on this link: the client sends.
func (l *link) receives() bool { return l.topic != nil || l.requests != nil }

// grant renews the credit of a client that sends.
func (l *link) grant() {
	if l.credit < halfCredit {
		l.credit = fullCredit
		l.session.flow(l)
	}
}

// onFlow updates the credit that a receiving client grants.
func (l *link) onFlow(f fields) {
	if l.receives() {
		if f.isTrue(9) {
			l.session.flow(l)
		}
		return
	}
	l.credit = f.number(5, 0) + f.number(6, 0) - l.deliveries
	if l.credit > math.MaxInt32 {
		l.credit = 0 // The client withdrew more credit than was left.
	}
	l.draining = f.isTrue(8)
	l.resume()
	if l.draining {
		l.deliveries += l.credit
		l.credit = 0
	}
	if l.draining || f.isTrue(9) {
		l.session.flow(l)
	}
	l.draining = false
}

// resume sends what was waiting for credit.
func (l *link) resume() {
	if l.queue != nil {
		l.queue.dispatch()
	}
	for len(l.replies) > 0 && l.canTransfer(len(l.replies[0])) {
		reply := l.replies[0]
		l.replies = l.replies[1:]
		l.transfer(newToken(), true, reply)
	}
}

// canTransfer reports whether the client accepts one more message of that many
// bytes plus the broker's margin.
func (l *link) canTransfer(size int) bool {
	c := l.session.conn
	frames := uint32(size+brokerMargin)/(c.maxFrame-frameMargin) + 1
	return l.credit > 0 && l.session.remoteWindow >= frames && !c.gone
}

// transfer sends a message, in as many frames as it needs, and returns its delivery
// id.
func (l *link) transfer(tag uuid, settled bool, message []byte) uint32 {
	s := l.session
	id := s.nextDelivery
	s.nextDelivery++
	l.deliveries++
	l.credit--
	f := fields{l.handle, id, tag.dotNet(), uint32(0), settled}
	for room := int(s.conn.maxFrame - frameMargin); ; f = (fields{l.handle, nil, nil, nil, settled}) {
		part := message[:min(len(message), room)]
		message = message[len(part):]
		s.nextOutgoing++
		s.remoteWindow -= min(s.remoteWindow, 1)
		s.send(performativeTransfer, append(f, len(message) > 0), part)
		if len(message) == 0 {
			return id
		}
	}
}

// close closes the link from this side, for a reason.
func (l *link) close(condition, description string) {
	s := l.session
	if s.links[l.handle] != l {
		return // The client detached first.
	}
	l.leave()
	delete(s.links, l.handle)
	s.send(performativeDetach, fields{l.handle, true, errorValue(condition, description)}, nil)
}

// leave removes the link from the broker.
func (l *link) leave() {
	if l.queue != nil {
		l.queue.detach(l)
	}
}
