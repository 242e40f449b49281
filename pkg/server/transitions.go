package server

import (
	"context"
	"log/slog"
	"slices"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// logTransitions logs that a job has failed, and at level debug each transition of a
// committed change.
//
// Source: Option B spec, 20.
func logTransitions(log *slog.Logger, after *statemachine.Aggregate, history []statemachine.Transition) {
	job, ctx := &after.Job, context.Background()
	details := log.Enabled(ctx, slog.LevelDebug)
	for i := range history {
		t := &history[i]
		failed := t.Object == statemachine.ObjectJob && t.From != t.To && t.To == string(statemachine.JobFailedFinal)
		if !details && !failed {
			continue
		}
		step := &after.Steps[job.CurrentStepIndex] // An outbox row belongs to the current step.
		if at := slices.IndexFunc(after.Steps, func(s statemachine.Step) bool { return s.ID == t.ID }); at >= 0 {
			step = &after.Steps[at]
		}
		attemptNo := step.AttemptNo
		if t.Object != statemachine.ObjectJob {
			attemptNo = t.AttemptNo
		}
		about := statemachine.FieldsOf(job, step, attemptNo)
		if failed {
			log.InfoContext(ctx, "job failed", about.With("request_type", job.RequestType, "attempts_total", job.AttemptsTotal,
				"error_code", job.ErrorCode, "error_message", job.ErrorMessage)...)
		}
		if details {
			log.DebugContext(ctx, "transition",
				about.With("event", t.Type, "from", t.From, "to", t.To, "cause", t.Cause, "rev", job.Rev)...)
		}
	}
}
