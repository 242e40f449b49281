package audit

import (
	"cmp"
	"fmt"
	"slices"
)

// Invariant names a rule that is checked. docs/audit.md says what each means.
type Invariant string

// The invariants.
const (
	Accepted  Invariant = "accepted"  // what was accepted is there
	Terminal  Invariant = "terminal"  // what has ended does not change
	OneStep   Invariant = "one-step"  // one step at a time, in order
	Pair      Invariant = "pair"      // each attempt has one lease
	Outbox    Invariant = "outbox"    // step and outbox row agree
	Published Invariant = "published" // SENT means published
	Directive Invariant = "directive" // one content for each attempt
	Journal   Invariant = "journal"   // history has no gap and ends in the state
	Edges     Invariant = "edges"     // only listed transitions
	Claim     Invariant = "claim"     // one job for each idempotency key
	Budget    Invariant = "budget"    // failed for good only when a budget is spent
	Forward   Invariant = "forward"   // somebody will take the job up again
	Slot      Invariant = "slot"      // slots are those of live jobs
	Listed    Invariant = "listed"    // lists show every job
	Ended     Invariant = "ended"     // what follows the end of a job is done
	Queue     Invariant = "queue"     // work items fit their steps and keep the lifecycle
	Quiet     Invariant = "quiet"     // nothing is left to do (quiescent only)
	Readable  Invariant = "readable"  // rows can be read
)

// Invariants lists all, in the order of the documentation.
var Invariants = []Invariant{
	Accepted, Terminal, OneStep, Pair, Outbox, Published, Directive, Journal, Edges, Claim, Budget, Forward, Slot,
	Listed, Ended, Queue, Quiet, Readable,
}

// Finding is one thing that is not as it has to be.
type Finding struct {
	Invariant Invariant
	// Late says that the work is only overdue; what is not late is a violation.
	Late bool
	// JobID is the job that it is about, empty where it is about none.
	JobID  string
	Detail string
}

// String is the finding on one line.
func (f Finding) String() string {
	kind := "violation"
	if f.Late {
		kind = "late"
	}
	return fmt.Sprintf("%s %s: job %s: %s", kind, f.Invariant, cmp.Or(f.JobID, "-"), f.Detail)
}

// Report is what an audit found.
type Report struct {
	// Jobs is how many jobs were looked at, Tombstones how many of them are only
	// the memory of one, and Rows how many rows were read.
	Jobs       int
	Tombstones int
	Rows       int
	// States counts the jobs by state.
	States map[string]int
	// Findings are sorted: violations first, by job.
	Findings []Finding
}

// Violations counts the findings that are no mere lateness.
func (r *Report) Violations() int {
	count := 0
	for i := range r.Findings {
		if !r.Findings[i].Late {
			count++
		}
	}
	return count
}

// Late counts the others.
func (r *Report) Late() int { return len(r.Findings) - r.Violations() }

// sort brings the findings in order.
func (r *Report) sort() {
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		if a.Late != b.Late {
			if b.Late {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.Invariant, b.Invariant), cmp.Compare(a.Detail, b.Detail))
	})
	r.Findings = slices.Compact(r.Findings)
}
