package statemachine

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// remembered is how many attempts a step remembers: the newest, whose callbacks may
// be repeated. A callback of an older one is stale in any case.
const remembered = 32

// LeaseDigest is what a step keeps of a lease id.
func LeaseDigest(leaseID string) string {
	sum := sha256.Sum256([]byte(leaseID))
	return hex.EncodeToString(sum[:12])
}

// remember returns the record of the step's current attempt, for the caller to change.
// The slice is copied: the aggregate before the change keeps its own.
func (s *Step) remember() *Attempt {
	s.Attempts = slices.Clone(s.Attempts)
	if record := s.attempt(s.AttemptNo); record != nil {
		return record
	}
	s.Attempts = append(s.Attempts, Attempt{No: s.AttemptNo, LeaseDigest: LeaseDigest(s.LeaseID)})
	if extra := len(s.Attempts) - remembered; extra > 0 {
		s.Attempts = slices.Delete(s.Attempts, 0, extra)
	}
	return &s.Attempts[len(s.Attempts)-1]
}

// fence compares the pair of a callback with the step. It reports whether the attempt of
// that pair may report, and returns that attempt, nil if the step never had the pair or has
// forgotten it.
func fence(step *Step, pair Pair) (current bool, attempt *Attempt) {
	attempt = step.attempt(pair.AttemptNo)
	if step.LeaseID != "" && pair.AttemptNo == step.AttemptNo && pair.LeaseID == step.LeaseID {
		return true, attempt
	}
	if attempt != nil && attempt.LeaseDigest == LeaseDigest(pair.LeaseID) {
		return false, attempt
	}
	return false, nil
}

// find returns the step that a callback names, or refuses the callback.
func (c *change) find(stepID string) *Step {
	for i := range c.agg.Steps {
		if c.agg.Steps[i].ID == stepID {
			return &c.agg.Steps[i]
		}
	}
	c.refuse(CodeStepNotFound, "the job has no step %q", stepID)
	return nil
}

// current returns the step of a callback that must carry the pair of an attempt that is
// offered or running; otherwise it refuses the callback.
func (c *change) current(stepID string, pair Pair) *Step {
	step := c.find(stepID)
	if step == nil {
		return nil
	}
	if current, _ := fence(step, pair); !current || step.State == StepFailedRetry {
		c.stale(step, pair)
		return nil
	}
	return step
}

// stale refuses a callback whose pair is not the current one. The last pair of a step that
// has ended is not current either, but no newer attempt has replaced it.
func (c *change) stale(step *Step, pair Pair) {
	if _, attempt := fence(step, pair); attempt != nil && pair.AttemptNo == step.AttemptNo && step.State.Terminal() {
		c.closed(step)
		return
	}
	if pair.AttemptNo == step.AttemptNo && step.LeaseID != "" && pair.LeaseID != step.LeaseID {
		c.refuse(CodeStaleAttempt, "lease_id is not the lease of attempt %d of step %q", pair.AttemptNo, step.ID)
		return
	}
	c.refuse(CodeStaleAttempt, "attempt %d of step %q is not the current one", pair.AttemptNo, step.ID)
}

// closed refuses a report on a step that has ended, or whose attempt is not offered
// yet.
func (c *change) closed(step *Step) bool {
	if step.State.Terminal() {
		c.refuse(CodeIllegalTransition, "step %q is %s already", step.ID, step.State)
		return true
	}
	return c.unoffered(step)
}

// unoffered refuses a callback of an attempt that the pull queue does not offer yet. No
// worker can know its pair: on Service Bus a callback proves the publish, but not here.
func (c *change) unoffered(step *Step) bool {
	if step.State != StepDispatching || c.agg.Outbox.Bus != BusQueue {
		return false
	}
	c.refuse(CodeIllegalTransition, "attempt %d of step %q was not offered yet", step.AttemptNo, step.ID)
	return true
}

// reported stores an applied callback's report of its sending, in the step and for the
// history. A verb of the pull queue has none.
func (c *change) reported(step *Step, report Report) {
	if report != (Report{}) {
		step.LastReport, c.d.Report = report, report
	}
}

// progressed stores the progress that a heartbeat reports, if any.
func (s *Step) progressed(progress *Progress) {
	if progress != nil {
		s.Progress = &Progress{Fraction: progress.Fraction, Message: truncate(progress.Message, maxProgress)}
	}
}

// light marks the change as a change of the step alone, without a journal row.
func (c *change) light(step *Step) {
	c.d.Light = true
	c.touch(step)
}

// decide starts the ACK deadline of a directive that waited in the pull queue.
func (e Claimed) decide(c *change) {
	step := c.current(e.StepID, e.Pair)
	if step == nil || c.unoffered(step) {
		return
	}
	if step.State != StepAwaitingAck || !step.LeaseExpiresAt.IsZero() {
		c.refuse(CodeIllegalTransition, "step %q is in a worker's hands, or ended", step.ID)
		return
	}
	if c.tooLate() {
		return
	}
	step.ClaimLease = e.Lease
	step.LeaseExpiresAt = deadline(c.env.Now, step.ackTimeout())
	c.touch(step)
	c.noteStep(step, EventStepClaimed, "claimed")
}

// decide moves the ACK deadline of a claimed directive, never to an earlier time.
func (e ClaimExtended) decide(c *change) {
	step := c.current(e.StepID, e.Pair)
	if step == nil {
		return
	}
	if step.State != StepAwaitingAck || step.LeaseExpiresAt.IsZero() {
		c.refuse(CodeIllegalTransition, "step %q is not claimed", step.ID)
		return
	}
	c.light(step)
	step.progressed(e.Progress)
	if by := deadline(c.env.Now, step.ackTimeout()); by.After(step.LeaseExpiresAt) {
		step.LeaseExpiresAt = by
	}
}

