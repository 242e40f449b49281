package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// newLogger returns the configured logger. It masks secrets in texts and errors, such as
// the signature in a URL that an SDK quotes, summarises what an outage of the store makes
// everything say, and leaves out what a stop makes everything say.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var parsed slog.Level
	if err := parsed.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	options := &slog.HandlerOptions{Level: parsed, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Value.Kind() == slog.KindString {
			attr.Value = slog.StringValue(config.Mask(attr.Value.String()))
		} else if err, ok := attr.Value.Any().(error); ok {
			attr.Value = slog.StringValue(config.Mask(err.Error()))
		}
		return attr
	}}
	var handler slog.Handler = slog.NewJSONHandler(w, options)
	if format == "text" {
		handler = slog.NewTextHandler(w, options)
	}
	return slog.New(newStoreSummary(handler)), nil
}

// logTransitions logs that a job failed for good, and each transition of a committed
// change at debug.
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
