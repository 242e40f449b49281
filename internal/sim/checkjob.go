package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// checkJob checks a batch on a job's partition.
func (c *checker) checkJob(who actor, j *job, writes []write) {
	j.seen = nil
	was := *j
	was.steps, was.outbox, was.items = slices.Clone(j.steps), maps.Clone(j.outbox), maps.Clone(j.items)
	var head, journal *write
	var steps []int
	var moves []statemachine.ItemEvent
	for i := range writes {
		switch w := &writes[i]; w.kind {
		case "JOB":
			head = w
			c.takeHead(j, w)
		case "STEP":
			if index, ok := c.takeStep(who, j, w); ok {
				steps = append(steps, index)
			}
		case "OUTBOX":
			c.takeOutbox(j, w)
		case "EVENT":
			journal = w
			if w.was && !j.purged {
				c.violate("S10", "job %s: journal row %s was overwritten", j.id, w.op.Key.Row)
			}
			moves = append(moves, c.takeMoves(j, w)...)
		case "BEAT":
			moves = append(moves, c.takeMoves(j, w)...)
		case "OPENITEM", "ITEM":
			c.takeItem(j, w)
		case "DIRECTIVE":
			c.takeDirective(j, w)
		case "CALLBACK":
			c.takeRejected(j, w)
		case "WEBHOOK":
			c.takeWebhook(j, w)
		}
	}
	c.checkStarts(who, j, moves)
	if j.purged || j.row.Tombstone {
		return
	}
	c.checkHead(&was, j, head, journal)
	for _, index := range steps {
		c.checkStep(who, &was, j, index, head != nil)
	}
	if head != nil {
		c.checkReport(who, &was)
		c.checkForward(j)
	}
	if head != nil || len(steps) > 0 {
		c.checkShape(j)
		c.checkItems(&was, j, moves)
		c.checkWaiting(j)
	}
}

// takeHead copies a JOB row.
func (c *checker) takeHead(j *job, w *write) {
	if w.gone() {
		switch {
		case !w.was || j.row.Tombstone:
		case !c.w.scenario.atomic || c.w.scenario.table: // Only one write of all rows needs no tombstone.
			c.violate("S1", "job %s was deleted without a tombstone", j.id)
		case !c.mayPurge(j):
			c.violate("S1", "job %s was deleted while %s", j.id, j.row.State)
		}
		if j.exists {
			c.checkPurge(j)
		}
		j.purged = j.purged || w.was // The tombstone may have been that of an abandoned accept.
		j.exists, j.row = false, audit.JobRow{}
		return
	}
	next := audit.ReadJob(w.op.Properties)
	switch {
	case j.purged && !j.row.Tombstone && !next.Tombstone: // a reconciler may fence it again
		c.violate("S1", "job %s was written after its purge", j.id)
	case next.Tombstone && j.exists:
		if !c.mayPurge(j) {
			c.violate("S1", "job %s became a tombstone while %s", j.id, j.row.State)
		}
		c.checkPurge(j)
		j.purged, j.exists = true, false
	case j.row.Tombstone:
		c.violate("S3", "the tombstone of job %s was overwritten", j.id)
	default:
		j.exists = !next.Tombstone
	}
	if j.row = next; j.exists {
		c.takeOccurrence(j, w.op.Properties)
	}
}

// mayPurge reports whether a job has ended for as long as it has to be kept.
func (c *checker) mayPurge(j *job) bool {
	keep := c.w.scenario.retention
	return j.row.Terminal() && keep > 0 && !time.Now().Before(j.row.Completed.Add(keep))
}

// takeStep copies a STEP row.
func (c *checker) takeStep(who actor, j *job, w *write) (int, bool) {
	if w.gone() {
		return 0, false
	}
	step := audit.ReadStep(w.op.Properties)
	for len(j.steps) <= step.Index {
		j.steps = append(j.steps, audit.StepRow{})
	}
	c.takeHeard(who, j, &j.steps[step.Index], &step, w.op.Properties)
	if old := j.steps[step.Index]; old.Attempt != step.Attempt {
		j.superseded[attemptKey{step.Index, old.Attempt}] = c.seq
	}
	if _, known := j.ended[step.Index]; step.Terminal() && !known {
		j.ended[step.Index] = c.seq
	}
	j.steps[step.Index] = step
	return step.Index, true
}

// takeOutbox copies an OUTBOX row.
func (c *checker) takeOutbox(j *job, w *write) {
	if w.gone() {
		delete(j.outbox, w.op.Key.Row)
		return
	}
	old, next := j.outbox[w.op.Key.Row], audit.ReadOutbox(w.op.Properties)
	j.outbox[w.op.Key.Row] = next
	if w.was && old.State != "PENDING" && old.Raw != next.Raw {
		c.violate("S3", "outbox row %s changed after it was %s", next.ID, old.State)
	}
	if old.Bus != next.Bus && w.was && old.Attempt == next.Attempt {
		c.violate("S7", "outbox row %s changed from bus %s to %s within one attempt", next.ID, old.Bus, next.Bus)
	}
	if next.Bus == "queue" {
		return // The commit is the publish, and checkShape checks that there is an item.
	}
	if !w.was && next.State != "PENDING" {
		c.violate("S7", "outbox row %s began as %s", next.ID, next.State)
	}
	if next.State == "SENT" && old.State != "SENT" && c.sent[next.Message()] == nil {
		c.violate("S7", "outbox row %s is SENT and %s was never published", next.ID, next.Message())
	}
}

