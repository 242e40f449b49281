package statemachine

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
)

// Event is something that can happen to a job. This file has all its types.
type Event interface {
	// Name is the event's name in the journal and in errors. Stored journals hold it:
	// it stays when a Go type is renamed.
	Name() string
	// decide applies the event to the copy of the aggregate, or ends the change as a
	// duplicate or a refusal.
	decide(c *change)
}

// Pair is the fence of an attempt: callbacks carry it and must match.
type Pair struct {
	AttemptNo int
	LeaseID   string
}

// Report is what a callback says about its sending. It is recorded, but no decision uses
// it.
//
// Source: Option B spec, 11.2 and 11.3.
type Report struct {
	CorrelationID string `json:"correlation_id,omitempty" column:"callback_correlation_id"`
	// Timestamp is the sender's own time as text: a clock may be wrong by centuries, which
	// not every store's type of times holds.
	Timestamp string `json:"timestamp,omitempty" column:"callback_timestamp"`
}

// Progress is the progress that a worker reports. It is immutable.
type Progress struct {
	Fraction float64 `json:"fraction,omitempty"` // 0 to 1
	Message  string  `json:"message,omitempty"`  // for people; truncated if long
}

// Accept is an accepted command: the first change of a job that is QUEUED at rev 0.
// Of a rerun, the steps before the first one to repeat have SUCCEEDED already, with
// the results of the job before.
type Accept struct {
	Reason string
	// Behind says that other jobs may be before the job in its line.
	Behind bool
}

// Turn says that no job is before this one in its line, where it has that place.
type Turn struct {
	Epoch string
	Seq   int64
	Cause string
}

// DispatchClaimed is a relay that takes a PENDING row off the hot path: the row is
// not due until the publish deadline has passed, so that replicas do not publish it
// at the same time. It gets a new pair if the last publish was rejected, or if it was
// made for another bus. An empty OutboxID means the active row.
type DispatchClaimed struct{ OutboxID string }

// Published is a publish that succeeded.
type Published struct {
	OutboxID  string
	AttemptNo int
}

// PublishRejected is a publish that the bus refused because of the message itself.
// Permanent says that it can never succeed.
type PublishRejected struct {
	OutboxID  string
	AttemptNo int
	Permanent bool
	Reason    string
}

// Claimed is a worker's claim of a directive in the pull queue, which delivers it. Lease is
// the lease that the worker asks for, see [Step.ClaimLease].
type Claimed struct {
	StepID string
	Pair   Pair
	Lease  time.Duration // Optional.
}

// ClaimExtended gives a claimed directive the time until its ACK again, from now.
type ClaimExtended struct {
	StepID   string
	Pair     Pair
	Progress *Progress // Optional.
}

// Ack is a worker's ACK. Lease is the lease that the worker asks for, see [Step.ClaimLease].
//
// Source: Option B spec, 11.2.
type Ack struct {
	StepID string
	Pair   Pair
	Report Report
	Lease  time.Duration // Optional.
}

// Heartbeat says that a worker is still working.
type Heartbeat struct {
	StepID   string
	Pair     Pair
	Report   Report
	Progress *Progress // Optional.
}

// ResultStatus is the status of a RESULT.
type ResultStatus string

// The statuses of a RESULT.
const (
	ResultSucceeded   ResultStatus = "SUCCEEDED"
	ResultFailedRetry ResultStatus = "FAILED_RETRY"
	ResultFailedFinal ResultStatus = "FAILED_FINAL"
)

// ErrorCode returns the error code of a RESULT of this status: the given one, or one
// that names the status, so that every failure has a code. A success needs none.
func (s ResultStatus) ErrorCode(given string) string {
	if s == ResultSucceeded {
		return given
	}
	return cmp.Or(given, strings.ToLower(string(s)))
}

// Result is a worker's RESULT.
//
// Source: Option B spec, 11.3.
type Result struct {
	StepID       string
	Pair         Pair
	Report       Report
	Status       ResultStatus
	ErrorCode    string
	ErrorMessage string
	Product
	// RetryAfter overrides the backoff of a FAILED_RETRY unless it is 0.
	RetryAfter time.Duration
	// Throttled says that a FAILED_RETRY is due to a rate limit of the service. Such an attempt
	// spends no budget, see [FreeAttempts]. Optional.
	Throttled Throttle
}

