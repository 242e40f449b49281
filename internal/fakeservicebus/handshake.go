package fakeservicebus

import (
	"errors"
	"fmt"
	"io"
)

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
		return fmt.Errorf("let the client in: %w", err)
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

// ended reports whether the client ended the connection.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
