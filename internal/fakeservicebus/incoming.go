package fakeservicebus

import (
	"errors"
	"fmt"
)

// incoming is a client's transfer: one message, or a batch. The server's mutex
// guards it until its last frame has arrived; then it belongs to the goroutine that
// reads the connection.
type incoming struct {
	link     *link
	id       uint32
	format   uint32
	settled  bool // the client expects no answer
	oversize bool
	payload  []byte
}

// onTransfer handles a frame of a transfer, and the whole transfer if it is the last
// one.
func (c *connection) onTransfer(channel uint16, p performative) error {
	t, err := c.assemble(channel, p)
	switch {
	case err != nil:
		return fmt.Errorf("transfer: %w", err)
	case t == nil:
		return nil
	case t.link.topic != nil:
		return c.publish(t)
	default:
		return c.request(t)
	}
}

// assemble joins the frames of a transfer. It returns nil unless the transfer is
// complete.
func (c *connection) assemble(channel uint16, p performative) (*incoming, error) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	s, ok := c.sessions[channel]
	if !ok {
		return nil, fmt.Errorf("%w: no session on channel %d", errFrame, channel)
	}
	s.nextIncoming++
	handle, err := p.fields.handle(0)
	if err != nil {
		return nil, err
	}
	l, ok := s.links[handle]
	if !ok || !l.receives() {
		return nil, nil //nolint:nilnil // The link was closed while the frame was in flight.
	}
	if l.partial == nil {
		if err := l.begin(p.fields); err != nil {
			return nil, err
		}
	}
	t := l.partial
	t.add(p, c.server.config.MaxMessageSize)
	aborted, more := p.fields.isTrue(9), p.fields.isTrue(5)
	if more && !aborted {
		return nil, nil //nolint:nilnil // More frames follow.
	}
	l.partial = nil
	l.grant()
	if aborted {
		return nil, nil //nolint:nilnil // The client aborted the transfer.
	}
	return t, nil
}

// begin handles the first frame of a transfer.
func (l *link) begin(f fields) error {
	id, ok := f.at(1).(uint32)
	if !ok {
		return errors.New("the first frame has no delivery id")
	}
	l.partial = &incoming{link: l, id: id, format: f.number(3, 0)}
	l.deliveries++
	l.credit -= min(l.credit, 1)
	return nil
}

// add appends the payload of one frame. It does not keep more than the largest size.
func (t *incoming) add(p performative, limit int) {
	t.settled = t.settled || p.fields.isTrue(4)
	if t.oversize = t.oversize || len(t.payload)+len(p.payload) > limit; t.oversize {
		t.payload = nil
		return
	}
	t.payload = append(t.payload, p.payload...)
}

// messages decodes the transfer's messages.
func (t *incoming) messages() ([]*content, error) {
	if t.format == batchFormat {
		return parseBatch(t.payload)
	}
	m, err := parseMessage(t.payload)
	if err != nil {
		return nil, err
	}
	return []*content{m}, nil
}

// publish stores the messages of a transfer and answers, subject to the hooks.
func (c *connection) publish(t *incoming) error {
	topic := t.link.topic
	fault := Fault{Effect: Reject, Condition: MessageSizeExceeded, Description: "The message is too large."}
	var messages []*content
	if !t.oversize {
		var err error
		if messages, err = t.messages(); err != nil {
			return err
		}
		ids := make([]string, len(messages))
		for i, m := range messages {
			ids[i] = m.id
		}
		fault = c.server.hooks.Load().OnSend(topic.name, ids)
	}
	var planned arrivals
	if fault.Effect.stores() {
		planned = topic.arrivalsOf(messages)
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.gone {
		return nil
	}
	if fault.Effect.stores() {
		topic.publish(messages, planned)
	}
	if fault.Delay > 0 {
		c.server.after(fault.Delay, func() { t.conclude(fault) })
		return nil
	}
	t.conclude(fault)
	return nil
}

// conclude answers a transfer, or applies the fault instead.
func (t *incoming) conclude(fault Fault) {
	switch fault.Effect {
	case None:
		t.settle(outcome(outcomeAccepted))
	case Reject:
		t.settle(outcome(outcomeRejected, errorValue(fault.Condition, fault.Description)))
	case Release:
		t.settle(outcome(outcomeReleased))
	case Modify:
		t.settle(outcome(outcomeModified, true))
	case DropBefore, DropAfter:
		t.link.session.conn.cut()
	case Detach:
		t.link.close(fault.Condition, fault.Description)
	case Silence:
	}
}

// settle tells the client the outcome of its transfer.
func (t *incoming) settle(state described) {
	s := t.link.session
	if !t.settled && s.conn.sessions[s.channel] == s {
		s.send(performativeDisposition, fields{roleReceiver, t.id, nil, true, state}, nil)
	}
}
