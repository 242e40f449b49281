package fakeservicebus

import (
	"fmt"
	"strings"
)

// The positions of the fields of an attach that the broker reads.
const (
	attachName      = 0
	attachHandle    = 1
	attachRole      = 2
	attachSettle    = 3
	attachReceive   = 4
	attachSource    = 5
	attachTarget    = 6
	attachDelivered = 9
	attachFields    = 11
)

// entity is the object that a management link manages. If all three are empty, the link is
// for tokens.
type entity struct {
	queue *queue
	topic *topic
}

// onAttach attaches or refuses a link.
func (c *connection) onAttach(channel uint16, f fields) error {
	handle, err := f.handle(attachHandle)
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	sends := f.at(attachRole) == roleSender
	source := f.compositeAt(attachSource)
	target := f.compositeAt(attachTarget)
	address := target.text(0)
	if !sends {
		address = source.text(0)
	}
	refusal := c.server.hooks.Load().OnAttach(address)
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	s, ok := c.sessions[channel]
	if !ok {
		return fmt.Errorf("%w: no session on channel %d", errFrame, channel)
	}
	if s.links[handle] != nil {
		return fmt.Errorf("attach: %w: handle %d is in use", errFrame, handle)
	}
	l := &link{session: s, handle: handle, address: address}
	if refusal == nil {
		refusal = l.bind(sends, target.text(0))
	}
	if refusal != nil {
		l.refuse(f, sends, *refusal)
		return nil
	}
	l.accept(f, sends)
	return nil
}

// bind resolves the link's address.
func (l *link) bind(sends bool, replyTo string) *Refusal {
	server := l.session.conn.server
	path := normal(l.address)
	entityPath, manages := strings.CutSuffix(path, managementSuffix)
	topic, queue := server.topics[entityPath], server.queues[entityPath]
	switch {
	case path == tokenAddress, manages && (topic != nil || queue != nil):
		if sends {
			l.requests = &entity{queue: queue, topic: topic}
		} else {
			l.replyTo = replyTo
		}
	case topic == nil && queue == nil:
		return &Refusal{NotFound, fmt.Sprintf("The messaging entity '%s' could not be found.", l.address)}
	case manages, topic != nil && !sends, queue != nil && sends:
		return &Refusal{NotAllowed, fmt.Sprintf("'%s' does not support this direction.", l.address)}
	default:
		l.topic, l.queue = topic, queue
	}
	return nil
}

// reply returns the attach that answers the client's: the same fields in the other
// role.
func (l *link) reply(f fields, sends bool) fields {
	answer := make(fields, attachFields)
	answer[attachName], answer[attachHandle] = f.at(attachName), l.handle
	answer[attachRole] = roleSender
	if sends {
		answer[attachRole] = roleReceiver
	}
	answer[attachSettle], answer[attachReceive] = f.at(attachSettle), f.at(attachReceive)
	answer[attachSource], answer[attachTarget] = f.at(attachSource), f.at(attachTarget)
	if !sends {
		answer[attachDelivered] = uint32(0)
	}
	answer[attachFields-1] = uint64(l.session.conn.server.config.MaxMessageSize)
	return answer
}

// accept attaches the link.
func (l *link) accept(f fields, sends bool) {
	l.session.links[l.handle] = l
	mode, _ := f.at(attachSettle).(uint8)
	l.settled = mode == modeSettled
	l.session.send(performativeAttach, l.reply(f, sends), nil)
	if sends {
		l.deliveries = f.number(attachDelivered, 0)
		l.grant()
		return
	}
	if l.queue != nil {
		l.queue.receivers = append(l.queue.receivers, l)
	}
}

// refuse answers with an attach without a terminus and a detach with the reason.
func (l *link) refuse(f fields, sends bool, why Refusal) {
	answer := l.reply(f, sends)
	if sends {
		answer[attachTarget] = nil
	} else {
		answer[attachSource] = nil
	}
	l.session.send(performativeAttach, answer, nil)
	l.session.send(performativeDetach, fields{l.handle, true, errorValue(why.Condition, why.Description)}, nil)
}

// onDetach handles a client's detach, or its answer to the broker's.
func (s *session) onDetach(f fields) error {
	handle, err := f.handle(0)
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	l, ok := s.links[handle]
	if !ok {
		return nil
	}
	l.leave()
	delete(s.links, handle)
	s.send(performativeDetach, fields{handle, true}, nil)
	return nil
}
