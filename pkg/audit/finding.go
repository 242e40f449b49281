package audit

import (
	"cmp"
	"fmt"
)

// Invariant names a rule that is checked. docs/run/audit.md says what each means.
type Invariant string

// The invariants.
const (
	Accepted  Invariant = "accepted"  // an accepted job exists
	Terminal  Invariant = "terminal"  // an ended job or step does not change
	OneStep   Invariant = "one-step"  // one step at a time, in order
	Pair      Invariant = "pair"      // each attempt has one lease
	Outbox    Invariant = "outbox"    // step and outbox row agree
	Published Invariant = "published" // SENT means published
	Directive Invariant = "directive" // one content for each attempt
	Journal   Invariant = "journal"   // history has no gap and ends in the state
	Edges     Invariant = "edges"     // only listed transitions
	Rejected  Invariant = "rejected"  // refused callbacks are kept within bounds
	Key       Invariant = "key"       // one job for each idempotency key
	Lineage   Invariant = "lineage"   // what a rerun took over was there at its start
	Budget    Invariant = "budget"    // failed for good only when a budget is spent
	Dates     Invariant = "dates"     // a job begins, and expires, only at its dates
	Lines     Invariant = "lines"     // the jobs of a line begin one after the other
	Schedules Invariant = "schedules" // each occurrence of a schedule has one outcome, and at most one job
	Forward   Invariant = "forward"   // a worker or a schedule entry will continue the job
	Slot      Invariant = "slot"      // live jobs hold their slots, others none
	Listed    Invariant = "listed"    // lists show every job
	Ended     Invariant = "ended"     // the post work of a job's end is done
	Queue     Invariant = "queue"     // work items fit their steps and keep the lifecycle
	Quiet     Invariant = "quiet"     // nothing is left to do (quiescent only)
	Readable  Invariant = "readable"  // rows can be read
)

// Invariants lists all invariants, in the order of docs/run/audit.md.
var Invariants = []Invariant{
	Accepted, Terminal, OneStep, Pair, Outbox, Published, Directive, Journal, Edges, Rejected, Key, Lineage, Budget, Dates,
	Schedules, Lines, Forward, Slot, Listed, Ended, Queue, Quiet, Readable,
}

// Finding is one broken rule.
type Finding struct {
	Invariant Invariant
	Late      bool   // Work is only overdue, or a change of a clock or a setting explains it; otherwise it is a violation.
	JobID     string // Empty if it is about no job.
	Detail    string
}

// String returns the finding on one line.
func (f Finding) String() string {
	kind := "violation"
	if f.Late {
		kind = "late"
	}
	return fmt.Sprintf("%s %s: job %s: %s", kind, f.Invariant, cmp.Or(f.JobID, "-"), f.Detail)
}

// Report is the result of an audit.
type Report struct {
	Jobs       int            // Without the tombstones.
	Tombstones int            // Purged jobs.
	Rows       int            // All rows that were read.
	States     map[string]int // The number of jobs in each state.
	Findings   []Finding      // Violations first, each part by job.
}

// Violations counts the findings that are not late.
func (r *Report) Violations() int { return len(r.Findings) - r.Late() }

// Late counts the findings that are late.
func (r *Report) Late() int {
	count := 0
	for i := range r.Findings {
		if r.Findings[i].Late {
			count++
		}
	}
	return count
}
