package statemachine

// JobState is the state of a job.
//
// Source: Ledger and state model, Job states; Option B spec, 18.1 (pause).
type JobState string

// The job states, each with who has the next move.
const (
	JobQueued      JobState = "QUEUED"       // ours: the first step has no attempt yet
	JobDispatching JobState = "DISPATCHING"  // ours, then the first worker's: step 0 was never ACKed
	JobInProgress  JobState = "IN_PROGRESS"  // a worker's, or ours between two attempts
	JobPausing     JobState = "PAUSING"      // a worker's: the live attempt may finish
	JobPaused      JobState = "PAUSED"       // the operator's: resume or cancel
	JobCancelling  JobState = "CANCELLING"   // a worker's, until its attempt ends or expires
	JobCancelled   JobState = "CANCELLED"    // nobody's: terminal
	JobSucceeded   JobState = "SUCCEEDED"    // nobody's: terminal
	JobFailedFinal JobState = "FAILED_FINAL" // nobody's: terminal
)

// JobStates lists all job states.
var JobStates = []JobState{
	JobQueued, JobDispatching, JobInProgress, JobPausing, JobPaused,
	JobCancelling, JobCancelled, JobSucceeded, JobFailedFinal,
}

// Terminal reports whether the state is final; a job in it never changes.
func (s JobState) Terminal() bool {
	return s == JobCancelled || s == JobSucceeded || s == JobFailedFinal
}

// StepState is the state of a step.
//
// Source: Ledger and state model, Step states. AWAITING_ACK is the flow
// canvas's INITIATED, IN_PROGRESS its PROCESSING.
type StepState string

// The step states, each with who has the next move.
const (
	StepPending     StepState = "PENDING"      // ours: an earlier step is not done, or the job is paused
	StepDispatching StepState = "DISPATCHING"  // the relay's: the directive is to be published
	StepAwaitingAck StepState = "AWAITING_ACK" // a worker's: take the directive and ACK it
	StepInProgress  StepState = "IN_PROGRESS"  // the worker's: heartbeat and RESULT
	StepFailedRetry StepState = "FAILED_RETRY" // the sweeper's: dispatch again at next_attempt_at
	StepSucceeded   StepState = "SUCCEEDED"    // nobody's: terminal
	StepFailedFinal StepState = "FAILED_FINAL" // nobody's: terminal
	StepCancelled   StepState = "CANCELLED"    // nobody's: terminal
)

// StepStates lists all step states.
var StepStates = []StepState{
	StepPending, StepDispatching, StepAwaitingAck, StepInProgress,
	StepFailedRetry, StepSucceeded, StepFailedFinal, StepCancelled,
}

// Terminal reports whether the state is final; a step in it never changes.
func (s StepState) Terminal() bool {
	return s == StepSucceeded || s == StepFailedFinal || s == StepCancelled
}

// OutboxState is the state of an outbox row.
//
// Source: Ledger and state model, Outbox states.
type OutboxState string

// The outbox states.
const (
	OutboxPending     OutboxState = "PENDING"      // the relay's: publish it
	OutboxSent        OutboxState = "SENT"         // terminal: published at least once
	OutboxFailedFinal OutboxState = "FAILED_FINAL" // terminal: never published, or withdrawn
)

// OutboxStates lists all outbox states.
var OutboxStates = []OutboxState{OutboxPending, OutboxSent, OutboxFailedFinal}

// Terminal reports whether the state is final; a row in it never changes.
func (s OutboxState) Terminal() bool { return s != OutboxPending }
