package audit

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// judgeOutbox checks that the outbox says what the steps do: a pending row for
// the attempt that is to be dispatched and no other, and none sent that was not.
func (j *judge) judgeOutbox() {
	leases := map[string]string{}
	for i := range j.Outbox {
		o := &j.Outbox[i]
		if other := leases[o.Lease]; o.Lease != "" && other != "" {
			j.violate(Pair, "outbox rows %s and %s have one lease", other, o.ID)
		}
		leases[o.Lease] = o.ID
		if o.State == "SENT" && o.Sent.IsZero() {
			j.violate(Published, "outbox row %s is SENT and does not say when", o.ID)
		}
		if o.Bus != busQueue && o.Bus != busServiceBus {
			j.violate(Outbox, "outbox row %s is made for the bus %q", o.ID, o.Bus)
		}
		if o.Step >= len(j.Steps) || o.Attempt > j.Steps[o.Step].Attempt {
			j.violate(Outbox, "outbox row %s is of attempt %d of step %d, which there was not", o.ID, o.Attempt, o.Step)
		}
	}
	for i := range j.Steps {
		j.judgePending(&j.Steps[i])
	}
}

// judgePending checks the pending rows of one step.
func (j *judge) judgePending(s *StepRow) {
	pending, current := 0, false
	for i := range j.Outbox {
		o := &j.Outbox[i]
		if o.Step != s.Index {
			continue
		}
		current = current || o.ID == s.OutboxID
		if o.State != "PENDING" {
			continue
		}
		pending++
		if o.Attempt != s.Attempt || o.Lease != s.Lease {
			j.violate(Outbox, "outbox row %s is PENDING for attempt %d, the step is at %d", o.ID, o.Attempt, s.Attempt)
		}
	}
	if want := s.State == "DISPATCHING"; pending > 1 || want != (pending == 1) {
		j.violate(Outbox, "step %s is %s with %d pending outbox rows", s.ID, s.State, pending)
	}
	if s.Live() && !current {
		j.violate(Outbox, "step %s is %s and its outbox row %q is not there", s.ID, s.State, s.OutboxID)
	}
}

// addressed is what a directive says of whose it is.
type addressed struct {
	Type      string `json:"type"`
	JobID     string `json:"jobId"`
	StepID    string `json:"stepId"`
	TenantID  string `json:"tenant_id"`
	AttemptNo int    `json:"attempt_no"`
	LeaseID   string `json:"lease_id"`
}

// judgeDirectives checks that each attempt has one content, its own, and that no two
// attempts share a lease.
func (j *judge) judgeDirectives() {
	leases := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(j.directives)) {
		var a addressed
		if err := json.Unmarshal(j.directives[name], &a); err != nil {
			j.violate(Directive, "the directive of attempt %s is not JSON", name)
			continue
		}
		if other := leases[a.LeaseID]; other != "" || a.LeaseID == "" {
			j.violate(Pair, "attempts %s and %s have one lease", other, name)
		}
		leases[a.LeaseID] = name
		if !j.owns(name, &a) {
			j.violate(Directive, "the directive of attempt %s says that it is attempt %d of step %q of job %s",
				name, a.AttemptNo, a.StepID, a.JobID)
		}
	}
	for i := range j.Outbox {
		o := &j.Outbox[i]
		if j.directives[attempt(o.Step, o.Attempt)] == nil {
			j.violate(Directive, "attempt %d of outbox row %s has no directive", o.Attempt, o.ID)
		} else if o.Lease != "" && leases[o.Lease] != attempt(o.Step, o.Attempt) {
			j.violate(Directive, "outbox row %s and its directive have different leases", o.ID)
		}
	}
}

// owns reports whether the directive of that attempt speaks of it.
func (j *judge) owns(name string, a *addressed) bool {
	for i := range j.Steps {
		s := &j.Steps[i]
		if strings.HasPrefix(name, attempt(s.Index, 0)[:5]) {
			return a.Type == "DIRECTIVE" && a.JobID == j.JobID && a.TenantID == j.Job.Tenant && a.StepID == s.ID &&
				name == attempt(s.Index, a.AttemptNo) && a.AttemptNo <= s.Attempt
		}
	}
	return false
}
