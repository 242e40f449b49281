package server

import (
	"context"
	"log/slog"
	"slices"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// logTransitions logs that a job has ended, and at level debug each transition of a
// committed change. With failuresOnly it leaves out the end of a job that did not fail.
//
// Source: Option B spec, 20.
func logTransitions(log *slog.Logger, failuresOnly bool, after *statemachine.Aggregate, history []statemachine.Transition) {
	job, ctx := &after.Job, context.Background()
	details, ends := log.Enabled(ctx, slog.LevelDebug), log.Enabled(ctx, slog.LevelInfo)
	ends = ends && job.State.Terminal() && (job.State == statemachine.JobFailedFinal || !failuresOnly)
	for i := range history {
		t := &history[i]
		ended := ends && t.Object == statemachine.ObjectJob && t.From != t.To && t.To == string(job.State)
		if !details && !ended {
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
		if ended {
			fields := about.With("request_type", job.RequestType, "state", string(job.State), "attempts_total", job.AttemptsTotal,
				"seconds", job.CompletedAt.Sub(job.CreatedAt).Seconds())
			if job.ErrorCode != "" {
				fields = append(fields, "error_code", job.ErrorCode, "error_message", job.ErrorMessage)
			}
			log.InfoContext(ctx, "job ended", fields...)
		}
		if details {
			log.DebugContext(ctx, "transition",
				about.With("event", t.Type, "from", t.From, "to", t.To, "cause", t.Cause, "rev", job.Rev)...)
		}
	}
}
