package statemachine

// live reports whether a worker may hold the step's current attempt: then only
// the worker's report or a deadline ends it.
func live(step *Step) bool {
	switch step.State {
	case StepInProgress:
		return true
	case StepAwaitingAck:
		return !step.LeaseExpiresAt.IsZero()
	case StepPending, StepDispatching, StepFailedRetry, StepSucceeded, StepFailedFinal, StepCancelled:
	}
	return false
}

// liveAttempt reports whether the job has one.
func (m *move) liveAttempt() bool {
	i, ok := m.agg.Active()
	return ok && live(&m.agg.Steps[i])
}

// cancel ends the job, at once or when its live attempt ends.
func (m *move) cancel(e Cancel) {
	job := &m.agg.Job
	switch {
	case job.State == JobCancelling || job.State == JobCancelled:
		m.duplicate("the job is " + string(job.State) + " already")
		return
	case job.State.Terminal():
		m.refuse(CodeIllegalTransition, "the job is %s already", job.State)
		return
	}
	m.apply()
	m.job(JobCancelling, orDefault(truncate(e.Reason, maxMessage), "cancel request"))
	if !m.liveAttempt() {
		m.withdrawRow()
		m.cancelRest("cancel request")
	}
}

// withdrawRow closes a row that was not sent; a copy that is being published
// meanwhile is fenced.
func (m *move) withdrawRow() {
	row := m.agg.Outbox
	if row != nil && row.State == OutboxPending {
		m.outbox(OutboxFailedFinal, "withdrawn")
	}
}

// cancelRest cancels every step that is not terminal, and the job.
func (m *move) cancelRest(trigger string) {
	for i := range m.agg.Steps {
		if m.agg.Steps[i].State.Terminal() {
			continue
		}
		m.step(i, StepCancelled, trigger, "")
		m.agg.Steps[i].LeaseID = ""
	}
	m.agg.Job.ErrorCode, m.agg.Job.ErrorMessage = ErrorCancelled, ""
	m.job(JobCancelled, "no live attempt left")
}

// pause lets a live attempt finish, withdraws one that nobody holds, and
// starts nothing new.
func (m *move) pause(e Pause) {
	job := &m.agg.Job
	switch {
	case job.State == JobPausing || job.State == JobPaused:
		m.duplicate("the job is " + string(job.State) + " already")
		return
	case job.State.Terminal() || job.State == JobCancelling:
		m.refuse(CodeIllegalTransition, "the job is %s already", job.State)
		return
	}
	m.apply()
	m.job(JobPausing, orDefault(truncate(e.Reason, maxMessage), "pause request"))
	if m.liveAttempt() {
		return
	}
	m.withdrawAttempt()
	if job.State == JobPausing {
		m.job(JobPaused, "no live attempt left")
	}
}

// withdrawAttempt takes back an attempt that was not sent or not claimed. It
// spends nothing and is due again as soon as the job resumes.
func (m *move) withdrawAttempt() {
	i, ok := m.agg.Active()
	if !ok {
		return
	}
	step := &m.agg.Steps[i]
	if step.State != StepDispatching && step.State != StepAwaitingAck {
		return
	}
	m.withdrawRow()
	m.waitForRetry(i, deadline(m.env.Now, 0), "withdrawn by pause", "")
	step.LeaseID = ""
}

// resume goes on with the first step that is not terminal.
func (m *move) resume(e Resume) {
	job := &m.agg.Job
	switch job.State {
	case JobPausing, JobPaused:
	case JobQueued, JobDispatching, JobInProgress:
		m.duplicate("the job is not paused")
		return
	case JobCancelling, JobCancelled, JobSucceeded, JobFailedFinal:
		m.refuse(CodeIllegalTransition, "the job is %s already", job.State)
		return
	}
	m.apply()
	to := JobDispatching
	if job.Started {
		to = JobInProgress
	}
	m.job(to, orDefault(truncate(e.Reason, maxMessage), "resume request"))
	m.startWaiting("resume request")
}

// startWaiting dispatches the active step if it waits and is due.
func (m *move) startWaiting(cause string) {
	i, ok := m.agg.Active()
	if !ok {
		return
	}
	step := &m.agg.Steps[i]
	due := !step.NextAttemptAt.After(m.env.Now)
	if step.State == StepPending || step.State == StepFailedRetry && due {
		m.dispatch(i, cause)
	}
}

// retry makes what waits for its next dispatch due now.
func (m *move) retry(e Retry) {
	job := &m.agg.Job
	if job.State.Terminal() || job.State == JobCancelling || job.State == JobPausing || job.State == JobPaused {
		m.refuse(CodeIllegalTransition, "the job is %s", job.State)
		return
	}
	i, ok := m.agg.Active()
	if !ok || e.StepID != "" && m.agg.Steps[i].ID != e.StepID {
		m.refuse(CodeIllegalTransition, "step %q is not the active one", e.StepID)
		return
	}
	step := &m.agg.Steps[i]
	switch step.State {
	case StepFailedRetry:
		m.apply()
		step.NextAttemptAt = deadline(m.env.Now, 0)
		m.note(Transition{
			Object: ObjectStep, ID: step.ID, Type: EventStepRetryNow, From: string(step.State), To: string(step.State),
			AttemptNo: step.AttemptNo, Cause: "retry request",
		})
		m.dispatch(i, "retry request")
	case StepDispatching:
		m.apply()
		m.outboxSame(EventOutboxDue, "retry request")
		m.agg.Outbox.DueAt = deadline(m.env.Now, 0)
	case StepPending, StepAwaitingAck, StepInProgress, StepSucceeded, StepFailedFinal, StepCancelled:
		m.refuse(CodeIllegalTransition, "step %q is %s: nothing waits for a dispatch", step.ID, step.State)
	}
}

// stall takes a directive from its worker; the step waits for its next attempt.
func (m *move) stall(e Stall) {
	i, ok := m.find(e.StepID)
	if !ok {
		return
	}
	step := &m.agg.Steps[i]
	switch {
	case step.AttemptNo != e.AttemptNo:
		m.refuse(CodeStaleAttempt, "attempt %d of step %q is not the current one", e.AttemptNo, step.ID)
	case step.State == StepFailedRetry:
		m.duplicate("the attempt was taken from its worker before")
	case !live(step):
		m.refuse(CodeIllegalTransition, "no worker holds step %q", step.ID)
	case m.agg.Job.State == JobCancelling:
		m.apply()
		m.cancelRest("stalled by an operator")
	default:
		m.apply()
		delay := firstDelay(step.Policy.Execution)
		m.waitForRetry(i, deadline(m.env.Now, jitter(delay, m.env.Jitter, m.env.Random)), "stalled by an operator", "")
	}
}
