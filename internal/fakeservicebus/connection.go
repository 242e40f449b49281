package fakeservicebus

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// lingering limits how long the last frames of a connection may take to write.
const lingering = time.Second

// connection is one client. One goroutine reads its frames, another writes the
// frames in out, so that no socket is written with the mutex held.
type connection struct {
	server *Server
	net    net.Conn
	wake   chan struct{} // wakes the writer

	// Guarded by the server's mutex.
	sessions map[uint16]*session
	out      []byte
	maxFrame uint32 // the largest frame that the client accepts
	gone     bool   // no frame is sent any more
	ending   bool   // the writer closes the socket once it has written all of out
}

// run serves the client until either side ends it.
func (c *connection) run() {
	in := bufio.NewReaderSize(c.net, maxFrame)
	err := c.handshake(in)
	if err == nil {
		c.server.tasks.Go(c.write)
		err = c.read(in)
	} else {
		_ = c.net.Close() // No writer runs yet that would close it.
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.leave(err)
}

// errBye ends a connection that the client closed in order.
var errBye = errors.New("closed by the client")

// read handles one frame after another.
func (c *connection) read(in *bufio.Reader) error {
	for {
		f, err := readFrame(in)
		if err != nil {
			return err
		}
		if err := c.handle(f); err != nil {
			return err
		}
	}
}

// handle dispatches a frame. Its errors end this connection and no other.
func (c *connection) handle(f frame) error {
	if f.kind != frameAMQP {
		return fmt.Errorf("%w: type %d after the handshake", errFrame, f.kind)
	}
	if len(f.body) == 0 {
		return nil // A keep-alive.
	}
	p, err := decodePerformative(f.body)
	if err != nil {
		return err
	}
	switch p.code {
	case performativeTransfer:
		return c.onTransfer(f.channel, p)
	case performativeAttach:
		return c.onAttach(f.channel, p.fields)
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	switch p.code {
	case performativeOpen:
		c.maxFrame = min(max(p.fields.number(2, maxFrame), minFrame), maxFrame)
		c.send(0, performativeOpen, fields{"fakeservicebus", nil, uint32(maxFrame), uint16(maxChannel)}, nil)
	case performativeBegin:
		return c.onBegin(f.channel, p.fields)
	case performativeClose:
		c.send(0, performativeClose, nil, nil)
		return errBye
	default:
		return c.onSession(f.channel, p)
	}
	return nil
}

// onSession dispatches a frame of a session.
func (c *connection) onSession(channel uint16, p performative) error {
	s, ok := c.sessions[channel]
	if !ok {
		return fmt.Errorf("%w: no session on channel %d", errFrame, channel)
	}
	switch p.code {
	case performativeFlow:
		s.onFlow(p.fields)
	case performativeDisposition:
		return s.onDisposition(p.fields)
	case performativeDetach:
		return s.onDetach(p.fields)
	case performativeEnd:
		s.leave()
		delete(c.sessions, channel)
		c.send(channel, performativeEnd, nil, nil)
	default:
		return fmt.Errorf("%w: unknown performative 0x%02x", errFrame, p.code)
	}
	return nil
}

// send queues a frame for the writer. The mutex is held.
func (c *connection) send(channel uint16, code byte, f fields, payload []byte) {
	if c.gone {
		return
	}
	c.out = appendFrame(c.out, frameAMQP, channel, code, f, payload)
	c.awaken()
}

// awaken wakes the writer.
func (c *connection) awaken() {
	select {
	case c.wake <- struct{}{}:
	default: // It is awake already.
	}
}

// cut closes the socket without a close frame. The mutex is held.
func (c *connection) cut() {
	c.gone, c.ending, c.out = true, true, nil
	_ = c.net.Close() // The reader notices, and cleans up.
	c.awaken()
}

// leave removes the client from the broker. After a protocol error it first sends
// the reason. The mutex is held.
func (c *connection) leave(err error) {
	for _, s := range c.sessions {
		s.leave()
	}
	clear(c.sessions)
	delete(c.server.connections, c)
	if protocolError(err) {
		c.send(0, performativeClose, fields{errorValue("amqp:decode-error", err.Error())}, nil)
	}
	c.gone, c.ending = true, true
	_ = c.net.SetWriteDeadline(time.Now().Add(lingering)) // It may be closed already.
	c.awaken()
}

// protocolError reports whether the error is the client's, not a lost connection.
func protocolError(err error) bool {
	var network net.Error
	ended := errors.Is(err, errBye) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	return !ended && !errors.As(err, &network)
}

// write writes the queued frames, and an empty frame at every KeepAlive.
func (c *connection) write() {
	ticker := time.NewTicker(c.server.config.KeepAlive)
	defer ticker.Stop()
	defer func() { _ = c.net.Close() }() // The reader notices.
	var spare []byte
	for {
		idle := false
		select {
		case <-c.wake:
		case <-ticker.C:
			idle = true
		}
		data, ending := c.collect(spare[:0], idle)
		if _, err := c.net.Write(data); err != nil || ending {
			return
		}
		spare = data
	}
}

// collect takes the queued frames and leaves the spare buffer in their place.
func (c *connection) collect(spare []byte, idle bool) (data []byte, ending bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	data, c.out = c.out, spare
	if idle && len(data) == 0 && !c.gone {
		data = appendEmptyFrame(data)
	}
	return data, c.ending
}

// The headers of the two protocols, SASL and then AMQP.
const (
	saslHeader = "AMQP\x03\x01\x00\x00"
	amqpHeader = "AMQP\x00\x01\x00\x00"
)

// errHandshake is returned when a client does not follow the handshake.
var errHandshake = errors.New("unexpected handshake")

// handshake accepts any client: it authenticates later, with tokens. It writes to
// the socket itself, since the writer does not run yet.
func (c *connection) handshake(in io.Reader) error {
	if err := c.echoHeader(in, saslHeader); err != nil {
		return err
	}
	hello := appendFrame(nil, frameSASL, 0, saslMechanisms, fields{symbols("ANONYMOUS")}, nil)
	if _, err := c.net.Write(hello); err != nil {
		return fmt.Errorf("offer mechanisms: %w", err)
	}
	f, err := readFrame(in)
	if err != nil {
		return err
	}
	p, err := decodePerformative(f.body)
	if err != nil {
		return err
	}
	if f.kind != frameSASL || p.code != saslInit || p.fields.text(0) != "ANONYMOUS" {
		return fmt.Errorf("%w: mechanism %q", errHandshake, p.fields.text(0))
	}
	if _, err := c.net.Write(appendFrame(nil, frameSASL, 0, saslOutcome, fields{uint8(0)}, nil)); err != nil {
		return fmt.Errorf("accept the client: %w", err)
	}
	return c.echoHeader(in, amqpHeader)
}

// echoHeader reads a header and answers with the expected one.
func (c *connection) echoHeader(in io.Reader, want string) error {
	got := make([]byte, len(want))
	if _, err := io.ReadFull(in, got); err != nil {
		return fmt.Errorf("read a header: %w", err)
	}
	// A client that sent another header learns from the answer which one to use.
	if _, err := c.net.Write([]byte(want)); err != nil {
		return fmt.Errorf("write a header: %w", err)
	}
	if string(got) != want {
		return fmt.Errorf("%w: header %q", errHandshake, got)
	}
	return nil
}
