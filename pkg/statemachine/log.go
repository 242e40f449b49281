package statemachine

import (
	"encoding/hex"
	"log/slog"
)

// LogFields names a job, and an attempt of one of its steps, in the lines of a log. All
// lines about a job have these fields, as far as their writer knows them.
//
// Source: Option B spec, 20.
type LogFields struct {
	JobID, TenantID, StepID string
	AttemptNo               int
	LeaseDigest             string // The lease id itself is a capability.
	CorrelationID           string
	Traceparent             string // A log line gets its trace id.
}

// FieldsOf returns the fields of a job, and of an attempt of a step unless that is nil.
func FieldsOf(job *Job, step *Step, attemptNo int) LogFields {
	f := LogFields{JobID: job.ID, TenantID: job.TenantID, CorrelationID: job.CorrelationID, Traceparent: job.Traceparent}
	if step != nil {
		f.StepID, f.AttemptNo = step.ID, attemptNo
		if attempt := step.attempt(attemptNo); attempt != nil {
			f.LeaseDigest = attempt.LeaseDigest
		}
	}
	return f
}

// With returns the fields as arguments of a logger, and then more of them. Empty fields
// are left out.
func (f LogFields) With(more ...any) []any {
	args := make([]any, 0, 7+len(more))
	text := func(name, value string) {
		if value != "" {
			args = append(args, slog.String(name, value))
		}
	}
	text("jobId", f.JobID)
	text("tenant_id", f.TenantID)
	text("stepId", f.StepID)
	if f.StepID != "" {
		args = append(args, slog.Int("attempt_no", f.AttemptNo))
	}
	text("lease_digest", f.LeaseDigest)
	text("correlation_id", f.CorrelationID)
	if trace, ok := ParseTrace(f.Traceparent); ok {
		text("trace_id", hex.EncodeToString(trace.ID[:]))
	}
	return append(args, more...)
}
