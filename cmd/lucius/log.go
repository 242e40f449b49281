package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// newLogger returns the configured logger, which writes to standard error.
func newLogger(level, format string) (*slog.Logger, error) {
	var parsed slog.Level
	if err := parsed.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	options := &slog.HandlerOptions{Level: parsed}
	if format == "text" {
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
}

// logTransitions logs each transition of a committed change at debug. It logs the
// attempt number and not the lease id, which is a capability.
//
// Source: Option B spec, 20.
func logTransitions(log *slog.Logger, after *statemachine.Aggregate, history []statemachine.Transition) {
	if !log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	job := &after.Job
	for i := range history {
		t := &history[i]
		stepID := job.CurrentStepID // An outbox row belongs to the current step.
		if t.Object == statemachine.ObjectStep {
			stepID = t.ID
		}
		log.Debug("transition", "event", t.Type, "jobId", job.ID, "tenant_id", job.TenantID,
			"stepId", stepID, "attempt_no", t.AttemptNo, "from", t.From, "to", t.To, "cause", t.Cause,
			"rev", job.Rev, "correlation_id", job.CorrelationID, "traceparent", job.Traceparent)
	}
}
