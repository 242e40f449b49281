package audit

import "time"

// judgeBeside checks the rows that stand for the job in other partitions: those
// that are written before its commit are there whatever came after.
func (j *judge) judgeBeside() {
	for _, key := range j.listKeys(j.o) {
		if _, ok := j.Beside[key]; !ok {
			j.violate(Listed, "it is missing in the list %s", key.Partition)
		}
	}
	slot := j.Beside[j.slotKey(j.o)].Get("job_id").String()
	if !j.Job.Terminal() && slot != j.JobID {
		j.violate(Slot, "its slot %s names %q", j.Job.SlotRow, slot)
	}
	j.judgeClaim()
}

// judgeClaim checks that the job's idempotency key names it for as long as the
// key is its own.
func (j *judge) judgeClaim() {
	if j.keyPassed() {
		return
	}
	claim := j.Beside[j.claimKey(j.o)]
	if owner := claim.Get("job_id").String(); owner != j.JobID {
		j.violate(Claim, "its idempotency key names job %q", owner)
		return
	}
	if claim.Get("idempotency_hash").String() != j.Job.Hash {
		j.violate(Claim, "its idempotency key has another hash")
	}
}

// keyPassed reports whether the key may name another job by now, or none because
// this one is about to be purged.
func (j *judge) keyPassed() bool {
	past := func(kept time.Duration) bool { return kept > 0 && !j.o.Now.Before(j.Job.Completed.Add(kept)) }
	return j.Job.Terminal() && (past(j.o.KeyTTL) || past(max(j.o.KeyTTL, j.o.Retention)))
}

// judgeForward checks that the job will be looked at, at or before its next deadline,
// or that a worker can find it.
func (j *judge) judgeForward() {
	if j.o.Quiescent {
		j.violate(Quiet, "it is %s", j.Job.State)
	}
	queued := j.Queued()
	if queued != nil {
		j.judgeHint(queued)
	}
	named, due := j.Job.EntryKind != "", j.due()
	switch {
	case named && j.Beside[j.EntryKey(j.o)] == nil:
		j.violate(Forward, "its schedule entry %s is not there", j.EntryKey(j.o).Row)
	case named && !due.IsZero() && j.Job.EntryDue.After(due):
		j.violate(Forward, "its schedule entry is due at %s, and it at %s", stamp(j.Job.EntryDue), stamp(due))
	case named && j.o.Now.After(j.Job.EntryDue.Add(j.o.Slack)):
		j.late(Forward, "its schedule entry was due at %s", stamp(j.Job.EntryDue))
	case named || j.Job.State == "PAUSED":
	case !due.IsZero():
		j.violate(Forward, "it is %s and no schedule entry stands for it", j.Job.State)
	case queued == nil:
		j.violate(Forward, "it is %s, and neither a worker nor a schedule entry will take it up", j.Job.State)
	case j.o.Split && j.Job.Rev == 1:
		j.violate(Forward, "it was accepted, and no schedule entry stands for what the accept reserved")
	}
}

// publishHold is how long after its time an outbox row may still be in the hands
// of the process that publishes it.
const publishHold = 15 * time.Minute

// due is when the job must be looked at the latest, the zero time for never: it is
// paused, or waits for a worker in the pull queue.
func (j *judge) due() (due time.Time) {
	s := j.active()
	if s == nil || j.Job.State == "PAUSED" {
		return due
	}
	switch s.State {
	case "AWAITING_ACK", "IN_PROGRESS":
		return s.End()
	case "FAILED_RETRY":
		return s.Next
	case "DISPATCHING":
		for k := range j.Outbox {
			if o := &j.Outbox[k]; o.State == "PENDING" && o.Due.After(due) {
				due = o.Due
			}
		}
		return due.Add(publishHold)
	}
	return due
}

// judgeEnd checks what follows the end of a job. It may be undone for as long as
// the entry stands that remembers it.
func (j *judge) judgeEnd() {
	if j.Job.EntryKind != "" && j.Beside[j.EntryKey(j.o)] != nil {
		if j.o.Quiescent || j.o.Now.After(j.Job.EntryDue.Add(j.o.Slack)) {
			j.late(Ended, "what follows its end was due at %s", stamp(j.Job.EntryDue))
		}
		return
	}
	if j.Beside[j.slotKey(j.o)].Get("job_id").String() == j.JobID {
		j.violate(Slot, "it has ended, and its slot is taken")
	}
	if j.webhooks != j.Job.Callbacks {
		j.violate(Ended, "%d of its %d announcements are there", j.webhooks, j.Job.Callbacks)
	}
}
