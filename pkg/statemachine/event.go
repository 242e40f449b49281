package statemachine

import "time"

// Event is something that can happen to a job. The types of this file and
// [Result] are all there are.
type Event interface {
	// Name is the event's name in the journal, in errors and in the enumeration
	// of all pairs. Stored journals hold it: it stays when a Go type is renamed.
	Name() string
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

// DispatchClaimed is a relay that claims a PENDING row off the hot path: the row is held
// until the publish deadline, so that replicas do not publish side by side. It
// gets a new pair if the last publish was rejected, or if it was made for
// another bus. An empty OutboxID means the active row, whichever it is.
type DispatchClaimed struct{ OutboxID string }

// Published is a publish that succeeded.
type Published struct {
	OutboxID  string
	AttemptNo int
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

// Name implements [Event].
func (Accept) Name() string { return "accept" }

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
func (Retry) Name() string { return "retry" }

// Name implements [Event].
func (Stall) Name() string { return "stall" }
