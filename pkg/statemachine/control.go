package statemachine

import (
	"cmp"
	"time"
)

// decide ends the job, at once or when its live attempt ends.
func (e Cancel) decide(c *change) {
	job := &c.agg.Job
	switch {
	case job.State == JobCancelling || job.State == JobCancelled:
		c.duplicate("the job is " + string(job.State) + " already")
		return
	case job.State.Terminal():
		c.refuse(CodeIllegalTransition, "the job is %s already", job.State)
		return
	case e.IfWaits && !job.Waits():
		c.refuse(CodeIllegalTransition, "the job has begun")
		return
	}
	job.ErrorCode = e.Code
	c.job(JobCancelling, cmp.Or(truncate(e.Reason, maxMessage), "cancel request"))
	if step := c.active(); step == nil || !step.held() {
		c.withdrawRow()
		c.cancelRest("cancel request")
	}
}

// withdrawRow closes a row that was not sent. If a relay is publishing a copy at the
// same time, that copy is fenced.
func (c *change) withdrawRow() {
	if row := c.agg.Outbox; row != nil && row.State == OutboxPending {
		c.outbox(OutboxFailedFinal, "withdrawn")
	}
}

// cancelRest cancels every step that is not terminal, and the job.
func (c *change) cancelRest(trigger string) {
	for i := range c.agg.Steps {
		if step := &c.agg.Steps[i]; !step.State.Terminal() {
			c.step(step, StepCancelled, trigger, "")
			step.LeaseID = ""
		}
	}
	c.agg.Job.ErrorCode = cmp.Or(c.agg.Job.ErrorCode, ErrorCancelled)
	c.job(JobCancelled, "no live attempt left")
}

// decide lets a live attempt finish, withdraws one that no worker holds, and starts
// nothing new. A withdrawn attempt spends nothing; the step is due again as soon as
// the job resumes.
func (e Pause) decide(c *change) {
	job := &c.agg.Job
	switch {
	case job.State == JobPausing || job.State == JobPaused:
		c.duplicate("the job is " + string(job.State) + " already")
		return
	case job.State.Terminal() || job.State == JobCancelling:
		c.refuse(CodeIllegalTransition, "the job is %s already", job.State)
		return
	}
	c.job(JobPausing, cmp.Or(truncate(e.Reason, maxMessage), "pause request"))
	step := c.active()
	if step != nil && step.held() {
		return
	}
	if step != nil && (step.State == StepDispatching || step.State == StepAwaitingAck) {
		c.withdrawRow()
		c.waitForRetry(step, c.env.Now, "withdrawn by pause", "")
		step.LeaseID = ""
	}
	if job.State == JobPausing {
		c.job(JobPaused, "no live attempt left")
	}
}

// decide continues with the first step that is not terminal, if it is due. A job that has not begun
// waits for its date or its line.
func (e Resume) decide(c *change) {
	job := &c.agg.Job
	switch job.State {
	case JobPausing, JobPaused:
	case JobQueued, JobDispatching, JobInProgress:
		c.duplicate("the job is not paused")
		return
	case JobCancelling, JobCancelled, JobSucceeded, JobFailedFinal:
		c.refuse(CodeIllegalTransition, "the job is %s already", job.State)
		return
	}
	to := JobDispatching
	switch {
	case c.expireIfDue():
		return
	case job.Started:
		to = JobInProgress
	case !job.begun() && (job.Place.Line != "" || job.NotBefore.After(c.env.Now)):
		to = JobQueued
	}
	c.job(to, cmp.Or(truncate(e.Reason, maxMessage), "resume request"))
	step := c.active()
	if step == nil || to == JobQueued {
		return
	}
	due := !step.NextAttemptAt.After(c.env.Now)
	if step.State == StepPending || step.State == StepFailedRetry && due {
		c.dispatch(step, "resume request")
	}
}

// decide makes the step that waits for its next dispatch due now.
func (e Retry) decide(c *change) {
	job := &c.agg.Job
	if job.State.Terminal() || job.State == JobCancelling || job.State == JobPausing || job.State == JobPaused {
		c.refuse(CodeIllegalTransition, "the job is %s", job.State)
		return
	}
	cause := "retry request" + prefixed(": ", truncate(e.Reason, maxMessage))
	step := c.active()
	if step == nil || e.StepID != "" && step.ID != e.StepID {
		c.refuse(CodeIllegalTransition, "step %q is not the active one", e.StepID)
		return
	}
	if c.expireIfDue() {
		return
	}
	switch step.State {
	case StepFailedRetry:
		c.noteStep(step, EventStepRetryNow, cause)
		c.dispatch(step, "retry request")
	case StepDispatching:
		c.makeDue(cause)
	case StepPending, StepAwaitingAck, StepInProgress, StepSucceeded, StepFailedFinal, StepCancelled:
		c.refuse(CodeIllegalTransition, "step %q is %s: nothing waits for a dispatch", step.ID, step.State)
	}
}

// decide takes a directive from its worker; the step waits for its next attempt.
func (e Stall) decide(c *change) {
	cause := "stalled by an operator" + prefixed(": ", truncate(e.Reason, maxMessage))
	step := c.find(e.StepID)
	switch {
	case step == nil:
	case step.AttemptNo != e.AttemptNo:
		c.refuse(CodeStaleAttempt, "attempt %d of step %q is not the current one", e.AttemptNo, step.ID)
	case step.State == StepFailedRetry:
		c.duplicate("the attempt was taken from its worker before")
	case !step.held():
		c.refuse(CodeIllegalTransition, "no worker holds step %q", step.ID)
	case c.agg.Job.State == JobCancelling:
		c.cancelRest(cause)
	default:
		var delay time.Duration
		if len(step.Policy.Execution) > 0 {
			delay = step.Policy.Execution[0]
		}
		step.RetryCause = ""
		c.waitForRetry(step, deadline(c.env.Now, c.jitter(delay)), cause, "")
	}
}
