package fakeservicebus

import (
	"fmt"
	"math"
)

const (
	maxChannel = math.MaxUint16
	maxHandle  = math.MaxUint16
	// window is the session's incoming window: the largest possible.
	window = math.MaxInt32
	// windowOfClient is the default for a client that names no window.
	windowOfClient = math.MaxInt32
)

// delivery is a message that a client holds unsettled.
type delivery struct {
	queue *queue
	token uuid
}

// session is one session of a connection; it answers on the client's channel. It is
// guarded by the server's mutex.
type session struct {
	conn         *connection
	channel      uint16
	nextIncoming uint32 // the number of the next transfer frame received
	nextOutgoing uint32 // the number of the next one sent
	remoteWindow uint32 // how many transfer frames the client accepts
	nextDelivery uint32
	links        map[uint32]*link
	unsettled    map[uint32]delivery // by delivery id
}

// onBegin answers the client's begin.
func (c *connection) onBegin(channel uint16, f fields) error {
	if _, taken := c.sessions[channel]; taken {
		return fmt.Errorf("%w: channel %d has begun", errFrame, channel)
	}
	c.sessions[channel] = &session{
		conn: c, channel: channel,
		nextIncoming: f.number(1, 0), remoteWindow: f.number(2, windowOfClient),
		links: map[uint32]*link{}, unsettled: map[uint32]delivery{},
	}
	c.send(channel, performativeBegin,
		fields{channel, uint32(0), uint32(window), uint32(window), uint32(maxHandle)}, nil)
	return nil
}

// send sends a frame of this session.
func (s *session) send(code byte, f fields, payload []byte) {
	s.conn.send(s.channel, code, f, payload)
}

// onFlow updates the window of the session, and the credit of a link if it names one.
func (s *session) onFlow(f fields) {
	s.remoteWindow = f.number(0, 0) + f.number(1, windowOfClient) - s.nextOutgoing
	l, ok := s.links[f.number(4, math.MaxUint32)]
	if ok {
		l.onFlow(f)
		return
	}
	if f.isTrue(9) {
		s.flow(nil)
	}
	for _, l := range s.links {
		l.resume()
	}
}

// flow sends the client the state of the session, and of a link unless it is nil.
func (s *session) flow(l *link) {
	f := fields{s.nextIncoming, uint32(window), s.nextOutgoing, uint32(window)}
	if l != nil {
		f = append(f, l.handle, l.deliveries, l.credit, uint32(0), l.draining)
	}
	s.send(performativeFlow, f, nil)
}

// leave removes the session's links from the broker. The locks stay.
func (s *session) leave() {
	for _, l := range s.links {
		l.leave()
	}
	clear(s.links)
}

// Credit of senders: granted at first, and again when half is used.
const (
	fullCredit  = 1000
	halfCredit  = fullCredit / 2
	modeSettled = 1 // a sender that settles its own deliveries

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
