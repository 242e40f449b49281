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
