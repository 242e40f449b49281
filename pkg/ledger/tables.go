package ledger

import "cmp"

// Tables are the names of the tables that a ledger uses: lower-case letters
// and digits, as Azure Tables wants them.
type Tables struct {
	Ledger      string // Optional. Defaults to "luciusledger".
	Idempotency string // Optional. Defaults to "jobidempotency".
	Inflight    string // Optional. Defaults to "luciusinflight".
	Schedule    string // Optional. Defaults to "luciusschedule".
	Index       string // Optional. Defaults to "luciusjobindex".
	Queue       string // Optional. Defaults to "luciusqueue".
}

// withDefaults fills in the names that are not set.
func (t Tables) withDefaults() Tables {
	return Tables{
		Ledger:      cmp.Or(t.Ledger, "luciusledger"),
		Idempotency: cmp.Or(t.Idempotency, "jobidempotency"),
		Inflight:    cmp.Or(t.Inflight, "luciusinflight"),
		Schedule:    cmp.Or(t.Schedule, "luciusschedule"),
		Index:       cmp.Or(t.Index, "luciusjobindex"),
		Queue:       cmp.Or(t.Queue, "luciusqueue"),
	}
}

// All lists the names, so that a driver can create them.
func (t Tables) All() []string {
	return []string{t.Ledger, t.Idempotency, t.Inflight, t.Schedule, t.Index, t.Queue}
}
