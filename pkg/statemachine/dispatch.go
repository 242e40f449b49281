package statemachine

import (
	"fmt"
	"time"
)

// accept is the first change of a job: QUEUED, and the first step that is to be
// done dispatched.
func (m *move) accept(e Accept) {
	job := &m.agg.Job
	first, open := m.agg.Active()
	switch {
	case job.Rev != 0 || job.State != JobQueued:
		m.refuse(CodeIllegalTransition, "the job exists already")
		return
	case !open:
		m.refuse(CodeIllegalTransition, "every step has ended")
		return
	}
	m.apply()
	job.CreatedAt = m.env.Now
	for i := range m.agg.Steps {
		m.agg.Steps[i].CreatedAt = m.env.Now
		m.touch(i)
	}
	cause := "command accepted"
	if job.RerunOf != "" {
		cause = "rerun of " + job.RerunOf
	}
	m.note(Transition{
		Object: ObjectJob, Type: EventJobAccepted, To: string(JobQueued), Cause: cause, Detail: truncate(e.Reason, maxMessage),
	})
	for i := range first {
		step := &m.agg.Steps[i]
		step.CompletedAt = m.env.Now
		m.note(Transition{
			Object: ObjectStep, ID: step.ID, Type: EventStepCarried, To: string(step.State), Cause: cause,
		})
	}
	m.dispatch(first, cause)
	m.job(JobDispatching, "first step's outbox row created")
}

// dispatch makes a new attempt of step i with a new pair and a new outbox row,
// and makes it the job's current step.
func (m *move) dispatch(i int, cause string) {
	step := &m.agg.Steps[i]
	m.newPair(i)
	step.OutboxID = fmt.Sprintf("%s.%d.%d", m.agg.Job.ID, i, step.AttemptNo)
	step.NextAttemptAt = time.Time{}
	step.InputRef = m.input(i)
	m.step(i, StepDispatching, cause, "")
	m.agg.Job.CurrentStepID = step.ID
	m.agg.Job.CurrentStepIndex = i

	row := &Outbox{
		ID: step.OutboxID, StepID: step.ID, StepIndex: i, AttemptNo: step.AttemptNo, LeaseID: step.LeaseID,
		State: OutboxPending, Bus: m.env.Bus, Routing: step.Routing, CreatedAt: m.env.Now, UpdatedAt: m.env.Now,
	}
	m.agg.Outbox = row
	m.added = true
	m.d.Added, m.d.Dispatch = row, row
	m.note(Transition{
		Object: ObjectOutbox, ID: row.ID, Type: EventOutboxPending, To: string(OutboxPending),
		AttemptNo: row.AttemptNo, Cause: cause,
	})
	m.offer(row)
}

// offer publishes the row by this change if its bus is the pull queue. For the
// relay of this process it makes the row due after the hold, with a timer as the
// safety net. A row that must wait is due now, for any relay.
func (m *move) offer(row *Outbox) {
	job := &m.agg.Job
	row.DueAt = deadline(m.env.Now, 0)
	if m.env.Prompt == nil || !m.env.Prompt(job.TenantID, job.ProtocolID, row.Routing.Lane) {
		return
	}
	if row.Bus == BusQueue {
		m.sent("published by this change")
		return
	}
	row.DueAt = deadline(m.env.Now, m.env.Hold)
	m.wake = &Wake{Kind: WakeTimer, At: row.DueAt}
	m.d.Hot = true
}

// newPair gives step i the next attempt_no and the fresh lease id.
func (m *move) newPair(i int) {
	step := &m.agg.Steps[i]
	step.AttemptNo++
	m.agg.Job.AttemptsTotal++
	step.LeaseID = m.env.LeaseID
	step.LeaseExpiresAt = deadline(m.env.Now, m.env.Hold+step.Policy.AckTimeout)
	step.TimeoutAt = time.Time{}
	m.remember(i, func(*Attempt) {})
}

// input is the step's input_ref.
func (m *move) input(i int) []byte {
	step := &m.agg.Steps[i]
	if step.Input == InputPrevious && i > 0 && len(m.agg.Steps[i-1].ResultRef) > 0 {
		return m.agg.Steps[i-1].ResultRef
	}
	return m.agg.Job.InputRef
}

