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

// judgeForward checks that somebody will look at a job that goes on, at or before
// its next deadline.
func (j *judge) judgeForward() {
	due, waits := j.due()
	if j.o.Quiescent {
		j.violate(Quiet, "it is %s", j.Job.State)
	}
	switch {
	case waits && !j.queued():
		j.violate(Forward, "it waits for a worker and the pull queue does not hold it")
	case due.IsZero() || j.Job.State == "PAUSED":
	case j.Job.EntryKind == "":
		j.violate(Forward, "it is %s and no schedule entry stands for it", j.Job.State)
	case j.Beside[j.EntryKey(j.o)] == nil:
		j.violate(Forward, "its schedule entry %s is not there", j.EntryKey(j.o).Row)
	case j.Job.EntryDue.After(due):
		j.violate(Forward, "its schedule entry is due at %s, and it at %s", stamp(j.Job.EntryDue), stamp(due))
	case j.o.Now.After(j.Job.EntryDue.Add(j.o.Slack)):
		j.late(Forward, "its schedule entry was due at %s", stamp(j.Job.EntryDue))
	}
}

// publishHold is how long after its time an outbox row may still be in the hands
// of the process that publishes it.
const publishHold = 15 * time.Minute

// due is when somebody must look at the job at the latest, the zero time for
// never, and whether it waits for a worker to pull it.
func (j *judge) due() (due time.Time, waits bool) {
	for i := range j.Steps {
		s := &j.Steps[i]
		switch s.State {
		case "AWAITING_ACK":
			return s.End(), s.Expires.IsZero()
		case "IN_PROGRESS":
			return s.End(), false
		case "FAILED_RETRY":
			return s.Next, false
		case "DISPATCHING":
			for k := range j.Outbox {
				if o := &j.Outbox[k]; o.State == "PENDING" && o.Due.After(due) {
					due = o.Due
				}
			}
			return due.Add(publishHold), false
		}
	}
	return time.Time{}, false
}

// queued reports whether the pull queue holds the current pair of the step in
// hand.
func (j *judge) queued() bool {
	for i := range j.Steps {
		if s := &j.Steps[i]; s.State == "AWAITING_ACK" {
			for k := range j.Items {
				if item := &j.Items[k]; item.Lease == s.Lease && !item.Terminal() {
					return true
				}
			}
		}
	}
	return false
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
	for i := range j.Items {
		// One that is queued may have come after the end: the next claim drops it.
		if item := &j.Items[i]; !item.Terminal() && (item.Status != "queued" || j.o.Quiescent) {
			j.violate(Queue, "it has ended, and its work item %s is %s", item.WorkID, item.Status)
		}
	}
}

// judgeQueue checks the work items of a job.
func (j *judge) judgeQueue() {
	live := map[string]string{}
	for i := range j.Items {
		item := &j.Items[i]
		if item.Job != j.JobID {
			j.violate(Queue, "work item %s says that it is of job %q", item.WorkID, item.Job)
		}
		if item.Terminal() {
			continue
		}
		if other := live[item.Lease]; other != "" {
			j.violate(Queue, "work items %s and %s carry one lease", other, item.WorkID)
		}
		live[item.Lease] = item.WorkID
	}
}
