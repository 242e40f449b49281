// Package workerlog writes the log of a worker. The messages and fields are the same in all
// SDKs: sdk/README.md lists them.
package workerlog

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// How an attempt ended.
const (
	Succeeded = "succeeded"
	Failed    = "failed"
	Retry     = "retry"
	Cancelled = "cancelled"
	Stopped   = "stopped"
	LeaseLost = "lease_lost"
	Refused   = "refused"
	NotSent   = "not_sent"
)

// Task returns the logger of one attempt.
func Task(log *slog.Logger, jobID, stepID, stepType string, attempt int32) *slog.Logger {
	return log.With("job_id", jobID, "step_id", stepID, "step_type", stepType, "attempt", attempt)
}

// Failure returns the outcome and the reason of an attempt that is reported as failed.
func Failure(code, message string, retryable bool) (outcome, reason string) {
	switch {
	case code == "cancelled":
		outcome = Cancelled
	case code == "worker_stopped":
		outcome = Stopped
	case retryable:
		outcome = Retry
	default:
		outcome = Failed
	}
	if message == "" || message == code {
		return outcome, code
	}
	return outcome, code + ": " + message
}

// Ended logs how the attempt of the task's logger ended. The reason is empty if it succeeded.
func Ended(ctx context.Context, task *slog.Logger, took time.Duration, outcome, reason string) {
	fields := []any{"duration", Seconds(took), "outcome", outcome}
	if reason != "" {
		fields = append(fields, "error", reason)
	}
	task.InfoContext(ctx, "task ended", fields...)
}

// Names joins the names of services or step types. None are all.
func Names(names []string) string {
	if len(names) == 0 {
		return "*"
	}
	return strings.Join(names, ",")
}

// Seconds returns the duration as 38.7s, and one of less than a second as 0.012s.
func Seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.3fs", d.Seconds())
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

// Sparse reports whether the nth repetition is worth a line: the first, and then ever fewer.
func Sparse(n int) bool { return n&(n-1) == 0 }

// Link logs once that the server does not answer, and once that it answers again. It is safe
// for concurrent use.
type Link struct {
	Log    *slog.Logger
	Server string

	mu     sync.Mutex
	lostAt time.Time // zero while the server answers
}

// Lost notes that a call had no answer.
func (l *Link) Lost(ctx context.Context, err error) {
	l.mu.Lock()
	first := l.lostAt.IsZero()
	if first {
		l.lostAt = time.Now()
	}
	l.mu.Unlock()
	if first {
		l.Log.WarnContext(ctx, "server unreachable", "server", l.Server, "error", err)
	}
}

// Answered notes that a call that was made at that time had an answer.
func (l *Link) Answered(ctx context.Context, asked time.Time) {
	l.mu.Lock()
	lostAt := l.lostAt
	back := !lostAt.IsZero() && !asked.Before(lostAt)
	if back {
		l.lostAt = time.Time{}
	}
	l.mu.Unlock()
	if back {
		l.Log.InfoContext(ctx, "server reachable", "server", l.Server, "duration", Seconds(time.Since(lostAt)))
	}
}

// Down reports whether the last call had no answer.
func (l *Link) Down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lostAt.IsZero()
}