// dispatchClaimed is a relay that takes a due row up.
func (m *move) dispatchClaimed(e DispatchClaimed) {
	row := m.pending(e.OutboxID)
	if row == nil {
		return
	}
	if row.DueAt.After(m.env.Now) {
		m.refuse(CodeNotDue, "the row is not due before %s", row.DueAt.Format(time.RFC3339))
		return
	}
	m.apply()
	switch {
	case row.Bus != m.env.Bus:
		row.Bus = m.env.Bus
		m.newFence(row, "moved to another bus")
	case row.Rejected:
		m.newFence(row, "retry after a rejected publish")
	}
	m.outboxSame(EventOutboxTaken, "taken up for publishing")
	row.DueAt = deadline(m.env.Now, m.env.Hold)
}

// newFence gives a row a new pair before it is published again, so that its
// message id differs and a worker that got some copy is fenced.
//
// Source: Orchestrator flow canvas, Retry Loop (update, publish, update).
func (m *move) newFence(row *Outbox, cause string) {
	i := row.StepIndex
	m.newPair(i)
	m.step(i, StepDispatching, cause, "")
	row.AttemptNo = m.agg.Steps[i].AttemptNo
	row.LeaseID = m.agg.Steps[i].LeaseID
	row.Rejected = false
	m.d.Dispatch = row
}

// outboxSame walks PENDING to PENDING with an event type of its own.
func (m *move) outboxSame(eventType, cause string) {
	m.outbox(OutboxPending, cause)
	m.d.History[len(m.d.History)-1].Type = eventType
}

// pending returns the active row if it is that one (any, for an empty id) and
// still PENDING; else the move ends as a duplicate, since somebody settled the
// row before.
func (m *move) pending(outboxID string) *Outbox {
	row := m.agg.Outbox
	if row == nil || outboxID != "" && row.ID != outboxID || row.State != OutboxPending {
		m.duplicate("the outbox row is settled")
		return nil
	}
	return row
}

// published marks the row SENT.
func (m *move) published(e Published) {
	row := m.pending(e.OutboxID)
	if row == nil {
		return
	}
	if row.AttemptNo != e.AttemptNo {
		m.duplicate("the outbox row has a newer attempt")
		return
	}
	m.apply()
	m.sent("publish succeeded")
}

// sent walks a DISPATCHING step and its row to AWAITING_ACK and SENT. The ACK
// deadline starts now, in the pull queue only with the claim.
func (m *move) sent(cause string) {
	m.outbox(OutboxSent, cause)
	i := m.agg.Outbox.StepIndex
	m.step(i, StepAwaitingAck, cause, "")
	step := &m.agg.Steps[i]
	step.LeaseExpiresAt = deadline(m.env.Now, step.Policy.AckTimeout)
	if m.agg.Outbox.Bus == BusQueue {
		step.LeaseExpiresAt = time.Time{}
	}
}

// publishRejected spends the dispatch budget.
func (m *move) publishRejected(e PublishRejected) {
	row := m.pending(e.OutboxID)
	if row == nil {
		return
	}
	if row.AttemptNo != e.AttemptNo || row.Rejected {
		m.duplicate("the rejection is counted")
		return
	}
	m.apply()
	i := row.StepIndex
	step := &m.agg.Steps[i]
	e.Reason = truncate(e.Reason, maxMessage)
	row.Failures++
	row.LastError = e.Reason
	step.LastErrorCode, step.LastErrorMessage = ErrorDispatchExhausted, e.Reason
	delay, again := spend(&step.Spent, &step.Policy, CauseDispatch)
	m.touch(i)
	if e.Permanent || !again {
		m.outbox(OutboxFailedFinal, "publish failed final")
		m.failStep(i, ErrorDispatchExhausted, e.Reason, "publish failed final")
		return
	}
	step.LastErrorCode = ErrorPublishRejected
	m.outboxSame(EventOutboxRejected, e.Reason)
	row.Rejected = true
	row.DueAt = deadline(m.env.Now, jitter(delay, m.env.Jitter, m.env.Random))
}
