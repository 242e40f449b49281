package sim

import (
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// checkStep compares a step with its previous version.
func (c *checker) checkStep(who actor, was, j *job, index int, whole bool) {
	next := &j.steps[index]
	if index >= len(was.steps) || was.steps[index].ID == "" {
		return
	}
	old := &was.steps[index]
	switch {
	case old.Terminal() && old.Raw != next.Raw:
		c.violate("S3", "step %d of job %s changed after it was %s", index, j.id, old.State)
	case next.Attempt < old.Attempt || next.Attempt > old.Attempt+1:
		c.violate("S10", "step %d of job %s went from attempt %d to %d", index, j.id, old.Attempt, next.Attempt)
	case next.Attempt == old.Attempt && next.Lease != old.Lease && next.Lease != "":
		c.violate("S5", "attempt %d of step %d of job %s changed its lease", next.Attempt, index, j.id)
	case !whole && (next.State != old.State || next.Attempt != old.Attempt || next.Lease != old.Lease || next.Spent != old.Spent):
		c.violate("S10", "step %d of job %s changed outside of a revision", index, j.id)
	case old.State != next.State && !walks(statemachine.StepEdges, old.State, next.State):
		c.violate("S15", "step %d of job %s went from %s to %s", index, j.id, old.State, next.State)
	}
	if !whole {
		c.checkReport(who, was)
	}
	if free := next.State == "DISPATCHING" || next.State == "AWAITING_ACK" && next.Expires.IsZero(); free && next.ClaimLease != 0 {
		c.violate("lease", "no worker has attempt %d of step %d of job %s, which has the lease of a claim", next.Attempt, index, j.id)
	}
	if end := old.End(); next.State == "FAILED_RETRY" && old.State != next.State && who.op == nil &&
		strings.HasSuffix(who.name, "/sweeper") && end.After(time.Now()) {
		c.violate("deadline", "step %d of job %s was timed out before %s", index, j.id, end)
	}
	if unclaimed(old) && !unclaimed(next) && next.Live() && !was.row.Started && !j.row.NotAfter.IsZero() &&
		!j.row.NotAfter.After(j.row.Updated) {
		c.violate("dates", "step %d of job %s was claimed after %s", index, j.id, j.row.NotAfter)
	}
	c.checkFreeAttempt(who, j, old, next)
	held := old.Live() && old.State != "DISPATCHING" && old.End().After(time.Now())
	if held && next.ErrorCode == statemachine.ErrorExpired && old.State != next.State {
		c.violate("dates", "step %d of job %s expired while a worker might hold it until %s", index, j.id, old.End())
	}
	if next.Attempt != old.Attempt {
		c.checkPair(j, index)
	}
	if next.State == "FAILED_FINAL" && old.State != next.State {
		c.checkFailure(who, j, next)
	}
}

// checkFreeAttempt checks that an attempt whose service throttled it or whose worker stopped spends
// no budget, that the next one starts when the worker said, and that no other than a throttled
// attempt counts as throttled.
func (c *checker) checkFreeAttempt(who actor, j *job, old, next *audit.StepRow) {
	op := who.op
	waits := next.State == "FAILED_RETRY" && old.State != next.State
	reported := waits && op != nil && op.jobID == j.id && op.stepID == next.ID
	throttled, stopped := reported && op.throttle != "", reported && op.stopped
	switch {
	case throttled && next.Spent != old.Spent:
		c.violate("S13", "the throttled attempt %d of step %s of job %s spent a budget", next.Attempt, next.ID, j.id)
	case stopped && next.Spent != old.Spent:
		c.violate("S13", "attempt %d of step %s of job %s, whose worker stopped, spent a budget", next.Attempt, next.ID, j.id)
	case stopped && !next.Next.Equal(j.row.Updated.Add(stopTime)):
		c.violate("S13", "step %s of job %s, whose worker stopped, waits until %s, and not for %s", next.ID, j.id, next.Next, stopTime)
	case throttled && !next.Next.Equal(j.row.Updated.Add(throttleTime)):
		c.violate("S13", "the throttled step %s of job %s waits until %s, and not for %s", next.ID, j.id, next.Next, throttleTime)
	case next.Throttled != throttled && (waits || next.Attempt != old.Attempt || !old.Throttled):
		c.violate("S13", "attempt %d of step %s of job %s counts as throttled: %t", next.Attempt, next.ID, j.id, next.Throttled)
	}
}

// unclaimed reports whether the step's directive waits in the pull queue.
func unclaimed(step *audit.StepRow) bool {
	return step.State == "AWAITING_ACK" && step.Expires.IsZero()
}

// checkPair checks that each new attempt has a new lease.
func (c *checker) checkPair(j *job, index int) {
	step := &j.steps[index]
	attempt := j.id + "/" + step.ID + "/" + strconv.Itoa(step.Attempt)
	if other, known := c.leases[step.Lease]; known && other != attempt || step.Lease == "" {
		c.violate("S8", "%s has the lease of %s", attempt, other)
	}
	c.leases[step.Lease] = attempt
}

// checkFailure checks that a step ends as FAILED_FINAL only if a budget is spent, or if a
// worker or the bus reported a permanent failure.
func (c *checker) checkFailure(who actor, j *job, step *audit.StepRow) {
	if step.ErrorCode == "" {
		c.violate("S13", "step %s of job %s failed and does not say why", step.ID, j.id)
	}
	justified := who.op != nil && who.op.kind == "result" && who.op.status == "FAILED_FINAL"
	for i := range step.Spent {
		justified = justified || step.Spent[i] > step.Budget[i]
	}
	expired := step.ErrorCode == statemachine.ErrorExpired && !j.row.Started && !j.row.NotAfter.After(time.Now())
	if !justified && !expired && step.ErrorCode != statemachine.ErrorDispatchExhausted {
		c.violate("S13", "step %s of job %s failed (%s) with budget left", step.ID, j.id, step.ErrorCode)
	}
}

// checkReport checks that only a report with the current pair changes a step.
func (c *checker) checkReport(who actor, was *job) {
	op := who.op
	if op == nil || op.jobID != was.id {
		return
	}
	for i := range was.steps {
		step := &was.steps[i]
		if step.ID == op.stepID && (step.Attempt != op.attemptNo || step.Lease != op.leaseID || step.Terminal()) {
			c.violate("S5", "a %s of attempt %d changed step %s of job %s, which was %s at attempt %d",
				op.kind, op.attemptNo, step.ID, was.id, step.State, step.Attempt)
		}
	}
}

// checkShape checks the rows of a job against each other, as the audit does.
func (c *checker) checkShape(j *job) {
	for _, finding := range j.evidence().Shape() {
		c.violate(string(finding.Invariant), "job %s: %s", j.id, finding.Detail)
	}
	for i := range j.steps {
		if step := &j.steps[i]; step.State == "DISPATCHING" && c.directive(j.id, step.Index, step.Attempt) == nil {
			c.violate("S6", "attempt %d of step %s of job %s has no directive", step.Attempt, step.ID, j.id)
		}
	}
}

// walks reports whether a path of listed edges leads from one state to another.
func walks[S ~string](edges []statemachine.Edge[S], from, to string) bool {
	seen, next := map[S]bool{}, []S{S(from)}
	for len(next) > 0 {
		state := next[0]
		next = next[1:]
		for _, edge := range edges {
			if edge.From != state || seen[edge.To] {
				continue
			}
			if string(edge.To) == to {
				return true
			}
			seen[edge.To] = true
			next = append(next, edge.To)
		}
	}
	return false
}
