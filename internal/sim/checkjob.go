package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// checkJob looks at a batch on a job's partition.
func (c *checker) checkJob(who actor, j *job, writes []write) {
	was := *j
	was.steps, was.outbox = slices.Clone(j.steps), maps.Clone(j.outbox)
	var head, journal *write
	var steps []int
	for i := range writes {
		switch w := &writes[i]; w.kind {
		case "JOB":
			head = w
			c.takeHead(j, w)
		case "STEP":
			if index, ok := c.takeStep(j, w); ok {
				steps = append(steps, index)
			}
		case "OUTBOX":
			c.takeOutbox(j, w)
		case "EVENT":
			journal = w
			if w.was && !j.purged {
				c.violate("S10", "job %s: journal row %s written over", j.id, w.op.Key.Row)
			}
		case "DIRECTIVE":
			c.takeDirective(j, w)
		}
	}
	if j.purged || j.row.tombstone {
		return
	}
	c.checkHead(&was, j, head, journal)
	for _, index := range steps {
		c.checkStep(who, &was, j, index, head != nil)
	}
	if head != nil {
		c.checkReport(who, &was)
		c.checkShape(j)
		c.checkWayForward(j)
	}
}

// takeHead takes a JOB row over.
func (c *checker) takeHead(j *job, w *write) {
	if w.gone() {
		if w.was && !j.row.tombstone {
			c.violate("S1", "job %s deleted without a tombstone", j.id)
		}
		j.exists, j.row = false, jobRow{}
		return
	}
	next := readJob(w.op.Properties)
	switch {
	case next.tombstone && j.exists:
		if due := j.row.completed.Add(c.w.scenario.retention); !j.row.terminal() || c.w.scenario.retention == 0 || time.Now().Before(due) {
			c.violate("S1", "job %s became a tombstone while %s", j.id, j.row.state)
		}
		j.purged, j.exists = true, false
	case j.row.tombstone:
		c.violate("S3", "the tombstone of job %s was written over", j.id)
	default:
		j.exists = !next.tombstone
	}
	j.row = next
}

// takeStep takes a STEP row over.
func (c *checker) takeStep(j *job, w *write) (int, bool) {
	if w.gone() {
		return 0, false
	}
	step := readStep(w.op.Properties)
	for len(j.steps) <= step.index {
		j.steps = append(j.steps, stepRow{})
	}
	if old := j.steps[step.index]; old.attempt != step.attempt {
		j.superseded[attemptKey{step.index, old.attempt}] = c.seq
	}
	if _, known := j.ended[step.index]; step.terminal() && !known {
		j.ended[step.index] = c.seq
	}
	j.steps[step.index] = step
	return step.index, true
}

// takeOutbox takes an OUTBOX row over.
func (c *checker) takeOutbox(j *job, w *write) {
	if w.gone() {
		delete(j.outbox, w.op.Key.Row)
		return
	}
	old, next := j.outbox[w.op.Key.Row], readOutbox(w.op.Properties)
	j.outbox[w.op.Key.Row] = next
	if w.was && old.state != "PENDING" && old.raw != next.raw {
		c.violate("S3", "outbox row %s changed after it was %s", next.id, old.state)
	}
	if !w.was && next.state != "PENDING" {
		c.violate("S7", "outbox row %s began as %s", next.id, next.state)
	}
	if next.state == "SENT" && old.state != "SENT" && c.sent[next.message()] == nil && !c.enqueued[next.message()] {
		c.violate("S7", "outbox row %s is SENT and %s was never published", next.id, next.message())
	}
}

// takeDirective checks that an attempt's bytes are written once, after the
// steps before it have ended.
func (c *checker) takeDirective(j *job, w *write) {
	if w.was && !w.gone() && rawOf(w.old) != rawOf(w.op.Properties) {
		c.violate("S8", "job %s: %s written over", j.id, w.op.Key.Row)
	}
}

// checkHead compares a job with what it was.
func (c *checker) checkHead(was, j *job, head, journal *write) {
	switch {
	case head == nil && journal != nil:
		c.violate("S10", "job %s has a journal row without a change", j.id)
		return
	case head == nil:
		return
	case was.exists && was.row.terminal():
		c.violate("S3", "job %s changed after it was %s", j.id, was.row.state)
	case j.row.rev != was.row.rev+1:
		c.violate("S10", "job %s went from rev %d to %d", j.id, was.row.rev, j.row.rev)
	case journal == nil || journal.op.Verb != tablestore.Insert || journal.op.Properties.Get("rev").Int() != j.row.rev:
		c.violate("S10", "rev %d of job %s has no journal row of its own", j.row.rev, j.id)
	case j.row.updated.Before(was.row.updated):
		c.violate("S10", "job %s was updated at %s and then at %s", j.id, was.row.updated, j.row.updated)
	case j.row.attempts < was.row.attempts:
		c.violate("S10", "attempts of job %s went from %d to %d", j.id, was.row.attempts, j.row.attempts)
	}
	if was.exists && was.row.state != j.row.state && !walks(statemachine.JobEdges, was.row.state, j.row.state) {
		c.violate("S15", "job %s went from %s to %s", j.id, was.row.state, j.row.state)
	}
	if !was.exists {
		c.checkNewJob(j)
	}
}

// checkNewJob checks what may not be there twice.
func (c *checker) checkNewJob(j *job) {
	live := 0
	for _, other := range c.all() {
		if other.row.tenant == j.row.tenant && !other.row.terminal() {
			live++
		}
		if other != j && j.row.rerunOf == "" && other.row.rerunOf == "" && other.row.tenant == j.row.tenant &&
			other.row.key == j.row.key && !c.keyFree(other) {
			c.violate("S11", "jobs %s and %s have one idempotency key", other.id, j.id)
		}
	}
	if limit := c.w.scenario.limit; limit > 0 && live > limit {
		c.violate("limit", "tenant %s has %d jobs in flight, %d are allowed", j.row.tenant, live, limit)
	}
}

// keyFree reports whether the key of a job may name another by now.
func (c *checker) keyFree(j *job) bool {
	ttl := c.w.scenario.retention
	return ttl > 0 && j.row.terminal() && time.Now().After(j.row.completed.Add(ttl))
}
