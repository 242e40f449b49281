package statemachine

import "time"

// ack handles a worker's ACK. On Service Bus it may come before the relay's mark:
// the matching pair proves the publish.
func (m *move) ack(e Ack) {
	i, ok := m.find(e.StepID)
	if !ok {
		return
	}
	step := &m.agg.Steps[i]
	standing, attempt := fence(step, e.Pair)
	switch {
	case attempt != nil && standing != fenceUnknown && attempt.Acked:
		m.duplicate("the ACK was applied before")
	case standing != fenceCurrent || step.State == StepFailedRetry:
		m.stale(i, e.Pair, "ack")
	case step.State.Terminal():
		m.ended(step)
	case m.unoffered(step):
		m.notOffered(step)
	default:
		m.apply()
		m.start(i, "ACK")
	}
}

// unoffered reports whether the step's attempt is still to be offered in the
// pull queue. No worker can know its pair: on Service Bus a callback proves the
// publish, here it proves nothing.
func (m *move) unoffered(step *Step) bool {
	return step.State == StepDispatching && m.agg.Outbox.Bus == BusQueue
}

// notOffered refuses a callback for such an attempt.
func (m *move) notOffered(step *Step) {
	m.refuse(CodeIllegalTransition, "attempt %d of step %q was not offered yet", step.AttemptNo, step.ID)
}

// ended refuses a callback with the last pair of a step that has ended.
func (m *move) ended(step *Step) {
	m.refuse(CodeIllegalTransition, "step %q is %s already", step.ID, step.State)
}

// start walks a step from wherever it waits to IN_PROGRESS.
func (m *move) start(i int, cause string) {
	step := &m.agg.Steps[i]
	if step.State == StepDispatching {
		m.sent(cause)
	}
	m.step(i, StepInProgress, cause, "")
	m.acked(i, cause)
	step.LeaseExpiresAt = deadline(m.env.Now, step.Policy.Lease)
	if step.Policy.Timeout > 0 {
		step.TimeoutAt = deadline(m.env.Now, step.Policy.Timeout)
	}
	m.capLease(step)
}

// acked records that the current attempt of step i was ACKed, and starts the
// job with the first one.
func (m *move) acked(i int, cause string) {
	m.remember(i, func(a *Attempt) { a.Acked = true })
	job := &m.agg.Job
	if job.Started {
		return
	}
	job.Started = true
	if job.State == JobDispatching {
		m.job(JobInProgress, cause)
	}
}

// capLease keeps the lease within the absolute timeout.
func (m *move) capLease(step *Step) { step.LeaseExpiresAt = attemptEnd(step) }

// heartbeat extends the lease of a running attempt, and implies its ACK.
func (m *move) heartbeat(e Heartbeat) {
	i, ok := m.find(e.StepID)
	if !ok {
		return
	}
	step := &m.agg.Steps[i]
	standing, _ := fence(step, e.Pair)
	switch {
	case standing != fenceCurrent || step.State == StepFailedRetry:
		m.stale(i, e.Pair, "heartbeat")
	case step.State.Terminal():
		m.ended(step)
	case step.State == StepInProgress:
		m.light(i)
		step.LeaseExpiresAt = deadline(m.env.Now, step.Policy.Lease)
		m.capLease(step)
	case m.unoffered(step):
		m.notOffered(step)
	default:
		m.apply()
		m.start(i, "heartbeat")
	}
}

// light marks the move as one that changes step i alone, without a journal row.
func (m *move) light(i int) {
	m.apply()
	m.d.Light = true
	m.touch(i)
}

// claimed starts the ACK deadline of a directive that waited in the pull queue.
func (m *move) claimed(e Claimed) {
	i, ok := m.find(e.StepID)
	if !ok {
		return
	}
	step := &m.agg.Steps[i]
	standing, _ := fence(step, e.Pair)
	switch {
	case standing != fenceCurrent || step.State == StepFailedRetry:
		m.stale(i, e.Pair, "claim")
	case m.unoffered(step):
		m.notOffered(step)
	case step.State == StepAwaitingAck && step.LeaseExpiresAt.IsZero():
		m.apply()
		m.claim(i, e.By)
	default:
		m.refuse(CodeIllegalTransition, "step %q is in a worker's hands, or ended", step.ID)
	}
}

// claim sets the ACK deadline of a claimed directive: the step's ACK timeout,
// unless the claim asks for another.
func (m *move) claim(i int, by time.Time) {
	step := &m.agg.Steps[i]
	step.LeaseExpiresAt = deadline(by, 0)
	if by.IsZero() {
		step.LeaseExpiresAt = deadline(m.env.Now, step.Policy.AckTimeout)
	}
	m.touch(i)
	m.note(Transition{
		Object: ObjectStep, ID: step.ID, Type: EventStepClaimed, From: string(step.State), To: string(step.State),
		AttemptNo: step.AttemptNo, Cause: "claimed",
	})
}

// claimExtended moves the ACK deadline of a claimed directive, never earlier.
func (m *move) claimExtended(e ClaimExtended) {
	i, ok := m.find(e.StepID)
	if !ok {
		return
	}
	step := &m.agg.Steps[i]
	standing, _ := fence(step, e.Pair)
	switch {
	case standing != fenceCurrent || step.State == StepFailedRetry:
		m.stale(i, e.Pair, "claim_extension")
	case step.State != StepAwaitingAck || step.LeaseExpiresAt.IsZero():
		m.refuse(CodeIllegalTransition, "step %q is not claimed", step.ID)
	default:
		m.light(i)
		if by := deadline(e.By, 0); by.After(step.LeaseExpiresAt) {
			step.LeaseExpiresAt = by
		}
	}
}
