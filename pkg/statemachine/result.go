package statemachine

import (
	"encoding/json"
	"strings"
	"time"
)

// ResultStatus is the status of a RESULT.
type ResultStatus string

// The statuses of a RESULT.
const (
	ResultSucceeded   ResultStatus = "SUCCEEDED"
	ResultFailedRetry ResultStatus = "FAILED_RETRY"
	ResultFailedFinal ResultStatus = "FAILED_FINAL"
)

// ErrorCode returns the error code of a RESULT of this status: the platform's as
// given, or one that names the status where it gave none, so that whatever failed
// says why. A RESULT that SUCCEEDED has none of its own.
func (s ResultStatus) ErrorCode(given string) string {
	if s == ResultSucceeded {
		return given
	}
	return orDefault(given, strings.ToLower(string(s)))
}

// Result is a worker's RESULT.
//
// Source: Option B spec, 11.3.
type Result struct {
	StepID       string
	Pair         Pair
	Status       ResultStatus
	ErrorCode    string
	ErrorMessage string
	OutputRef    json.RawMessage
	ResultRef    json.RawMessage
	// RetryAfter replaces the back-off of a FAILED_RETRY where it is not 0.
	RetryAfter time.Duration
}

// result handles a worker's RESULT. It implies the ACK, and it counts after
// its deadline until the step is dispatched again.
func (m *move) result(e Result) {
	i, ok := m.find(e.StepID)
	if !ok {
		return
	}
	step := &m.agg.Steps[i]
	standing, attempt := fence(step, e.Pair)
	switch {
	case standing != fenceUnknown && attempt != nil && attempt.Result == e.Status:
		m.duplicate("the RESULT was applied before")
	case standing != fenceUnknown && attempt != nil && attempt.Result != "":
		m.refuse(CodeContradictoryResult, "attempt %d of step %q ended with %s before",
			e.Pair.AttemptNo, step.ID, attempt.Result)
	case standing != fenceCurrent:
		m.stale(i, e.Pair, "result")
	case step.State.Terminal():
		m.ended(step)
	case m.unoffered(step):
		m.notOffered(step)
	case step.State == StepFailedRetry && e.Status == ResultFailedRetry:
		m.light(i)
		m.remember(i, func(a *Attempt) { a.Acked, a.Result = true, e.Status })
	default:
		m.apply()
		m.settle(i, e)
	}
}

// settle applies a RESULT to a step that can take it.
func (m *move) settle(i int, e Result) {
	m.advanceToRunning(i)
	m.remember(i, func(a *Attempt) { a.Acked, a.Result = true, e.Status })
	e.ErrorCode, e.ErrorMessage = truncate(e.ErrorCode, maxCode), truncate(e.ErrorMessage, maxMessage)
	step := &m.agg.Steps[i]
	if e.OutputRef != nil {
		step.OutputRef = e.OutputRef
	}
	switch e.Status {
	case ResultSucceeded:
		step.ResultRef = e.ResultRef
		if step.ResultRef == nil {
			step.ResultRef = e.OutputRef
		}
		m.succeedStep(i)
	case ResultFailedFinal:
		m.failStep(i, e.Status.ErrorCode(e.ErrorCode), e.ErrorMessage, "RESULT FAILED_FINAL")
	case ResultFailedRetry:
		m.failAttempt(i, failure{
			cause: CauseExecution, code: e.Status.ErrorCode(e.ErrorCode), message: e.ErrorMessage,
			trigger: "RESULT FAILED_RETRY", retryAfter: e.RetryAfter,
		})
	}
}

// advanceToRunning walks the step to IN_PROGRESS where the RESULT overtook its
// ACK. A step in FAILED_RETRY has edges of its own.
func (m *move) advanceToRunning(i int) {
	switch m.agg.Steps[i].State {
	case StepDispatching, StepAwaitingAck:
		m.start(i, "RESULT")
	case StepFailedRetry:
		m.acked(i, "RESULT")
	case StepPending, StepInProgress, StepSucceeded, StepFailedFinal, StepCancelled:
	}
}

// succeedStep ends the step and goes on with the job.
func (m *move) succeedStep(i int) {
	m.step(i, StepSucceeded, "RESULT SUCCEEDED", "")
	job := &m.agg.Job
	last := i == len(m.agg.Steps)-1
	switch {
	case job.State == JobCancelling:
		m.cancelRest("RESULT SUCCEEDED")
	case last:
		job.FinalOutput = m.agg.Steps[i].ResultRef
		if job.FinalOutput == nil {
			job.FinalOutput = job.OutputRef
		}
		m.job(JobSucceeded, "final step succeeded")
	case job.State == JobPausing:
		m.job(JobPaused, "no live attempt left")
	case job.State == JobPaused:
	default:
		m.dispatch(i+1, "previous step succeeded")
		m.job(JobInProgress, "step succeeded, next step activated")
	}
}

// failStep ends the step, and with it the job.
func (m *move) failStep(i int, code, message, trigger string) {
	step := &m.agg.Steps[i]
	step.LastErrorCode, step.LastErrorMessage = code, message
	m.step(i, StepFailedFinal, trigger, code)
	job := &m.agg.Job
	if job.State == JobCancelling {
		m.cancelRest(trigger)
		return
	}
	job.ErrorCode, job.ErrorMessage = code, message
	m.job(JobFailedFinal, "step failed final")
}

// failure is what ended an attempt that may be retried.
type failure struct {
	cause      Cause
	code       string
	message    string
	trigger    string
	retryAfter time.Duration
}

// failAttempt spends the cause's budget: the step waits for its next attempt,
// or fails final, or is cancelled with its job.
func (m *move) failAttempt(i int, f failure) {
	step := &m.agg.Steps[i]
	step.LastErrorCode, step.LastErrorMessage = f.code, f.message
	if m.agg.Job.State == JobCancelling {
		m.cancelRest(f.trigger)
		return
	}
	delay, again := spend(&step.Spent, &step.Policy, f.cause)
	if !again {
		m.failStep(i, f.code, f.message, f.trigger)
		return
	}
	at := deadline(m.env.Now, jitter(delay, m.env.Jitter, m.env.Random))
	if f.retryAfter > 0 {
		at = deadline(m.env.Now, f.retryAfter)
	}
	m.waitForRetry(i, at, f.trigger, f.code)
}

// waitForRetry puts the step into FAILED_RETRY; a job that is pausing has
// nothing live any more then. The pair stays: until the step is dispatched
// again, a RESULT that ends it still counts.
func (m *move) waitForRetry(i int, at time.Time, trigger, detail string) {
	step := &m.agg.Steps[i]
	m.step(i, StepFailedRetry, trigger, detail)
	step.NextAttemptAt = at
	step.LeaseExpiresAt = time.Time{}
	step.TimeoutAt = time.Time{}
	if m.agg.Job.State == JobPausing {
		m.job(JobPaused, "no live attempt left")
	}
}

// orDefault is s, or the default where it is empty.
func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
