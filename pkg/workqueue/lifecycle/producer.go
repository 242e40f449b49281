package lifecycle

import "time"

// Enqueue makes an item of the message, queued under workID at rev 1 and
// attempt 0. Existing is the item that the queue already has for the message,
// nil where it has none: then it is a repeat if the item covers the message, in
// whatever status it is. It returns [ErrIllegalTransition] for an existing item
// that does not cover it, because only a requeue gives an item another message,
// and [ErrInvalidRequest] for a message that lacks something.
//
// Source: Job lifecycle plan 02, Allowed transitions, Enqueue.
func Enqueue(existing *Item, workID, producer string, message Message, now time.Time) (Change, error) {
	if err := message.validate(workID, producer); err != nil {
		return Change{}, err
	}
	if existing != nil {
		if !existing.Covers(message) {
			return Change{}, existing.refuse(string(OpEnqueue) + " of message " + message.MessageID)
		}
		return Change{Item: *existing, Repeat: true}, nil
	}
	item := Item{
		WorkID: workID, DedupeKey: message.DedupeKey,
		JobID: message.JobID, StepID: message.StepID, TenantID: message.TenantID,
		Service: message.Service, StepType: message.StepType, CreatedAt: now,
	}
	item.carry(message.Directive)
	move, _ := Lookup(OpEnqueue, StatusNone)
	item.enter(move, now)
	return Change{Item: item, Events: []Event{item.event(move, Request{Actor: producer}, now)}}, nil
}

func (i *Item) carry(directive Directive) {
	i.MessageID, i.AttemptNo, i.LeaseID = directive.MessageID, directive.AttemptNo, directive.LeaseID
}

func (m Message) validate(workID, producer string) error {
	switch {
	case workID == "":
		return &RequestError{Field: "work_id", Reason: "is required"}
	case producer == "":
		return &RequestError{Field: "actor", Reason: "is required"}
	case m.DedupeKey == "":
		return &RequestError{Field: "dedupe_key", Reason: "is required"}
	}
	return m.Directive.validate()
}

func (d Directive) validate() error {
	switch {
	case d.MessageID == "":
		return &RequestError{Field: "message_id", Reason: "is required"}
	case d.AttemptNo < 1:
		return &RequestError{Field: "attempt_no", Reason: "is required and at least 1"}
	case d.LeaseID == "":
		return &RequestError{Field: "lease_id", Reason: "is required"}
	}
	return nil
}
