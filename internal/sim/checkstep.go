package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// checkStep compares a step with what it was.
func (c *checker) checkStep(who actor, was, j *job, index int, whole bool) {
	next := &j.steps[index]
	if index >= len(was.steps) || was.steps[index].id == "" {
		return
	}
	old := &was.steps[index]
	switch {
	case old.terminal() && old.raw != next.raw:
		c.violate("S3", "step %d of job %s changed after it was %s", index, j.id, old.state)
	case next.attempt < old.attempt || next.attempt > old.attempt+1:
		c.violate("S10", "step %d of job %s went from attempt %d to %d", index, j.id, old.attempt, next.attempt)
	case next.attempt == old.attempt && next.lease != old.lease && next.lease != "":
		c.violate("S5", "attempt %d of step %d of job %s changed its lease", next.attempt, index, j.id)
	case !whole && (next.state != old.state || next.attempt != old.attempt || next.lease != old.lease || next.spent != old.spent):
		c.violate("S10", "step %d of job %s changed outside of a revision", index, j.id)
	case old.state != next.state && !walks(statemachine.StepEdges, old.state, next.state):
		c.violate("S15", "step %d of job %s went from %s to %s", index, j.id, old.state, next.state)
	}
	if !whole {
		c.checkReport(who, was)
	}
	if end := old.end(); next.state == "FAILED_RETRY" && old.state != next.state && who.op == nil &&
		strings.HasSuffix(who.name, "/sweeper") && end.After(time.Now()) {
		c.violate("deadline", "step %d of job %s was given up on before %s", index, j.id, end)
	}
	if next.attempt != old.attempt {
		c.checkPair(j, index)
	}
	if next.state == "FAILED_FINAL" && old.state != next.state {
		c.checkFailure(who, j, next)
	}
}

// checkPair checks that a new attempt has a lease of its own.
func (c *checker) checkPair(j *job, index int) {
	step := &j.steps[index]
	attempt := j.id + "/" + step.id + "/" + itoa(step.attempt)
	if other, known := c.leases[step.lease]; known && other != attempt || step.lease == "" {
		c.violate("S8", "%s has the lease of %s", attempt, other)
	}
	c.leases[step.lease] = attempt
}

// checkFailure checks that a step fails for good only when a budget is spent, or
// somebody said so.
func (c *checker) checkFailure(who actor, j *job, step *stepRow) {
	if step.errorCode == "" {
		c.violate("S13", "step %s of job %s failed and does not say why", step.id, j.id)
	}
	said := who.op != nil && who.op.kind == "result" && who.op.status == "FAILED_FINAL"
	for i := range step.spent {
		said = said || step.spent[i] > step.budget[i]
	}
	if !said && step.errorCode != statemachine.ErrorDispatchExhausted {
		c.violate("S13", "step %s of job %s failed (%s) with budget left", step.id, j.id, step.errorCode)
	}
}

// checkReport checks that only the current pair changes anything.
func (c *checker) checkReport(who actor, was *job) {
	op := who.op
	if op == nil || op.jobID != was.id {
		return
	}
	for i := range was.steps {
		step := &was.steps[i]
		if step.id == op.stepID && (step.attempt != op.attemptNo || step.lease != op.leaseID || step.terminal()) {
			c.violate("S5", "a %s of attempt %d changed step %s of job %s, which was %s at attempt %d",
				op.kind, op.attemptNo, step.id, was.id, step.state, step.attempt)
		}
	}
}

// checkShape checks a job by itself.
func (c *checker) checkShape(j *job) {
	active, done, failed := 0, 0, 0
	for i := range j.steps {
		step := &j.steps[i]
		if step.active() {
			active++
		}
		if step.state != "PENDING" && step.state != "CANCELLED" && done < i {
			c.violate("S14", "step %d of job %s is %s before all others have succeeded", i, j.id, step.state)
		}
		switch step.state {
		case "SUCCEEDED":
			done++
		case "FAILED_FINAL":
			failed++
		}
		c.checkOutbox(j, step)
	}
	if active > 1 {
		c.violate("S4", "job %s has %d steps in progress", j.id, active)
	}
	state := j.row.state
	switch {
	case state == "SUCCEEDED" && done < len(j.steps), state == "FAILED_FINAL" && failed != 1,
		j.row.terminal() && active > 0, state == "QUEUED":
		c.violate("S4", "job %s is %s and its steps are not", j.id, state)
	case state == "PAUSED" && c.live(j):
		c.violate("pause", "job %s is PAUSED with an attempt in hand", j.id)
	}
}

// live reports whether an attempt of the job is in hand.
func (c *checker) live(j *job) bool {
	return slices.ContainsFunc(j.steps, func(s stepRow) bool {
		return s.state == "DISPATCHING" || s.state == "AWAITING_ACK" || s.state == "IN_PROGRESS"
	})
}

// checkOutbox checks that a step has a pending row when it is to be dispatched,
// and none otherwise.
func (c *checker) checkOutbox(j *job, step *stepRow) {
	pending := 0
	for _, row := range j.outbox {
		if row.step != step.index || row.state != "PENDING" {
			continue
		}
		pending++
		if row.attempt != step.attempt || row.lease != step.lease {
			c.violate("S6", "outbox row %s is PENDING for attempt %d of job %s, the step is at %d", row.id, row.attempt, j.id, step.attempt)
		}
	}
	if want := step.state == "DISPATCHING"; pending > 1 || want != (pending == 1) {
		c.violate("S6", "step %s of job %s is %s with %d pending outbox rows", step.id, j.id, step.state, pending)
	}
	if step.state == "DISPATCHING" && c.directive(j.id, step.index, step.attempt) == nil {
		c.violate("S6", "attempt %d of step %s of job %s has no directive", step.attempt, step.id, j.id)
	}
}

// walks reports whether listed edges lead from one state to another.
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
