package main

import (
	"context"
	"log/slog"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// changed counts what a committed change did, and logs it where somebody wants to
// follow jobs in the log. A lease id is a capability, so the attempt stands for it.
//
// Source: Option B spec, 20.
func (s *system) changed(after *statemachine.Aggregate, history []statemachine.Transition) {
	for i := range history {
		t := &history[i]
		s.metrics.changes.WithLabelValues(t.Type).Inc()
		if step := failedStep(after, t); step != nil {
			retried := map[bool]string{true: "yes", false: "no"}[t.To == string(statemachine.StepFailedRetry)]
			s.metrics.failed.WithLabelValues(causeOf(step.LastErrorCode), retried).Inc()
		}
	}
	if !s.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	job := &after.Job
	for i := range history {
		t := &history[i]
		s.log.Debug("transition", "event", t.Type, "jobId", job.ID, "tenant_id", job.TenantID,
			"stepId", stepOfTransition(after, t), "attempt_no", t.AttemptNo, "from", t.From, "to", t.To, "cause", t.Cause,
			"rev", job.Rev, "correlation_id", job.CorrelationID, "traceparent", job.Traceparent)
	}
}

// failedStep is the step that failed by the transition, nil where none did.
func failedStep(after *statemachine.Aggregate, t *statemachine.Transition) *statemachine.Step {
	if t.Object != statemachine.ObjectStep || t.From == t.To {
		return nil
	}
	if t.To != string(statemachine.StepFailedRetry) && t.To != string(statemachine.StepFailedFinal) {
		return nil
	}
	for i := range after.Steps {
		if after.Steps[i].ID == t.ID {
			return &after.Steps[i]
		}
	}
	return nil
}

// causeOf is the error code where it is one of Lucius' own. What workers report is
// theirs to choose, and would be a label without bounds.
func causeOf(code string) string {
	switch code {
	case statemachine.ErrorAckTimeout, statemachine.ErrorLeaseExpired, statemachine.ErrorStepTimeout,
		statemachine.ErrorPublishRejected, statemachine.ErrorDispatchExhausted, statemachine.ErrorCancelled:
		return code
	}
	return "reported"
}

// stepOfTransition is the id of the step that the transition is about, or of the
// one that is active, as for an outbox row.
func stepOfTransition(after *statemachine.Aggregate, t *statemachine.Transition) string {
	if t.Object == statemachine.ObjectStep {
		return t.ID
	}
	return after.Job.CurrentStepID
}
