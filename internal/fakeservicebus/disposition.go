package fakeservicebus

import "errors"

// onDisposition settles deliveries as the client asks and answers each: a client in
// settle-second mode waits for the answer.
func (s *session) onDisposition(f fields) error {
	if f.at(0) != roleReceiver {
		return nil // About the client's own messages, which this side settles.
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

// settle applies the receiver's decision to a message and returns the answer. It
// returns false for a state that is no decision.
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
