package statemachine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// itemInvariants say which parts an item must have in each status; it must have no
// others. The source says that owner and lease of a terminal item SHOULD be absent;
// here they must be, because an ended item with a lease would look alive.
//
// Source: Job lifecycle plan 02, Required invariants per status.
var itemInvariants = map[ItemStatus]struct {
	owner, lease, result, failure bool
	minAttempt                    int
}{
	StatusQueued:    {},
	StatusClaimed:   {owner: true, lease: true, minAttempt: 1},
	StatusRunning:   {owner: true, lease: true, minAttempt: 1},
	StatusSucceeded: {result: true, minAttempt: 1},
	StatusFailed:    {failure: true, minAttempt: 1},
	StatusStalled:   {minAttempt: 1},
}

// itemViolations collects violated rules.
type itemViolations []ItemViolation

// require adds a violation, formatted with args, unless the rule holds.
func (v *itemViolations) require(holds bool, field, rule string, args ...any) {
	if !holds {
		*v = append(*v, ItemViolation{Field: field, Rule: fmt.Sprintf(rule, args...)})
	}
}

// exactly requires the field to be present if want is set, and absent otherwise.
func (v *itemViolations) exactly(want, got bool, field string, status ItemStatus) {
	rule := "must be absent when %s"
	if want {
		rule = "must be present when %s"
	}
	v.require(want == got, field, rule, status)
}

// err returns the violations as an error, nil if there are none.
func (v *itemViolations) err(item *Item) error {
	if len(*v) == 0 {
		return nil
	}
	return &ItemError{WorkID: item.WorkID, Status: item.Status, Violations: *v}
}

// ValidateItem checks the item against the rules of its status. The error is an
// [*ItemError] that names every violation.
//
// Source: Job lifecycle plan 02, Required invariants per status.
func ValidateItem(item Item) error {
	var v itemViolations
	v.require(item.WorkID != "", "work_id", "must be present")
	v.require(item.DedupeKey != "", "dedupe_key", "must be present")
	v.require(item.MessageID != "", "message_id", "must be present")
	v.require(item.AttemptNo >= 1, "attempt_no", "must be at least 1")
	v.require(item.LeaseID != "", "lease_id", "must be present")
	v.require(!item.CreatedAt.IsZero(), "created_at", "must be present")
	v.require(!item.UpdatedAt.IsZero(), "updated_at", "must be present")
	v.require(item.Rev >= 1, "rev", "must be at least 1")
	v.require(item.Attempt >= 0, "attempt", "must be at least 0")
	v.require(item.Rev > int64(item.Attempt), "rev", "must be above attempt, for each claim raises both")

	must, known := itemInvariants[item.Status]
	v.require(known, "status", "must be one of %v", itemStatuses)
	if known {
		v.exactly(must.owner, item.Owner != "", "owner", item.Status)
		v.exactly(must.lease, !item.LeaseExpiresAt.IsZero(), "lease", item.Status)
		v.exactly(must.result, len(item.Result) > 0, "result", item.Status)
		v.exactly(must.failure, item.Error != nil, "error", item.Status)
		v.require(len(item.Result) == 0 || isObject(item.Result), "result", "must be a JSON object")
		v.require(item.Error == nil || item.Error.Code != "", "error.code", "must be present")
		v.require(item.Attempt >= must.minAttempt, "attempt", "must be at least %d when %s", must.minAttempt, item.Status)
	}

	v.require(len(item.Requests) <= MaxRemembered, "requests", "must be at most %d", MaxRemembered)
	for n, request := range item.Requests {
		field := "requests[" + strconv.Itoa(n) + "]"
		v.require(request.Actor != "", field, "must name its actor")
		v.require(request.RequestID != "", field, "must have a request_id")
		v.require(slices.Contains(itemOperations[:], request.Operation), field, "must name an operation")
		v.require(request.Rev <= item.Rev, field, "must not be beyond the item's rev")
		v.require(n == 0 || request.Rev > item.Requests[n-1].Rev, field, "must be of a later rev than the one before")
		v.require(request.Attempt <= item.Attempt, field, "must not be beyond the item's attempt")
		v.require(!request.ExpiresAt.IsZero(), field, "must expire")
		v.require(!slices.ContainsFunc(item.Requests[:n], request.same), field, "must not repeat an earlier request_id")
	}
	return v.err(&item)
}

// isObject reports whether the text is one JSON object.
func isObject(text json.RawMessage) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) && json.Valid(text)
}

// ValidateItemHistory checks an item's events, in the order of their revs, against the
// policy, and the item against them: the history begins with the enqueue, has no
// gap, makes only moves of the table, counts attempts as it must, and ends with the
// item as it is. If the last event is a removal, item is what was removed. The error
// is an [*ItemError] that names every violation.
//
// Source: Job lifecycle plan 02, Attempt and revision semantics, Event semantics.
func ValidateItemHistory(item Item, events []ItemEvent) error {
	var v itemViolations
	before := ItemEvent{WorkID: item.WorkID, To: StatusNone}
	last := before // except for a removal
	for n, event := range events {
		field, attempt := "events["+strconv.Itoa(n)+"]", before.Attempt
		if event.Type == ItemEventClaimed {
			attempt++
		}
		v.require(event.WorkID == before.WorkID, field, "must be of the item")
		v.require(event.Rev == before.Rev+1, field, "must have rev %d, not %d", before.Rev+1, event.Rev)
		v.require(event.From == before.To, field, "must leave from %q, not %q", before.To, event.From)
		v.require(event.allowed(), field, "%s from %q to %q must be in the table", event.Type, event.From, event.To)
		v.require(event.Attempt == attempt, field, "must be of attempt %d, not %d", attempt, event.Attempt)
		v.require(!event.At.IsZero(), field, "must say when")
		v.require(event.Actor != "", field, "must say who")
		v.require(event.RequestID != "" || event.Type == ItemEventEnqueued, field, "must name its request")
		before = event
		if event.Type == ItemEventRemoved {
			v.require(n == len(events)-1, field, "must be the last, nothing follows a removal")
		} else {
			last = event
		}
	}
	v.require(last.Rev == item.Rev, "rev", "must be that of the last event, %d, not %d", last.Rev, item.Rev)
	v.require(last.To == item.Status, "status", "must be where the last event leads, %q", last.To)
	v.require(last.Attempt == item.Attempt, "attempt",
		"must be that of the last event, %d, not %d", last.Attempt, item.Attempt)
	return v.err(&item)
}

// allowed reports whether the policy has such an event.
func (e ItemEvent) allowed() bool {
	if e.Type == ItemEventRemoved {
		return e.From.removable() && e.To == StatusNone
	}
	return slices.ContainsFunc(itemTransitions[:], func(t ItemTransition) bool {
		return t.Event == e.Type && t.From == e.From && t.To == e.To
	})
}
