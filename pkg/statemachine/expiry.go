package statemachine

import (
	"fmt"
	"time"
)

// decide acts on passed deadlines. The job changes even if none has passed: the schedule
// entry that fired is replaced.
func (e DeadlinePassed) decide(c *change) {
	if c.agg.Job.State.Terminal() {
		c.duplicate("the job is terminal")
		return
	}
	if c.expireIfDue() || c.dateReached() {
		return
	}
	step := c.active()
	if step != nil && (c.grace(step, e.outage(step, c.agg.Outbox)) || c.overdue(step, e.By)) {
		return
	}
	c.note(Transition{
		Object: ObjectJob, Type: EventJobRescheduled, From: string(c.agg.Job.State), To: string(c.agg.Job.State),
		Cause: "nothing was due",
	})
}

// outage returns the end of the last outage in which the step's worker could not report.
// Outages of topics and replies do not concern the pull queue.
func (e DeadlinePassed) outage(step *Step, row *Outbox) time.Time {
	last := e.Outage
	if row != nil && row.Bus == BusQueue {
		return last
	}
	if e.Replies.After(last) {
		last = e.Replies
	}
	if e.Topic != nil && step.State == StepAwaitingAck {
		if topic := e.Topic(step.Routing.Topic); topic.After(last) {
			return topic
		}
	}
	return last
}

// grace extends a deadline that passed during an outage, so that the worker can
// report before it is fenced. The absolute timeout is never extended.
func (c *change) grace(step *Step, outage time.Time) bool {
	extra := step.Policy.AckTimeout
	if step.State == StepInProgress {
		extra = step.lease() / 3
	}
	until := deadline(outage, extra)
	timedOut := !step.TimeoutAt.IsZero() && !step.TimeoutAt.After(c.env.Now)
	if !step.held() || step.LeaseExpiresAt.IsZero() || !step.LeaseExpiresAt.Before(outage) || !until.After(c.env.Now) || timedOut {
		return false
	}
	step.LeaseExpiresAt = until
	step.LeaseExpiresAt = step.attemptEnd()
	c.mark(step) // UpdatedAt stays: the worker has not reported.
	c.noteStep(step, EventStepExtended, "the deadline passed during an outage")
	return true
}

// overdue acts on the passed deadlines of the active step, and reports whether there was
// one. A worker's deadline must have passed by that time, unless it is zero.
func (c *change) overdue(step *Step, by time.Time) bool {
	now := c.env.Now
	if by.IsZero() || by.After(now) {
		by = now
	}
	switch step.State {
	case StepDispatching:
		if c.agg.Outbox.DueAt.After(now) {
			return false
		}
		c.makeDue("not published in time")
	case StepAwaitingAck:
		if _, queued := c.agg.Queued(); queued {
			if c.env.Bus == BusQueue {
				return false
			}
			// This process publishes to another bus: the attempt moves there.
			c.waitForRetry(step, now, "withdrawn: the bus was changed", "")
			c.dispatch(step, "the bus was changed")
			return true
		}
		if step.LeaseExpiresAt.IsZero() || step.LeaseExpiresAt.After(by) {
			return false
		}
		c.failAttempt(step, CauseAck, failure{
			code: ErrorAckTimeout, trigger: "ACK timeout",
			message: fmt.Sprintf("no ACK for attempt %d by %s", step.AttemptNo, stamp(step.LeaseExpiresAt)),
		})
	case StepInProgress:
		end := step.attemptEnd()
		if end.After(by) {
			return false
		}
		f := failure{code: ErrorLeaseExpired, trigger: "lease expired"}
		f.message = fmt.Sprintf("attempt %d sent no heartbeat or RESULT by %s", step.AttemptNo, stamp(end))
		if !step.TimeoutAt.IsZero() && !step.TimeoutAt.After(now) {
			f.code, f.trigger = ErrorStepTimeout, "step timeout"
			f.message = fmt.Sprintf("attempt %d ran longer than %s", step.AttemptNo, step.Policy.Timeout)
		}
		c.failAttempt(step, CauseExecution, f)
	case StepFailedRetry:
		if c.agg.Job.State == JobPaused || step.NextAttemptAt.After(now) {
			return false
		}
		c.dispatch(step, "retry due")
	case StepPending, StepSucceeded, StepFailedFinal, StepCancelled:
		return false
	}
	return true
}