// Throttle is for whose work a service has no capacity until later, as with HTTP status 429. The
// zero value says that it did not say so.
type Throttle string

// The scopes of a throttle.
const (
	ThrottleService Throttle = "service" // all work of the service
	ThrottleTenant  Throttle = "tenant"  // the service's work for the tenant of the job
)

// Product is what a worker gives when it ends a step, by RESULT or by :complete. Each field is
// optional, and stays with the step.
type Product struct {
	OutputRef json.RawMessage `column:"output_ref"`
	ResultRef json.RawMessage `column:"result_ref"`
}

// DeadlinePassed is a schedule entry that came due: the decision does everything that is
// due by now.
type DeadlinePassed struct {
	// By is when the entry was found due. A worker's deadline after it is left to the next
	// pass, which knows of an outage since then. Optional. Defaults to now.
	By time.Time
	// Outage is when the last outage ended in which workers could not report, or the zero
	// time. An attempt whose deadline passed before then gets a grace period of one ACK
	// timeout, or a third of its lease, from that time on.
	Outage time.Time
	// Topic returns when the last outage of a topic ended, in which directives did not
	// reach their workers; it counts for attempts without an ACK. Optional.
	Topic func(topic string) time.Time
	// Replies is when the last outage ended in which replies did not arrive. Optional.
	Replies time.Time
}

// Cancel asks to end the job without a result.
//
// Source: Option B spec, 18.
type Cancel struct {
	Reason string
	// Code is the error code of the job. Optional. Defaults to [ErrorCancelled].
	Code string
	// IfWaits says that a job which has begun is to be left.
	IfWaits bool
}

// Pause asks to start nothing new.
//
// Source: Option B spec, 18.1.
type Pause struct{ Reason string }

// Resume ends a pause.
//
// Source: Option B spec, 18.2.
type Resume struct{ Reason string }

// Reschedule sets the dates of a job that has not begun. A field that is nil leaves the date, and the
// zero time removes it.
type Reschedule struct {
	NotBefore, NotAfter *time.Time
	Reason              string
}

// Prioritize sets the class of a job that has not ended. It spends no budget.
type Prioritize struct {
	Class  Class
	Reason string
}

// Retry is an operator's retry: the step that waits for its next dispatch becomes due
// now. It spends no budget. StepID, if set, must be the active step.
type Retry struct{ StepID, Reason string }

// Stall is an operator who takes a claimed or running directive from its worker. It
// spends no budget.
type Stall struct {
	StepID    string
	AttemptNo int
	Reason    string
}

// Name implements [Event].
func (Accept) Name() string { return "accept" }

// Name implements [Event].
func (Turn) Name() string { return "turn" }

// Name implements [Event].
func (DispatchClaimed) Name() string { return "taken" }

// Name implements [Event].
func (Published) Name() string { return "published" }

// Name implements [Event].
func (PublishRejected) Name() string { return "publish_rejected" }

// Name implements [Event].
func (Claimed) Name() string { return "claimed" }

// Name implements [Event].
func (ClaimExtended) Name() string { return "claim_extended" }

// Name implements [Event].
func (Ack) Name() string { return "ack" }

// Name implements [Event].
func (Heartbeat) Name() string { return "heartbeat" }

// Name implements [Event].
func (Result) Name() string { return "result" }

// Name implements [Event].
func (DeadlinePassed) Name() string { return "deadline_passed" }

// Name implements [Event].
func (Cancel) Name() string { return "cancel" }

// Name implements [Event].
func (Pause) Name() string { return "pause" }

// Name implements [Event].
func (Resume) Name() string { return "resume" }

// Name implements [Event].
func (Reschedule) Name() string { return "reschedule" }

// Name implements [Event].
func (Prioritize) Name() string { return "prioritize" }

// Name implements [Event].
func (Retry) Name() string { return "retry" }

// Name implements [Event].
func (Stall) Name() string { return "stall" }
