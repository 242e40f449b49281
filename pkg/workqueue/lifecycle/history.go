package lifecycle

import "fmt"

// ValidateHistory checks an item's events, in the order of their revs, against
// the policy, and the item against them: the history begins with the enqueue,
// has no gap, takes only moves of the table, counts attempts where it must, and
// ends where the item is. Where the last event is a removal, item is what was
// removed. The error is an [*ItemError] that names every violation.
//
// Source: Job lifecycle plan 02, Attempt and revision semantics, Event
// semantics.
func ValidateHistory(item Item, events []Event) error {
	var found violations
	last := Event{WorkID: item.WorkID, To: StatusNone}
	ended := last // the last event but for a removal
	for n, event := range events {
		field := fmt.Sprintf("events[%d]", n)
		found.event(field, last, event)
		last = event
		if event.Type == EventRemoved {
			found.require(n == len(events)-1, field, "must be the last, nothing follows a removal")
			continue
		}
		ended = event
	}
	found.require(ended.Rev == item.Rev, "rev", fmt.Sprintf("must be that of the last event, %d, not %d", ended.Rev, item.Rev))
	found.require(ended.To == item.Status, "status", fmt.Sprintf("must be where the last event leads, %q", ended.To))
	found.require(ended.Attempt == item.Attempt, "attempt",
		fmt.Sprintf("must be that of the last event, %d, not %d", ended.Attempt, item.Attempt))
	return found.err(&item)
}

// event checks one event against the one before it.
func (v *violations) event(field string, before, event Event) {
	v.require(event.WorkID == before.WorkID, field, "must be of the item")
	v.require(event.Rev == before.Rev+1, field, fmt.Sprintf("must have rev %d, not %d", before.Rev+1, event.Rev))
	v.require(event.From == before.To, field, fmt.Sprintf("must leave from %q, not %q", before.To, event.From))
	v.require(event.allowed(), field, fmt.Sprintf("%s from %q to %q must be in the table", event.Type, event.From, event.To))
	attempt := before.Attempt
	if event.Type == EventClaimed {
		attempt++
	}
	v.require(event.Attempt == attempt, field, fmt.Sprintf("must be of attempt %d, not %d", attempt, event.Attempt))
	v.require(!event.At.IsZero(), field, "must say when")
	v.require(event.Actor != "", field, "must say who")
	v.require(event.RequestID != "" || event.Type == EventEnqueued, field, "must name its request")
}

// allowed reports whether the policy has such an event.
func (e Event) allowed() bool {
	if e.Type == EventRemoved {
		return e.From.removable() && e.To == StatusNone
	}
	for _, transition := range transitions {
		if transition.Event == e.Type && transition.From == e.From && transition.To == e.To {
			return true
		}
	}
	return false
}