// stamp formats a time for an error message.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// makeDue makes a PENDING row due for any relay.
func (c *change) makeDue(cause string) {
	c.outbox(OutboxPending, cause)
	c.agg.Outbox.DueAt = c.env.Now
}

// failure is what ended an attempt that may be retried.
type failure struct {
	code       string
	message    string
	trigger    string
	retryAfter time.Duration
	throttled  bool
}

// failAttempt spends one delay of the cause's budget, unless the service throttled the attempt or
// its worker stopped: the step waits for its next attempt, ends as FAILED_FINAL, or is cancelled
// with its job.
func (c *change) failAttempt(step *Step, cause Cause, f failure) {
	step.LastErrorCode, step.LastErrorMessage = f.code, f.message
	if c.agg.Job.State == JobCancelling {
		c.cancelRest(f.trigger)
		return
	}
	if c.agg.Job.lapsed(c.env.Now) {
		c.expire(step)
		return
	}
	var delay time.Duration
	free := step.Spent.Free < FreeAttempts
	switch {
	case free && f.throttled:
		step.Spent.Free++
		step.RetryCause = ""
	case free && f.code == ErrorWorkerStopped && step.repeats():
		step.Spent.Free++
		step.RetryCause = CauseStop
		delay = step.Policy.Execution[0] // unless the worker named one
	default:
		var again bool
		if delay, again = step.spend(cause); !again {
			c.failStep(step, f.code, f.message, f.trigger)
			return
		}
	}
	step.Throttled = f.throttled
	at := deadline(c.env.Now, c.jitter(delay))
	if f.retryAfter > 0 {
		at = deadline(c.env.Now, f.retryAfter)
	}
	c.waitForRetry(step, at, f.trigger, f.code)
}

// spend counts a failure of one cause and returns the delay before the retry, or false
// if the cause's delays or the cap over all causes are exhausted.
func (s *Step) spend(cause Cause) (time.Duration, bool) {
	count, delays := s.budget(cause)
	*count++
	s.RetryCause = cause
	if *count > len(delays) {
		return 0, false
	}
	attempts := s.Spent.total() + 1
	if s.Policy.MaxAttempts > 0 && attempts > s.Policy.MaxAttempts {
		return 0, false
	}
	return delays[*count-1], true
}

// jitter multiplies a delay by a random factor in [1-Jitter, 1+Jitter].
func (c *change) jitter(delay time.Duration) time.Duration {
	if c.env.Jitter <= 0 || delay <= 0 {
		return delay
	}
	spread := c.env.Jitter * float64(delay)
	return time.Duration(float64(delay) - spread + 2*spread*c.env.Random)
}

// waitForRetry puts the step into FAILED_RETRY, which pauses a job that is pausing. The
// pair stays: until the step is dispatched again, a RESULT that ends it still counts.
func (c *change) waitForRetry(step *Step, at time.Time, trigger, detail string) {
	c.step(step, StepFailedRetry, trigger, detail)
	step.NextAttemptAt = at
	step.LeaseExpiresAt = time.Time{}
	step.TimeoutAt = time.Time{}
	if c.agg.Job.State == JobPausing {
		c.job(JobPaused, "no live attempt left")
	}
}

// failStep ends the step, and with it the job.
func (c *change) failStep(step *Step, code, message, trigger string) {
	step.LastErrorCode, step.LastErrorMessage = code, message
	c.step(step, StepFailedFinal, trigger, code)
	job := &c.agg.Job
	if job.State == JobCancelling {
		c.cancelRest(trigger)
		return
	}
	job.ErrorCode, job.ErrorMessage = code, message
	c.job(JobFailedFinal, "step failed final")
}