// decide starts the step. On Service Bus an ACK may come before the relay's mark: the
// matching pair proves the publish.
func (e Ack) decide(c *change) {
	step := c.find(e.StepID)
	if step == nil {
		return
	}
	current, attempt := fence(step, e.Pair)
	switch {
	case attempt != nil && attempt.Acked:
		c.duplicate("the ACK was applied before")
	case !current || step.State == StepFailedRetry:
		c.stale(step, e.Pair)
	case !c.closed(step) && !c.tooLate():
		c.reported(step, e.Report)
		step.ClaimLease = cmp.Or(e.Lease, step.ClaimLease)
		c.start(step, "ACK")
	}
}

// decide extends the lease of a running attempt. For an attempt without an ACK it also acts
// as the ACK.
func (e Heartbeat) decide(c *change) {
	step := c.current(e.StepID, e.Pair)
	if step == nil || c.closed(step) {
		return
	}
	c.reported(step, e.Report)
	step.progressed(e.Progress)
	if step.State == StepInProgress {
		c.light(step)
		c.extendLease(step)
		return
	}
	c.start(step, "heartbeat")
}

// start moves a step that waits for its ACK to IN_PROGRESS.
func (c *change) start(step *Step, cause string) {
	if step.State == StepDispatching {
		c.sent(cause)
	}
	c.step(step, StepInProgress, cause, "")
	c.acked(step, cause)
	step.StartedAt = c.env.Now
	if step.Policy.Timeout > 0 {
		step.TimeoutAt = deadline(c.env.Now, step.Policy.Timeout)
	}
	c.extendLease(step)
}

// acked records that the step's current attempt was ACKed, and starts the job with the
// first ACK.
func (c *change) acked(step *Step, cause string) {
	step.remember().Acked = true
	if job := &c.agg.Job; !job.Started {
		job.Started = true
		if job.State == JobDispatching {
			c.job(JobInProgress, cause)
		}
	}
}

// extendLease renews the lease for its full duration from now, within the absolute timeout.
func (c *change) extendLease(step *Step) {
	step.LeaseExpiresAt = deadline(c.env.Now, step.lease())
	step.LeaseExpiresAt = step.attemptEnd()
}

// decide applies a RESULT. It implies the ACK, and it counts after its deadline until
// the step is dispatched again.
func (e Result) decide(c *change) {
	step := c.find(e.StepID)
	if step == nil {
		return
	}
	current, attempt := fence(step, e.Pair)
	switch {
	case attempt != nil && attempt.Result == e.Status:
		c.duplicate("the RESULT was applied before")
		return
	case attempt != nil && attempt.Result != "":
		c.refuse(CodeContradictoryResult, "attempt %d of step %q ended with %s before",
			e.Pair.AttemptNo, step.ID, attempt.Result)
		return
	case !current:
		c.stale(step, e.Pair)
		return
	case c.closed(step):
		return
	}
	c.reported(step, e.Report)
	if step.State == StepFailedRetry && e.Status == ResultFailedRetry {
		c.light(step)
		record := step.remember()
		record.Acked, record.Result = true, e.Status
		return
	}

	switch step.State {
	case StepDispatching, StepAwaitingAck: // The RESULT came before its ACK.
		c.start(step, "RESULT")
	case StepFailedRetry: // It has separate edges to each result.
		c.acked(step, "RESULT")
	case StepPending, StepInProgress, StepSucceeded, StepFailedFinal, StepCancelled:
	}
	record := step.remember()
	record.Acked, record.Result = true, e.Status
	code, message := e.Status.ErrorCode(truncate(e.ErrorCode, maxCode)), truncate(e.ErrorMessage, maxMessage)
	switch e.Status {
	case ResultSucceeded:
		step.keep(e.Product)
		if !step.GaveResult {
			step.ResultRef = e.OutputRef
		}
		c.succeedStep(step)
	case ResultFailedFinal:
		step.keep(e.Product)
		step.ResultRef = nil // Only a step that succeeded has one.
		c.failStep(step, code, message, "RESULT FAILED_FINAL")
	case ResultFailedRetry:
		c.failAttempt(step, CauseExecution, failure{
			code: code, message: message, trigger: "RESULT FAILED_RETRY", retryAfter: e.RetryAfter,
			throttled: e.Throttled != "",
		})
	}
}

// keep stores what a RESULT that ends the step gave. That of a RESULT FAILED_RETRY is dropped: the
// next attempt gets the command's output_ref again.
func (s *Step) keep(given Product) {
	before := s.Product
	s.Product = given
	if s.GaveOutput, s.GaveResult = len(given.OutputRef) > 0, len(given.ResultRef) > 0; !s.GaveOutput {
		s.OutputRef = before.OutputRef
	}
}

// succeedStep ends the step and continues the job.
func (c *change) succeedStep(step *Step) {
	c.step(step, StepSucceeded, "RESULT SUCCEEDED", "")
	job := &c.agg.Job
	switch next := step.Index + 1; {
	case job.State == JobCancelling:
		c.cancelRest("RESULT SUCCEEDED")
	case next == len(c.agg.Steps):
		if job.FinalOutput = step.Output(); len(job.FinalOutput) == 0 {
			job.FinalOutput = job.OutputRef
		}
		c.job(JobSucceeded, "final step succeeded")
	case job.State == JobPausing:
		c.job(JobPaused, "no live attempt left")
	case job.State == JobPaused:
	default:
		c.dispatch(&c.agg.Steps[next], "previous step succeeded")
		c.job(JobInProgress, "step succeeded, next step activated")
	}
}
