package statemachine

import (
	"fmt"
	"time"
)

// MaxAhead is how far ahead a job's dates may be.
const MaxAhead = 366 * 24 * time.Hour

// begun reports whether the job has dispatched a step.
func (j *Job) begun() bool { return j.AttemptsTotal > 0 }

// lapsed reports whether the job was not started by its NotAfter.
func (j *Job) lapsed(now time.Time) bool {
	return !j.Started && !j.NotAfter.IsZero() && !j.NotAfter.After(now)
}

// Expiry returns when the job expires by itself, the zero time if it does not. While a worker may hold
// the first attempt, the end of that attempt decides.
func (a *Aggregate) Expiry() time.Time {
	i, open := a.Active()
	if !open || a.Job.Started || a.Job.State.Terminal() || a.Job.State == JobCancelling || a.Steps[i].held() {
		return time.Time{}
	}
	return a.Job.NotAfter
}

// expireIfDue ends a job that has expired, and reports whether it has.
func (c *change) expireIfDue() bool {
	if at := c.agg.Expiry(); at.IsZero() || at.After(c.env.Now) {
		return false
	}
	c.withdrawRow()
	c.expire(c.active())
	return true
}

// expire fails the first open step, and with it the job.
func (c *change) expire(step *Step) {
	message := fmt.Sprintf("no worker had started it by %s", stamp(c.agg.Job.NotAfter))
	c.failStep(step, ErrorExpired, message, "not_after passed")
}

// tooLate refuses to start a directive of the pull queue whose job has expired. On another bus the
// message is out: the deadline of its ACK decides.
func (c *change) tooLate() bool {
	if _, queued := c.agg.Queued(); !queued || !c.agg.Job.lapsed(c.env.Now) {
		return false
	}
	c.refuse(CodeNotAfterPassed, "the job has expired: the sweeper is to end it")
	return true
}

// dateReached ends the wait of a job whose NotBefore is reached, and reports whether it is.
func (c *change) dateReached() bool {
	if !c.agg.Job.Parked || c.agg.Job.begun() || c.agg.Job.NotBefore.After(c.env.Now) {
		return false
	}
	c.unpark("not_before reached")
	return true
}

// unpark begins a parked job, or lets it wait for its turn in its line.
func (c *change) unpark(cause string) {
	job := &c.agg.Job
	if job.Parked = false; job.Place.Line == "" {
		c.begin(c.active(), cause)
		return
	}
	c.note(Transition{Object: ObjectJob, Type: EventJobRescheduled, From: string(job.State), To: string(job.State), Cause: cause})
}

// begin dispatches the first open step.
func (c *change) begin(first *Step, cause string) {
	c.dispatch(first, cause)
	c.job(JobDispatching, "first step's outbox row created")
}

// decide sets the dates, and begins a job that has no date to wait for any more.
func (e Reschedule) decide(c *change) {
	job := &c.agg.Job
	notBefore, notAfter := job.NotBefore, job.NotAfter
	if e.NotBefore != nil {
		notBefore = *e.NotBefore
	}
	if e.NotAfter != nil {
		notAfter = *e.NotAfter
	}
	switch {
	case job.State.Terminal() || job.State == JobCancelling:
		c.refuse(CodeIllegalTransition, "the job is %s already", job.State)
		return
	case notBefore.Equal(job.NotBefore) && notAfter.Equal(job.NotAfter):
		c.duplicate("the job has these dates already")
		return
	case job.begun():
		c.refuse(CodeIllegalTransition, "the job has begun: its dates cannot be changed any more")
		return
	case c.expireIfDue():
		return
	case !notAfter.IsZero() && !(notAfter.After(c.env.Now) && notAfter.After(notBefore)):
		c.refuse(CodeNotAfterPassed, "must be later than now and than not_before: it is %s", stamp(notAfter))
		return
	}
	job.NotBefore, job.NotAfter = notBefore, notAfter
	c.note(Transition{
		Object: ObjectJob, Type: EventJobRescheduled, From: string(job.State), To: string(job.State),
		Cause:  "reschedule request" + prefixed(": ", truncate(e.Reason, maxMessage)),
		Detail: "not_before " + dateOrNone(notBefore) + ", not_after " + dateOrNone(notAfter),
	})
	switch ahead := notBefore.After(c.env.Now); {
	case job.State != JobQueued:
	case ahead:
		job.Parked = true
	case job.Parked:
		c.unpark("rescheduled to now")
	}
}

// dateOrNone formats a date for the history.
func dateOrNone(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return stamp(t)
}