// takeDirective checks that the directive of an attempt is written once.
func (c *checker) takeDirective(j *job, w *write) {
	if w.was && !w.gone() && audit.Raw(w.old) != audit.Raw(w.op.Properties) {
		c.violate("S8", "job %s: %s was overwritten", j.id, w.op.Key.Row)
	}
}

// keptRejected is how many rejected callbacks of a job are kept at least.
const keptRejected = 64

// takeRejected checks that the record of a rejected callback is never overwritten, and is
// deleted only after newer ones.
func (c *checker) takeRejected(j *job, w *write) {
	row := w.op.Key.Row
	if !w.gone() {
		if _, err := audit.ReadRejected(w.op.Properties); err != nil || w.was {
			c.violate("S16", "job %s: %s was overwritten, or is not readable: %v", j.id, row, err)
		}
		j.rejected = append(j.rejected, row)
		return
	}
	newer := 0
	j.rejected = slices.DeleteFunc(j.rejected, func(other string) bool {
		if other < row {
			newer++
		}
		return other == row
	})
	if w.was && !j.purged && newer < keptRejected-1 {
		c.violate("S16", "the rejected callback %s of job %s was deleted", row, j.id)
	}
}

// checkHead compares a JOB row with its previous version.
func (c *checker) checkHead(was, j *job, head, journal *write) {
	switch {
	case head == nil && journal != nil:
		c.violate("S10", "job %s has a journal row without a change", j.id)
		return
	case head == nil:
		return
	case was.exists && was.row.Terminal():
		c.violate("S3", "job %s changed after it was %s", j.id, was.row.State)
	case j.row.Rev != was.row.Rev+1:
		c.violate("S10", "job %s went from rev %d to %d", j.id, was.row.Rev, j.row.Rev)
	case journal == nil || journal.op.Verb != tablestore.Insert || journal.op.Properties.Get("rev").Int() != j.row.Rev:
		c.violate("S10", "rev %d of job %s has no journal row of its own", j.row.Rev, j.id)
	case j.row.Updated.Before(was.row.Updated):
		c.violate("S10", "job %s was updated at %s and then at %s", j.id, was.row.Updated, j.row.Updated)
	case was.row.Attempts == 0 && j.row.Attempts > 0 && j.row.NotBefore.After(time.Now()):
		c.violate("dates", "job %s began before %s", j.id, j.row.NotBefore)
	case was.row.Attempts > 0 && !(j.row.NotBefore.Equal(was.row.NotBefore) && j.row.NotAfter.Equal(was.row.NotAfter)):
		c.violate("dates", "the dates of job %s were changed after it had begun", j.id)
	case j.row.Attempts < was.row.Attempts:
		c.violate("S10", "attempts of job %s went from %d to %d", j.id, was.row.Attempts, j.row.Attempts)
	}
	c.takeDescription(was, j)
	c.checkInLine(was, j)
	if was.row.State != j.row.State {
		j.stated = c.seq
	}
	if !was.exists || j.row.Terminal() {
		c.checkListed(j)
	}
	if was.exists && was.row.State != j.row.State && !walks(statemachine.JobEdges, was.row.State, j.row.State) {
		c.violate("S15", "job %s went from %s to %s", j.id, was.row.State, j.row.State)
	}
	if !was.exists {
		c.checkNewJob(j)
	}
}

// checkNewJob checks the idempotency key and the tenant's limit of a new job.
func (c *checker) checkNewJob(j *job) {
	live := 0
	for _, other := range c.all() {
		if other.row.Tenant == j.row.Tenant && !other.row.Terminal() && other.row.Place.Took == "" {
			live++
		}
		if other != j && j.row.RerunOf == "" && j.row.Occurrence.ScheduleID == "" && other.row.RerunOf == "" &&
			other.row.Tenant == j.row.Tenant && other.row.IdempotencyKey == j.row.IdempotencyKey && !c.keyFree(other) {
			c.violate("S11", "jobs %s and %s have one idempotency key", other.id, j.id)
		}
		if other != j && j.row.RerunOf != "" && other.row.Tenant == j.row.Tenant && other.row.Record == j.row.Record {
			c.violate("S11", "jobs %s and %s are one rerun of job %s", other.id, j.id, j.row.RerunOf)
		}
	}
	// The limit never refuses the rerun of a job that blocks its line. Its slot has no number, so another
	// replica may not know of it yet when it gives a number to the next job.
	if limit := c.w.scenario.limit; limit > 0 && live > limit && j.row.Place.Took == "" {
		c.violate("limit", "tenant %s has %d jobs in flight, %d are allowed", j.row.Tenant, live, limit)
	}
}

// keyFree reports whether the idempotency key of a job may belong to another job by now.
func (c *checker) keyFree(j *job) bool {
	ttl := c.w.scenario.retention
	return ttl > 0 && j.row.Terminal() && time.Now().After(j.row.Completed.Add(ttl))
}
