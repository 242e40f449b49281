package statemachine

import (
	"encoding/json"
	"strings"
	"time"
)

// Event is something that can happen to a job. The types of this file are all
// there are.
type Event interface {
	// name is the event's name in errors and in the enumeration of all pairs.
	name() string
}

// Pair is the fence of an attempt: callbacks carry it and must match.
type Pair struct {
	AttemptNo int
	LeaseID   string
}

// Accept is an accepted command: it turns a job that is QUEUED at rev 0 into
// its first change. Of a rerun the steps before the one to start at have
// SUCCEEDED already, with the results of the job before.
type Accept struct{ Reason string }

// Taken is a relay that takes a PENDING row up off the hot path: the row is
// held until the publish deadline, so that replicas do not publish side by
// side, and gets a new pair where the last publish was rejected. An empty
// OutboxID means the active row, whichever it is.
type Taken struct{ OutboxID string }

// Published is a publish that succeeded.
type Published struct {
	OutboxID  string
	AttemptNo int
	// AwaitsClaim says that the ACK deadline starts only when a worker claims
	// the directive, as in the pull queue.
	AwaitsClaim bool
}

// PublishRejected is a publish that the bus refused for the message's own
// sake. Permanent says that it can never succeed.
type PublishRejected struct {
	OutboxID  string
	AttemptNo int
	Permanent bool
	Reason    string
}

// Claimed is a worker that claimed the directive in the pull queue: the
// delivery. By is the deadline of its ACK; the zero time leaves it to the step.
type Claimed struct {
	StepID string
	Pair   Pair
	By     time.Time
}

// ClaimExtended moves the ACK deadline of a claimed directive.
type ClaimExtended struct {
	StepID string
	Pair   Pair
	By     time.Time
}

// Ack is a worker's ACK.
//
// Source: Option B spec, 11.2.
type Ack struct {
	StepID string
	Pair   Pair
}

// Heartbeat is a worker's sign of life.
type Heartbeat struct {
	StepID string
	Pair   Pair
}

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

// DeadlinePassed is a schedule entry that came due: the job is looked at, and
// what is due by now is done.
type DeadlinePassed struct {
	// Outage is when an outage ended in which workers could not report, or the
	// zero time. An attempt whose deadline passed before it gets a grace of one
	// ACK timeout, or of a third of its lease, from then on.
	Outage time.Time
	// Topic says the same of outages of a topic in which directives did not reach
	// their workers; it holds for attempts that have no ACK yet. Optional.
	Topic func(topic string) time.Time
	// Replies says the same of outages in which replies did not come back. Optional.
	Replies time.Time
}

// Cancel asks to end the job without a result.
//
// Source: Option B spec, 18.
type Cancel struct{ Reason string }

// Pause asks to start nothing new.
//
// Source: Option B spec, 18.1.
type Pause struct{ Reason string }

// Resume ends a pause.
//
// Source: Option B spec, 18.2.
type Resume struct{ Reason string }

// Retry is an operator's retry: what waits for its next dispatch becomes due
// now. It spends no budget. StepID narrows it to that step where it is set.
type Retry struct{ StepID string }

// Stall is an operator who takes a claimed or running directive from its
// worker. It spends no budget.
type Stall struct {
	StepID    string
	AttemptNo int
}

func (Accept) name() string          { return "accept" }
func (Taken) name() string           { return "taken" }
func (Published) name() string       { return "published" }
func (PublishRejected) name() string { return "publish_rejected" }
func (Claimed) name() string         { return "claimed" }
func (ClaimExtended) name() string   { return "claim_extended" }
func (Ack) name() string             { return "ack" }
func (Heartbeat) name() string       { return "heartbeat" }
func (Result) name() string          { return "result" }
func (DeadlinePassed) name() string  { return "deadline_passed" }
func (Cancel) name() string          { return "cancel" }
func (Pause) name() string           { return "pause" }
func (Resume) name() string          { return "resume" }
func (Retry) name() string           { return "retry" }
func (Stall) name() string           { return "stall" }
