package amqppeer

import "errors"

// onDisposition settles deliveries as the client says, and answers each: a client
// that settles second waits for it.
func (s *session) onDisposition(f fields) error {
	if f.at(0) != roleReceiver {
		return nil // About what the client sent: settled by this side.
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
		answer, ok := d.settle(f.at(4))
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

// settle does to a message what its receiver decided, and returns the answer. It
// returns false for a state that decides nothing.
func (d delivery) settle(state any) (answer any, ok bool) {
	code, f, err := composite(state)
	if err != nil {
		return nil, false
	}
	var held bool
	switch code {
	case outcomeAccepted:
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
		// The dead letter is the client's wish; to reject it again would be an error.
		held, state = d.reject(f), outcome(outcomeAccepted)
	default:
		return nil, false
	}
	if !held {
		return outcome(outcomeRejected, errorValue(MessageLockLost, lockLost)), true
	}
	return state, true
}

// lockLost is what a client is told that settles too late.
const lockLost = "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."

// reject makes a message a dead letter. The reason is in the error's map, and what
// else is there becomes application properties.
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
