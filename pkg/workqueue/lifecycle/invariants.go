package lifecycle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// presence says which of an item's parts must be there. What is not listed
// must be absent.
type presence struct {
	owner, lease, result, failure bool
	// claims is how often an item in the status was claimed at least.
	claims int
}

// invariants has the rules of each status. For terminal items the source says
// that owner and lease SHOULD be absent; here they must be, because an ended
// item with a lease would look alive.
//
// Source: Job lifecycle plan 02, Required invariants per status.
var invariants = map[Status]presence{
	StatusQueued:    {},
	StatusClaimed:   {owner: true, lease: true, claims: 1},
	StatusRunning:   {owner: true, lease: true, claims: 1},
	StatusSucceeded: {result: true, claims: 1},
	StatusFailed:    {failure: true, claims: 1},
	StatusStalled:   {claims: 1},
}

// violations collects what is wrong.
type violations []Violation

func (v *violations) require(holds bool, field, rule string) {
	if !holds {
		*v = append(*v, Violation{Field: field, Rule: rule})
	}
}

// exactly requires the field to be present where it must be and nowhere else.
func (v *violations) exactly(want, got bool, field string, status Status) {
	rule := "must be absent when " + string(status)
	if want {
		rule = "must be present when " + string(status)
	}
	v.require(want == got, field, rule)
}

// err returns the violations as an error, nil where there are none.
func (v *violations) err(item *Item) error {
	if len(*v) == 0 {
		return nil
	}
	return &ItemError{WorkID: item.WorkID, Status: item.Status, Violations: *v}
}

// Validate checks the item against the rules of its status. The error is an
// [*ItemError] that names every violation.
//
// Source: Job lifecycle plan 02, Required invariants per status.
func Validate(item Item) error {
	var found violations
	found.identity(&item)
	rules, known := invariants[item.Status]
	found.require(known, "status", fmt.Sprintf("must be one of %v", statuses))
	if known {
		found.parts(&item, rules)
	}
	found.requests(&item)
	return found.err(&item)
}

func (v *violations) identity(item *Item) {
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
}

func (v *violations) parts(item *Item, rules presence) {
	v.exactly(rules.owner, item.Owner != "", "owner", item.Status)
	v.exactly(rules.lease, !item.LeaseExpiresAt.IsZero(), "lease", item.Status)
	v.require(item.ClaimLease == 0 || item.Status == StatusClaimed, "claim_lease", "must be absent when "+string(item.Status))
	v.exactly(rules.result, len(item.Result) > 0, "result", item.Status)
	v.exactly(rules.failure, item.Error != nil, "error", item.Status)
	v.require(len(item.Result) == 0 || isObject(item.Result), "result", "must be a JSON object")
	v.require(item.Error == nil || item.Error.Code != "", "error.code", "must be present")
	v.require(item.Attempt >= rules.claims, "attempt", fmt.Sprintf("must be at least %d when %s", rules.claims, item.Status))
}

func (v *violations) requests(item *Item) {
	v.require(len(item.Requests) <= MaxRemembered, "requests", fmt.Sprintf("must be at most %d", MaxRemembered))
	for n, known := range item.Requests {
		field := fmt.Sprintf("requests[%d]", n)
		v.require(known.Actor != "", field, "must name its actor")
		v.require(known.RequestID != "", field, "must have a request_id")
		v.require(slices.Contains(operations[:], known.Operation), field, "must name an operation")
		v.require(known.Rev <= item.Rev, field, "must not be beyond the item's rev")
		v.require(n == 0 || known.Rev > item.Requests[n-1].Rev, field, "must be of a later rev than the one before")
		v.require(known.Attempt <= item.Attempt, field, "must not be beyond the item's attempt")
		v.require(!known.ExpiresAt.IsZero(), field, "must expire")
		v.require(!slices.ContainsFunc(item.Requests[:n], known.same), field, "must not repeat an earlier request_id")
	}
}

// isObject reports whether the text is one JSON object.
func isObject(text json.RawMessage) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) && json.Valid(text)
}
