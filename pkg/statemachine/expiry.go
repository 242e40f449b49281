package statemachine

import (
	"fmt"
	"time"
)

// deadlinePassed looks at the job and does what is due. Where nothing is, the
// job still changes: the entry that brought us here is replaced.
func (m *move) deadlinePassed(e DeadlinePassed) {
	if m.agg.Job.State.Terminal() {
		m.duplicate("the job is terminal")
		return
	}
	m.apply()
	i, ok := m.agg.Active()
	if ok && m.grace(i, e.outage(&m.agg.Steps[i], m.agg.Outbox)) {
		return
	}
	if !ok || !m.expire(i) {
		m.note(Transition{
			Object: ObjectJob, Type: EventJobRescheduled, From: string(m.agg.Job.State), To: string(m.agg.Job.State),
			Cause: "nothing was due",
		})
	}
}

// outage is when the last outage ended in which the step's worker could not report.
// Topics and replies are no matter of the pull queue.
func (e DeadlinePassed) outage(step *Step, row *Outbox) time.Time {
	last := e.Outage
	if row != nil && row.Bus == BusQueue {
		return last
	}
	if e.Replies.After(last) {
		last = e.Replies
	}
	if e.Topic == nil || step.State != StepAwaitingAck {
		return last
	}
	if topic := e.Topic(step.Routing.Topic); topic.After(last) {
		last = topic
	}
	return last
}

// grace extends a deadline that passed during an outage, so that the worker can
// report before it is fenced. The absolute timeout is never extended.
func (m *move) grace(i int, outage time.Time) bool {
	step := &m.agg.Steps[i]
	if step.LeaseExpiresAt.IsZero() || !step.LeaseExpiresAt.Before(outage) {
		return false
	}
	var extra time.Duration
	switch step.State {
	case StepAwaitingAck:
		extra = step.Policy.AckTimeout
	case StepInProgress:
		extra = step.Policy.Lease / 3
	case StepPending, StepDispatching, StepFailedRetry, StepSucceeded, StepFailedFinal, StepCancelled:
		return false
	}
	until := deadline(outage, extra)
	if !until.After(m.env.Now) || !step.TimeoutAt.IsZero() && !step.TimeoutAt.After(m.env.Now) {
		return false
	}
	step.LeaseExpiresAt = until
	m.capLease(step)
	m.touch(i)
	m.note(Transition{
		Object: ObjectStep, ID: step.ID, Type: EventStepExtended, From: string(step.State), To: string(step.State),
		AttemptNo: step.AttemptNo, Cause: "the deadline passed during an outage",
	})
	return true
}

// expire does what is due for the active step, and reports whether anything was.
func (m *move) expire(i int) bool {
	step := &m.agg.Steps[i]
	now := m.env.Now
	switch step.State {
	case StepDispatching:
		return m.makeDue()
	case StepAwaitingAck:
		if _, queued := m.agg.Queued(); queued {
			return m.leaveQueue(i)
		}
		if step.LeaseExpiresAt.IsZero() || step.LeaseExpiresAt.After(now) {
			return false
		}
		m.failAttempt(i, failure{
			cause: CauseAck, code: ErrorAckTimeout, trigger: "ACK timeout",
			message: fmt.Sprintf("no ACK for attempt %d by %s", step.AttemptNo, stamp(step.LeaseExpiresAt)),
		})
		return true
	case StepInProgress:
		return m.expireRun(i)
	case StepFailedRetry:
		if m.agg.Job.State == JobPaused || step.NextAttemptAt.After(now) {
			return false
		}
		m.dispatch(i, "retry due")
		return true
	case StepPending, StepSucceeded, StepFailedFinal, StepCancelled:
	}
	return false
}

// leaveQueue withdraws an attempt that waits in the pull queue when this process
// publishes to another bus, and dispatches the step anew there. It spends nothing.
func (m *move) leaveQueue(i int) bool {
	if m.env.Bus == BusQueue {
		return false
	}
	m.waitForRetry(i, deadline(m.env.Now, 0), "withdrawn: the bus was changed", "")
	m.dispatch(i, "the bus was changed")
	return true
}

// makeDue makes a row that the hot path did not publish due for any relay.
func (m *move) makeDue() bool {
	row := m.agg.Outbox
	if row.DueAt.After(m.env.Now) {
		return false
	}
	m.outboxSame(EventOutboxDue, "not published in time")
	row.DueAt = deadline(m.env.Now, 0)
	return true
}

// expireRun ends a run whose lease or absolute timeout has passed.
func (m *move) expireRun(i int) bool {
	step := &m.agg.Steps[i]
	end := attemptEnd(step)
	if end.After(m.env.Now) {
		return false
	}
	f := failure{cause: CauseExecution, code: ErrorLeaseExpired, trigger: "lease expired"}
	f.message = fmt.Sprintf("attempt %d sent no heartbeat or RESULT by %s", step.AttemptNo, stamp(end))
	if !step.TimeoutAt.IsZero() && !step.TimeoutAt.After(m.env.Now) {
		f.code, f.trigger = ErrorStepTimeout, "step timeout"
		f.message = fmt.Sprintf("attempt %d ran longer than %s", step.AttemptNo, step.Policy.Timeout)
	}
	m.failAttempt(i, f)
	return true
}

// stamp formats a time for an error message.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// firstDelay is the first delay of a list, 0 where it is empty.
func firstDelay(delays []time.Duration) time.Duration {
	if len(delays) == 0 {
		return 0
	}
	return delays[0]
}
