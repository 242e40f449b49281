package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// checkForward checks that the job can make progress: a schedule entry leads to it at or
// before its next deadline, or workers can find it by a ready hint that was written before
// this commit.
func (c *checker) checkForward(j *job) {
	evidence, due := j.evidence(), j.due()
	queued := evidence.Queued()
	if queued != nil && !c.partial {
		if key := evidence.HintKey(queued, auditOptions); c.rows[key] == nil {
			c.violate("queue", "job %s waits for a worker, and its ready hint %s is missing", j.id, key.Row)
		}
	}
	switch named := j.row.EntryKind != ""; {
	case named && c.rows[c.entryKey(j)] == nil:
		c.violate("schedule", "the entry of job %s, %s, is missing", j.id, c.entryKey(j).Row)
	case named && !due.IsZero() && j.row.EntryDue.After(due):
		c.violate("schedule", "the entry of job %s is due at %s, and the job at %s", j.id, j.row.EntryDue, due)
	case named:
	case !due.IsZero():
		c.violate("schedule", "job %s is %s and has no entry, and is due at %s", j.id, j.row.State, due)
	case j.row.State == "PAUSED" || waitsInLine(&j.row):
	case queued == nil:
		c.violate("schedule", "job %s is %s and has no entry", j.id, j.row.State)
	case j.row.Rev == 1 && !c.w.scenario.atomic:
		c.violate("schedule", "job %s was accepted, and no entry would release its reservations", j.id)
	}
}

// due returns the job's next deadline, the zero time if there is none.
func (j *job) due() time.Time {
	if j.row.Terminal() {
		return j.row.Completed.Add(time.Minute)
	}
	due, expiry := j.progress(), j.evidence().Expiry()
	if due.IsZero() || !expiry.IsZero() && expiry.Before(due) {
		return expiry
	}
	return due
}

// progress is due for a live job that does not expire.
func (j *job) progress() time.Time {
	switch {
	case j.row.Parked:
		return j.row.NotBefore
	case j.row.State == "PAUSED" || waitsInLine(&j.row):
		return time.Time{}
	}
	for i := range j.steps {
		step := &j.steps[i]
		switch step.State {
		case "AWAITING_ACK", "IN_PROGRESS":
			return step.End()
		case "FAILED_RETRY":
			return step.Next
		case "DISPATCHING":
			due := time.Now()
			for _, row := range j.outbox {
				if row.State == "PENDING" {
					due = later(due, row.Due)
				}
			}
			return due.Add(hold)
		}
	}
	return time.Time{}
}

// entryKey returns the key of the entry that the job names.
func (c *checker) entryKey(j *job) tablestore.Key {
	evidence := audit.Evidence{JobID: j.id, Job: &j.row}
	return evidence.EntryKey(auditOptions)
}

// checkSchedule checks that an entry is deleted only when it is no longer needed.
func (c *checker) checkSchedule(writes []write) {
	for i := range writes {
		w := &writes[i]
		parts := strings.Split(w.op.Key.Row, ":")
		if !w.gone() && timed(parts) {
			c.entered[parts[2]] = true
			if parts[0] == string(ledger.Date) && w.op.Properties.Get("claim").String() != "" {
				c.violate("dates", "the entry of the date of job %s names reservations, and may be due in a year", parts[2])
			}
		}
		if len(parts) == 4 && parts[0] == string(ledger.Webhook) {
			c.checkNoticeEntry(w, parts)
		}
		if !w.gone() || !w.was || !timed(parts) {
			continue
		}
		j := c.job(parts[2])
		c.noteUnlooked(w.old, j)
		named := j.exists && c.entryKey(j) == w.op.Key
		switch rev := w.old.Get("rev").Int(); {
		case j.purged || j.row.Tombstone:
		case j.row.Rev < rev:
			c.violate("schedule", "an entry of job %s for rev %d was deleted at rev %d", j.id, rev, j.row.Rev)
		case named && !j.row.Terminal():
			c.violate("schedule", "the entry that job %s names was deleted", j.id)
		case named:
			c.checkEnd(j)
		}
	}
}

// timed reports whether a row key of a shard is that of an entry that leads to a live job.
func timed(parts []string) bool {
	return len(parts) == 4 && slices.Contains([]ledger.Kind{ledger.Timer, ledger.Dispatch, ledger.Date}, ledger.Kind(parts[0]))
}

// checkEnd checks that the post-commit work of a job's end is done before the last entry that
// would repeat it is deleted.
func (c *checker) checkEnd(j *job) {
	c.checkAnnounced(j)
	slot := c.rows[tablestore.Key{Table: tableSchedule, Partition: j.row.SlotPartition, Row: j.row.SlotRow}]
	if slot.Get("job_id").String() == j.id && !c.remembered(j) {
		c.violate("slot", "job %s has ended, its slot is taken, and no entry would free it", j.id)
	}
}

// remembered reports whether an entry will free the slot of the job. There may be one of an
// accept that lost the race for the job, and took the slot after the job's end had freed it.
func (c *checker) remembered(j *job) bool {
	for key, row := range c.rows {
		if key.Table == tableSchedule && row.Get("slot_row").String() == j.row.SlotRow && strings.Contains(key.Row, ":"+j.id+":") {
			return true
		}
	}
	return false
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
